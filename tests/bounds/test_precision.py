"""What was rounded stays rounded: later operators of higher precision, or of larger numbers, do not forget it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.bounds.cases_types import kept
from tests.oracle import Tape, check_tape
from torch import Tensor, nn

from nodedrop.bounds import Bounds, bound
from nodedrop.bounds.conversion import holds
from nodedrop.tracing import tensors_of, trace

Change = Callable[[Tensor], Tensor]
# What is done to a row of a norm: each looks as if it left the row as it was, or scaled it.
CHANGES: dict[str, tuple[Change, torch.dtype, float]] = {
    "widened": (lambda x: x.float(), torch.bfloat16, 1.0),
    "widened and scaled": (lambda x: 3.0 * x.double(), torch.float16, 3.0),
    "moved away and back": (lambda x: (x + torch.full((4,), 4096.0)) + torch.full((4,), -4096.0), torch.float32, 1.0),
    "made small and large": (
        lambda x: x * torch.tensor(2.0**-138) * torch.tensor(2.0**100) * torch.tensor(2.0**38), torch.float32, 1.0,
    ),
    "made small by its weights": (lambda x: x * torch.full((4,), 2.0**-138) * torch.full((4,), 2.0**120), torch.float32,
                                  2.0**-18),
}  # fmt: skip


class Changed(nn.Module):
    """A unit that sums a normalised row of four, which is 4 at most before anything is rounded."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.change, dtype, self.scale = CHANGES[name]
        self.norm = nn.RMSNorm(4, eps=1e-6).to(dtype)
        self.unit = nn.Linear(4, 1, bias=False)
        nn.init.ones_(self.unit.weight)

    def forward(self, x: Tensor) -> Tensor:
        rows = self.change(self.norm(x.to(self.norm.weight.dtype)))
        return nn.functional.linear(rows, self.unit.weight.to(rows.dtype))


def bounded(model: nn.Module, x: Tensor, domain: tuple[float, float] = (0.0, 1.0)) -> Bounds:
    (graph,) = trace(model, (x[:1],)).in_mode("eval")
    return bound(graph, tensors_of(model), domain)


@pytest.mark.parametrize("name", CHANGES)
def test_a_normalised_row_keeps_the_rounding_behind_it(name: str) -> None:
    model, random = Changed(name), torch.Generator().manual_seed(0)
    x = 1 - 0.03 * torch.rand(20000, 4, generator=random)
    found = bounded(model, x)
    largest = float(model(x).detach().max())
    assert largest > 4 * model.scale * (1 + 2.0**-21), "the case shows nothing"
    assert largest <= float(found[found.graph.outputs[0]].hi.max())


def test_a_norm_by_hand_is_as_coarse_as_the_coarsest_of_its_parts() -> None:
    class ByHand(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True, dtype=torch.bfloat16) + 1e-6)) @ torch.ones(4, 1)

    model, x = ByHand(), 1 - 0.03 * torch.rand(2000, 4, generator=torch.Generator().manual_seed(0))
    found = bounded(model, x)
    largest = float(model(x).max())
    assert largest > 4 * (1 + 2.0**-12), "the case shows nothing"
    assert largest <= float(found[found.graph.outputs[0]].hi.max())


def test_a_normalised_row_may_overflow() -> None:
    class Large(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            rows = nn.functional.rms_norm(x, [4], eps=1e-4) * torch.full((4,), 40000.0, dtype=torch.float16)
            return nn.functional.linear(rows, torch.tensor([[1e-4, 0, 0, 0]], dtype=torch.float16))

    model, x = Large(), torch.tensor([[1.0, 0, 0, 0]], dtype=torch.float16)
    found = bounded(model, x)
    assert float(model(x)) == float("inf") == float(found[found.graph.outputs[0]].hi.max())


def test_a_sum_of_a_normalised_row_may_overflow() -> None:
    class Large(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            rows = nn.functional.layer_norm(x, [4], eps=1e-4)
            weight = torch.tensor([[60000.0, 60000.0, 60000.0, 59000.0]], dtype=torch.float16)
            return nn.functional.linear(rows, weight)

    x = torch.tensor([[1.0, 1.0, 0, 0]], dtype=torch.float16)
    found = bounded(Large(), x)
    assert float(found[found.graph.outputs[0]].hi.max()) == float("inf")


@pytest.mark.parametrize("form", ["weights of its own", "by hand", "widened"])
def test_scale_and_shift_of_a_norm_cost_no_more_than_their_rounding(form: str) -> None:
    t = Tape(torch.float32)
    gain, shift = (t.parameter(torch.tensor(row)) for row in ([1.0, -2.0, 0.5, 3.0], [1.0, 0.0, -1.0, 4.0]))
    own = (None, None) if form == "by hand" else (gain, shift)
    rows = t("aten.layer_norm.default", t.input(2, 4), [4], *own, 1e-5)
    if form == "by hand":
        rows = t("aten.add.Tensor", t("aten.mul.Tensor", gain, rows), shift)
    if form == "widened":
        rows = t("aten._to_copy.default", rows, dtype=torch.float64)
    weight = kept(t, torch.ones(1, 4, dtype=torch.float64 if form == "widened" else torch.float32))
    out = t("aten.linear.default", rows, weight)
    scaled = t.tensors[gain.name].double()
    expected = 2 * (scaled - scaled.mean()).norm() + 4
    assert float(bound(t.graph(), t.tensors, t.domain)[out.name].hi) == pytest.approx(float(expected), rel=1e-4)


@pytest.mark.parametrize("op", ["aten.maximum.default", "aten.minimum.default", "aten.where.self"])
def test_autocast_lowers_the_numbers_that_a_layer_meets(op: str) -> None:
    """What a layer returns is of the lower type, to which a tensor without axes gives way."""

    def write(t: Tape) -> None:
        near = -2.0 if "max" in op else 2.0
        row = t("aten.linear.default", t.input(2, 3, lo=near, hi=near), t.parameter(torch.eye(3)))
        first = (t("aten.gt.Scalar", t.input(2, 3), 0.0),) if "where" in op else ()
        t(op, *first, row, t.parameter(torch.tensor(1.003)))

    check_tape(write, torch.float32, autocast=torch.bfloat16)


def test_a_number_that_the_lower_type_holds_is_met_as_it_is() -> None:
    t = Tape(torch.bfloat16)
    out = t("aten.maximum.default", t.input(2, 3, lo=-2.0, hi=-1.0), kept(t, torch.tensor(1.5)))
    found = bound(t.graph(), t.tensors, t.domain)[out.name]
    assert (float(found.lo), float(found.hi)) == (1.5, 1.5)


TYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
         torch.uint8, torch.bool)  # fmt: skip


@pytest.mark.parametrize("wide", TYPES)
@pytest.mark.parametrize("narrow", TYPES)
def test_a_type_holds_what_it_leaves_as_it_was(wide: torch.dtype, narrow: torch.dtype) -> None:
    if narrow is torch.bool:
        numbers = torch.tensor([False, True])
    elif narrow.is_floating_point:
        kind = torch.finfo(narrow)
        numbers = torch.tensor([kind.max, kind.min, 1 + kind.eps, 0.5, kind.tiny], dtype=torch.float64).to(narrow)
    else:
        least, most = torch.iinfo(narrow).min, torch.iinfo(narrow).max
        numbers = torch.tensor([least, least + 1, most, most - 1, 0, 1], dtype=narrow)
    assert holds(wide, narrow) == (numbers.to(wide).tolist() == numbers.tolist())
