"""Every rule against the oracle: no value leaves its interval, in any precision; and no rule is vacuous."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.bounds import (  # noqa: F401
    cases_contraction,
    cases_movement,
    cases_normalisation,
    cases_other,
    cases_pointwise,
    cases_types,
)
from tests.bounds.cases import CASES, Case
from tests.oracle import HALVES, Tape, check_bounds, check_graph, check_tape
from torch import nn

from nodedrop.bounds import Box, Interval, bound
from nodedrop.bounds.registry import RULES
from nodedrop.tracing import Ref, trace
from nodedrop.tracing.execute import resolve

ALL = [
    pytest.param(case, dtype, id=f"{op.removeprefix('aten.')}-{case.name}-{str(dtype).removeprefix('torch.')}")
    for op, cases in CASES.items()
    for case in cases
    for dtype in case.dtypes
]


@pytest.mark.parametrize(("case", "dtype"), ALL)
def test_no_value_leaves_its_interval(case: Case, dtype: torch.dtype) -> None:
    tape = Tape(dtype)
    try:
        case.write(tape)
    except (RuntimeError, ValueError) as error:
        if dtype in HALVES and any(word in str(error) for word in ("not implemented", "no torch", "overflow")):
            pytest.skip(f"no kernel or no number of this precision: {error}")
        raise
    assert any(node.op == case.op for node in tape.nodes)
    # the worst is searched for in double precision; others round what is found by drawing
    options = case.options if dtype == torch.float64 else {"climbs": 0, "samples": 3, **case.options}
    check_graph(case.graph(tape), tape.tensors, tape.domain, given=tape.given, **options)


def test_every_rule_has_a_case() -> None:
    assert sorted(set(RULES) - set(CASES)) == []


def test_every_case_has_a_rule() -> None:
    assert sorted(set(CASES) - set(RULES)) == []


@pytest.mark.parametrize("op", sorted(RULES))
def test_the_operator_of_a_rule_exists(op: str) -> None:
    resolve(op)


def tape_bounds(write: Callable[[Tape], Ref], dtype: torch.dtype = torch.float64) -> tuple[Tape, Interval]:
    tape = Tape(dtype)
    out = write(tape)
    return tape, check_graph(tape.graph(), tape.tensors, tape.domain, given=tape.given)[out.name]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("lo", "hi"), [(-1.0, 2.0), (0.0, 1.0), (-3.0, -0.5)])
def test_a_corner_attains_the_bound_of_a_dense_layer(lo: float, hi: float, dtype: torch.dtype) -> None:
    def write(t: Tape) -> Ref:
        x = t.input(1, 6, lo=lo, hi=hi)
        return t("aten.linear.default", x, t.parameter(t.normal(4, 6)), t.parameter(t.normal(4)))

    tape, found = tape_bounds(write, dtype)
    weight, bias = (tensor.double() for tensor in tape.tensors.values())
    best = torch.where(weight > 0, hi, lo).mul(weight).sum(1) + bias
    worst = torch.where(weight > 0, lo, hi).mul(weight).sum(1) + bias
    room = 64 * torch.finfo(dtype).eps * (weight.abs().sum(1) * max(abs(lo), abs(hi)) + bias.abs())
    assert bool(((found.hi[0] - best) <= room).all())
    assert bool(((worst - found.lo[0]) <= room).all())


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_a_corner_attains_the_bound_of_an_unpadded_convolution(rank: int, groups: int) -> None:
    tape, found = tape_bounds(
        lambda t: t(
            f"aten.conv{rank}d.default", t.input(1, 4, *[3] * rank, lo=-1.0, hi=2.0),
            t.parameter(t.normal(6, 4 // groups, *[2] * rank)), t.parameter(t.normal(6)),
            [1] * rank, [0] * rank, [1] * rank, groups,
        )
    )
    weight, bias = tape.tensors.values()
    flat = weight.flatten(1)
    best = torch.where(flat > 0, 2.0, -1.0).mul(flat).sum(1) + bias
    assert torch.allclose(found.hi.reshape(-1), best, rtol=1e-12)


@pytest.mark.parametrize(
    ("op", "box", "expected"),
    [
        ("aten.relu.default", (-1.0, 2.0), (0.0, 2.0)),
        ("aten.relu.default", (-3.0, -1.0), (0.0, 0.0)),
        ("aten.relu6.default", (-1.0, 9.0), (0.0, 6.0)),
        ("aten.hardtanh.default", (-9.0, 0.5), (-1.0, 0.5)),
        ("aten.tanh.default", (-1.0, 1.0), (-0.7615941559557649, 0.7615941559557649)),
        ("aten.sigmoid.default", (0.0, 1.0), (0.5, 0.7310585786300049)),
        ("aten.neg.default", (-1.0, 3.0), (-3.0, 1.0)),
        ("aten.abs.default", (-1.0, 3.0), (0.0, 3.0)),
        ("aten.square.default", (-3.0, 1.0), (0.0, 9.0)),
        ("aten.leaky_relu.default", (-1.0, 3.0), (-0.01, 3.0)),
        ("aten.silu.default", (-9.0, 1.0), (-0.27847, 0.7310585786300049)),
        ("aten.gelu.default", (-9.0, 1.0), (-0.17, 0.8413447460685429)),
        ("aten.hardswish.default", (-9.0, 3.0), (-0.375, 3.0)),
        ("aten.reciprocal.default", (0.5, 4.0), (0.25, 2.0)),
        ("aten.exp.default", (0.0, 1.0), (1.0, 2.718281828459045)),
    ],
)
def test_pointwise_bounds_are_tight(op: str, box: tuple[float, float], expected: tuple[float, float]) -> None:
    _, found = tape_bounds(lambda t: t(op, t.input(2, 3, lo=box[0], hi=box[1])))
    assert float(found.lo) == pytest.approx(expected[0], rel=1e-2, abs=1e-12)
    assert float(found.hi) == pytest.approx(expected[1], rel=1e-9, abs=1e-12)


def test_batch_norm_by_running_statistics_is_tight() -> None:
    def write(t: Tape) -> Ref:
        statistics = t.parameter(torch.tensor([0.5, -1.0])), t.parameter(torch.tensor([4.0, 0.25]))
        weights = t.parameter(torch.tensor([2.0, -3.0])), t.parameter(torch.tensor([0.1, 0.2]))
        out = t("aten._native_batch_norm_legit_no_training.default", t.input(3, 2), *weights, *statistics, 0.1, 0.0)
        return t.item(out, 0)

    _, found = tape_bounds(write)
    assert found.hi.reshape(-1).tolist() == pytest.approx([0.6, 0.2], rel=1e-6)
    assert found.lo.reshape(-1).tolist() == pytest.approx([-1.4, -11.8], rel=1e-6)


def test_normalised_rows_reach_their_bound() -> None:
    """√(n−1) for one value (Samuelson), √d·‖P(w∘g)‖₂ for a unit that reads the row."""

    def write(t: Tape) -> Ref:
        normal = t("aten.layer_norm.default", t.input(2, 5, lo=-100.0, hi=100.0), [5], None, None, 1e-5)
        weight = torch.tensor([[1.0, 1.0, 1.0, 1.0, 1.0], [4.0, -1.0, -1.0, -1.0, -1.0]])
        return t("aten.linear.default", normal, t.parameter(weight))

    tape, found = tape_bounds(write)
    assert float(found.hi[..., 0].max()) < 1e-3
    assert float(found.hi[..., 1].max()) == pytest.approx((5 * 20) ** 0.5, rel=1e-6)
    normal = check_graph(tape.graph(), tape.tensors, tape.domain)["v1"]
    assert float(normal.hi.max()) == pytest.approx(2.0, rel=1e-6)


MODULES: dict[str, tuple[Callable[[], nn.Module], Any, Any, dict[str, Any]]] = {
    "convolutions": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 4, 3, groups=2),
            nn.Hardswish(), nn.Dropout(0.4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3), nn.Softmax(-1),
        ),
        [(3, 3, 8, 8)], Box.normalised([0.5, 0.4, 0.3], [0.2, 0.3, 0.25]), {"batch_limit": 3.0},
    ),
    "attention": (
        lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=True, norm_first=True),
        [(2, 5, 8)], (-2.0, 2.0), {},
    ),
    "tokens": (
        lambda: nn.Sequential(nn.Embedding(11, 6), nn.LayerNorm(6), nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 4)),
        [torch.randint(11, (2, 5), generator=torch.Generator().manual_seed(0))], None, {},
    ),
    "recurrence": (lambda: nn.LSTM(3, 4, num_layers=2, batch_first=True), [(2, 5, 3)], (-3.0, 3.0), {}),
}


@pytest.mark.parametrize("name", MODULES)
def test_no_value_of_a_traced_module_leaves_its_interval(name: str) -> None:
    """In train mode too: batch norm and dropout on batches drawn anew every time."""
    torch.manual_seed(0)
    build, shapes, domain, options = MODULES[name]
    found = check_bounds(build(), shapes, domain, dtypes=(torch.float32,), **options)
    assert {mode for mode, _ in found} == {"eval", "train"}
    assert all(not bounds.unknown for bounds in found.values())


def test_bounds_for_lower_precision_hold_under_autocast() -> None:
    def write(t: Tape) -> None:
        weight = t.normal(5, 6)
        weight[0] = 0
        x = t.input(4, 6, lo=-1.0, hi=2.0)
        hidden = t("aten.relu.default", t("aten.linear.default", x, t.parameter(weight), t.parameter(t.normal(5))))
        normal = t("aten.layer_norm.default", hidden, [5], t.parameter(t.normal(5)), t.parameter(t.normal(5)), 1e-5)
        t("aten.linear.default", normal, t.parameter(t.normal(3, 5)), t.parameter(t.normal(3)))

    check_tape(write, torch.float32, autocast=torch.bfloat16, samples=20)


def test_graphs_that_share_a_memo_keep_their_own_kernels() -> None:
    """Weights that are views have the same node name in both graphs, and need not be the same weights."""
    found = []
    memo: dict[Any, Any] = {}
    for scale in (1.0, -1.0):
        t = Tape(torch.float64)
        kernel = t.parameter(torch.full((2, 6), scale))
        x = t.input(1, 2, 5, lo=0.0, hi=1.0)
        out = t("aten.conv1d.default", x, t("aten.view.default", kernel, [2, 2, 3]))
        found.append(float(bound(t.graph(), t.tensors, t.domain, memo=memo)[out.name].hi.max()))
    assert found == pytest.approx([6.0, 0.0])


class Strided(torch.nn.Module):
    """A view of one column, and from it, past its edge, the other."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * torch.tensor([0.1, 1.0]))[:, :1].as_strided((len(x), 1), (2, 1), 1)


def test_strides_may_leave_the_value_they_are_given() -> None:
    for graph in trace(Strided(), (torch.rand(3, 2),)).graphs:
        bounds = bound(graph, {}, (0.0, 1.0))
        assert float(bounds[graph.outputs[0]].hi) >= 1.0


@pytest.mark.parametrize("name", ["add", "sub", "neg", "mul", "sum"])
def test_whole_numbers_come_back_at_the_other_end(name: str) -> None:
    class Whole(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            forms = {"add": lambda: x + 60, "sub": lambda: x - 60, "neg": lambda: -x, "mul": lambda: x * 3,
                     "sum": lambda: x.sum(1, dtype=torch.uint8)}  # fmt: skip
            return forms[name]().float()

    model, example = Whole(), torch.tensor([[7, 200], [1, 255]], dtype=torch.uint8)
    graph = trace(model, (example,)).graphs[0]
    bounds, out = bound(graph, {}, (0, 255)), graph.outputs[0]
    y = model(torch.arange(256, dtype=torch.uint8).reshape(-1, 2))
    assert float(bounds[out].lo.min()) <= float(y.min())
    assert float(y.max()) <= float(bounds[out].hi.max())
    assert float(bounds[out].lo.min()) >= 0, "and no further than the type goes"
