"""The margin: what is certified is zero in the floating-point program, in any order of summation."""

from __future__ import annotations

from math import prod

import pytest
import torch
from tests.bounds.summation import FORMS, Unit, bounds_of, cancelling, check_orders, orders, rising
from tests.oracle import Tape, check_tape

from nodedrop.bounds import bound
from nodedrop.bounds.rounding import gamma, sum_margin, unit_roundoff, widen
from nodedrop.tracing import trace

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def upper(unit: Unit, form: str = "linear", lowest: torch.dtype | None = None) -> float:
    bounds = bounds_of(unit, form, lowest)
    return float(bounds[bounds.graph.nodes[-1].name].hi)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_unit_that_fires_by_rounding_alone_is_not_certified(dtype: torch.dtype, form: str) -> None:
    unit = rising(dtype)
    assert unit.exact <= 0
    assert unit.rounded(torch.arange(len(unit.weight) + 1)) > 0
    assert upper(unit, form) > 0
    check_orders(unit, form)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("seed", [0, 2, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_large_terms_that_cancel_are_not_certified(dtype: torch.dtype, seed: int, form: str) -> None:
    unit = cancelling(dtype, seed)
    assert unit.exact <= 0
    assert any(unit.rounded(order) > 0 for order in orders(unit)), "the case shows nothing"
    assert upper(unit, form) > 0
    check_orders(unit, form)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [3, 2000])
def test_terms_that_are_never_positive_need_no_margin(dtype: torch.dtype, form: str, count: int) -> None:
    random = torch.Generator().manual_seed(0)
    weight = -torch.rand(count, generator=random).to(dtype)
    unit = Unit(weight, torch.zeros((), dtype=dtype), torch.ones(count, dtype=dtype))
    assert upper(unit, form) <= 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_margin_is_small(dtype: torch.dtype) -> None:
    """A bias a little below what the weights can reach is enough."""
    unit = cancelling(dtype, seed=1)
    lower = (unit.bias.double() * (1 + 256 * torch.finfo(dtype).eps)).to(dtype)
    assert upper(Unit(unit.weight, lower, unit.point)) <= 0


def test_lower_precision_asks_for_a_wider_margin() -> None:
    unit = cancelling(torch.float32, seed=2)
    clear = Unit(unit.weight, unit.bias * 1.01, unit.point)
    assert upper(clear) <= 0
    assert upper(clear, lowest=torch.bfloat16) > 0


def test_a_sum_over_an_axis_has_a_margin() -> None:
    unit = rising(torch.float32)

    t = Tape(torch.float32)
    terms = t("aten.mul.Tensor", t.input(1, len(unit.weight), lo=0.0, hi=1.0), t.parameter(unit.weight))
    total = t("aten.sum.dim_IntList", t("aten.cat.default", [terms, t.parameter(unit.bias.reshape(1, 1))], 1), [1])
    assert float(bound(t.graph(), t.tensors, t.domain)[total.name].hi) > 0


def test_batch_norm_by_running_statistics_has_a_margin() -> None:
    """x·(w/σ) − μ·(w/σ) is zero at x = μ; kernels that fold the statistics round it to either side."""

    def write(t: Tape) -> None:
        mean, var = t.parameter(torch.full((8,), 1234.567)), t.parameter(torch.linspace(0.5, 3.0, 8))
        weight, bias = t.parameter(torch.linspace(0.3, 7.7, 8)), t.parameter(torch.zeros(8))
        edge = float(t.values[mean.name][0])
        x = t.input(4, 8, lo=0.0, hi=edge)
        t("aten._native_batch_norm_legit_no_training.default", x, weight, bias, mean, var, 0.1, 1e-5)

    bounds = check_tape(write, torch.float32, samples=20)
    assert bool((bounds[bounds.graph.nodes[-1].name].hi > 0).all())


@pytest.mark.parametrize("norm", ["layer", "group"])
def test_the_reach_of_a_norm_is_not_rounded_to_single_precision(norm: str) -> None:
    """One value that differs from three equal ones comes out as √3, which single precision would round down."""
    t = Tape(torch.float64)
    x = t.input(1, 4, lo=-1e6, hi=1e6)
    out = t("aten.layer_norm.default", x, [4]) if norm == "layer" else t("aten.group_norm.default", x, 1)
    row = torch.tensor([[1e6, -1e6, -1e6, -1e6]], dtype=torch.float64)
    largest = torch.nn.functional.layer_norm(row, [4]).max()
    assert float(torch.tensor(3.0).sqrt()) < largest <= bound(t.graph(), t.tensors, t.domain)[out.name].hi.max()


@pytest.mark.parametrize("equation", ["abc->", "abc,abc->a", "abc,abc->"])
def test_an_einsum_counts_every_term(equation: str) -> None:
    shape = (4, 10, 11)
    tape = Tape(torch.float32)
    operands = [tape.input(*shape, lo=1.0, hi=1.0) for _ in equation.split("->", maxsplit=1)[0].split(",")]
    out = tape("aten.einsum.default", equation, operands)
    interval = bound(tape.graph(), tape.tensors, tape.domain)[out.name]
    terms = prod(shape) // tape.values[out.name].numel()
    assert float(interval.hi.min()) >= terms * (1 + gamma(terms, unit_roundoff(torch.float32)))


def test_gamma_grows_without_bound() -> None:
    assert gamma(1, 2.0**-24) == pytest.approx(2.0**-24, rel=1e-6)
    assert gamma(256, 2.0**-8) == float("inf")
    assert gamma(0, 2.0**-8) == 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_unit_roundoff_is_half_the_spacing_at_one(dtype: torch.dtype) -> None:
    assert unit_roundoff(dtype) == torch.finfo(dtype).eps / 2


def test_integers_do_not_round() -> None:
    assert unit_roundoff(torch.int64) == unit_roundoff(torch.bool) == unit_roundoff(None) == 0


def test_a_sum_of_zeros_has_no_margin() -> None:
    size = torch.tensor([0.0, 1.0, float("inf")], dtype=torch.float64)
    margin = sum_margin(size, 10, 2.0**-24, 1e-38)
    assert margin[0] == 0
    assert margin[1] > 10 * 2.0**-24
    assert margin[2] >= torch.finfo(torch.float64).max


def test_widening_never_crosses_zero() -> None:
    lo, hi = torch.tensor([0.0, -1.0, -2.0]).double(), torch.tensor([1.0, 0.0, -1.0]).double()
    low, high = widen(lo, hi, 2.0**-24, 1e-38)
    assert low[0] == 0
    assert high[1] == 0
    assert bool((low <= lo).all())
    assert bool((high >= hi).all())
    assert bool((high[2] > -1) & (high[2] < 0))


class ByHand(torch.nn.Module):
    """RMS norm of two values."""

    def __init__(self, epsilon: float) -> None:
        super().__init__()
        self.epsilon = epsilon

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.epsilon)


@pytest.mark.parametrize(("dtype", "epsilon", "known"), [
    (torch.float16, 1e-8, False), (torch.float16, 1e-4, True), (torch.bfloat16, 1e-8, True),
    (torch.float32, 1e-8, True), (torch.float32, 1e-40, False),
])  # fmt: skip
def test_a_norm_by_hand_needs_an_epsilon_beside_which_squares_that_underflow_are_nothing(
    dtype: torch.dtype, epsilon: float, known: bool
) -> None:
    graph = trace(ByHand(epsilon), (torch.rand(2, 2, dtype=dtype),)).graphs[0]
    out = bound(graph, {}, (0.0, 1.0))[graph.outputs[0]]
    assert (out.ball is not None) == known
    x = torch.full((2, 2), 2.98e-4, dtype=dtype)
    row = ByHand(epsilon)(x)[0].double().norm()
    if dtype == torch.float16 and not known:
        assert row > 1.001 * 2**0.5, "the case shows nothing"
