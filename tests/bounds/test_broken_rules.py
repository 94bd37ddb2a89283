"""Checks that can fail: with a rule broken on purpose, the oracle objects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.bounds.summation import check_orders, rising
from tests.bounds.test_rules import CASES
from tests.oracle import Tape, Violation, check_graph, check_tape

from nodedrop.bounds import Interval, propagate, registry
from nodedrop.bounds.registry import RULES
from nodedrop.bounds.rules import contraction, normalisation
from nodedrop.tracing.graph import Node

# For each family of rules, operators whose bounds are attained, and the case that attains them.
ATTAINED: dict[str, dict[str, str]] = {
    "contraction": {
        "aten.linear.default": "dense", "aten.matmul.default": "products", "aten.mm.default": "products",
        "aten.conv1d.default": "convolutions", "aten.conv2d.padding": "named_padding",
        "aten.conv_transpose2d.input": "transposed_convolutions", "aten.convolution.default": "general_convolutions",
        "aten.addmm.default": "products_with_offset", "aten.einsum.default": "sums_by_letters",
    },
    "pointwise": {
        "aten.relu.default": "boxes", "aten.sigmoid.default": "boxes", "aten.silu.default": "boxes",
        "aten.leaky_relu.default": "boxes", "aten.neg.default": "boxes", "aten.square.default": "boxes",
        "aten.mul.Tensor": "two_values", "aten.add_.Tensor": "two_values", "aten.div.Tensor": "quotients",
        "aten.maximum.default": "two_values", "aten.sqrt.default": "boxes", "aten.exp.default": "boxes",
    },
    "normalisation": {
        "aten._native_batch_norm_legit_no_training.default": "running_statistics",
        "aten._native_batch_norm_legit.no_stats": "batch_statistics",
        "aten.layer_norm.default": "rows", "aten.rms_norm.default": "root_mean_square",
        "aten.group_norm.default": "groups_of_units", "aten.instance_norm.default": "instances",
    },
    "reduction": {
        "aten.sum.dim_IntList": "reductions", "aten.mean.dim": "reductions", "aten.amax.default": "reductions",
        "aten.max.dim": "reductions_with_place", "aten.max_pool2d.default": "largest_in_windows",
        "aten.adaptive_avg_pool2d.default": "windows_to_size",
    },
    "movement": {
        "aten.permute.default": "moves", "aten.slice.Tensor": "moves", "aten.view.default": "moves",
        "aten.cat.default": "joins", "aten._to_copy.default": "casts",
        "aten.replication_pad2d.default": "border_copies",
        "aten.upsample_nearest2d.vec": "resizes", "aten.upsample_bilinear2d.vec": "resizes",
        "aten.select_scatter.default": "writes_one_row", "aten.index.Tensor": "picks",
    },
    "creation": {
        "aten.embedding.default": "look_ups", "aten.dropout.default": "dropped", "aten.where.self": "choices",
        "aten.softmax.int": "shares", "aten.scaled_dot_product_attention.default": "attention",
        "aten.ones.default": "made", "aten.fill.Scalar": "overwritten_by_a_number", "aten.tril.default": "moves",
    },
    "recurrent": {"aten.lstm.input": "recurrence", "aten.gru.input": "recurrence", "aten.rnn_tanh.input": "recurrence"},
}
PAIRS = [pytest.param(op, name, id=f"{family}-{op}") for family, ops in ATTAINED.items() for op, name in ops.items()]


def check_case(op: str, name: str) -> None:
    case = next(case for case in CASES[op] if case.name == name)
    tape = Tape(torch.float64)
    case.write(tape)
    options = {**case.options, "samples": 12}
    check_graph(case.graph(tape), tape.tensors, tape.domain, given=tape.given, **options)


def halved(interval: Interval) -> Interval:
    """The upper end moved half-way to the lower one; open ends moved to where an input of the tests still goes."""
    lo, hi = interval.lo.double().clamp(min=-1e4), interval.hi.double().clamp(max=1e4)
    return replace(interval, lo=lo, hi=torch.where(hi > lo, (lo + hi) / 2, hi - 1))


@pytest.mark.parametrize(("op", "name"), PAIRS)
def test_an_upper_end_halved(monkeypatch: pytest.MonkeyPatch, op: str, name: str) -> None:
    check_case(op, name)
    sound = RULES[op]

    def broken(ctx: Any, node: Node) -> Any:
        result = sound(ctx, node)
        return (halved(result[0]), *result[1:]) if isinstance(result, tuple) else halved(result)

    monkeypatch.setitem(RULES, op, broken)
    with pytest.raises(Violation):
        check_case(op, name)


DENSE = ("aten.linear.default", "dense")
CONV = ("aten.conv2d.default", "convolutions")


@pytest.mark.parametrize(("op", "name"), [DENSE, CONV, ("aten.matmul.default", "products")])
def test_the_sign_of_the_condition_flipped(monkeypatch: pytest.MonkeyPatch, op: str, name: str) -> None:
    """Σ min(w·lo, w·hi) in place of Σ max: positive weights meet the lower ends."""
    sound = contraction.weighted_sum

    def broken(ctx: Any, node: Node, weight: Any, value: Interval, *rest: Any) -> Any:
        return sound(ctx, node, weight, replace(value, lo=value.hi, hi=value.lo), *rest)

    monkeypatch.setattr(contraction, "weighted_sum", broken)
    with pytest.raises(Violation):
        check_case(op, name)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("form", ["linear", "conv over inputs", "conv over positions", "matmul and add"])
def test_the_margin_dropped(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, form: str) -> None:
    unit = rising(dtype)
    check_orders(unit, form)
    monkeypatch.setattr(contraction, "sum_margin", lambda magnitude, *_: torch.zeros_like(magnitude))
    with pytest.raises(Violation):
        check_orders(unit, form)


def test_the_bias_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = contraction.weighted_sum

    def broken(ctx: Any, node: Node, weight: Any, value: Interval, bias: Any, terms: int) -> Any:
        return sound(ctx, node, weight, value, None, terms)

    monkeypatch.setattr(contraction, "weighted_sum", broken)
    with pytest.raises(Violation):
        check_case(*DENSE)


@pytest.mark.parametrize(
    ("op", "name"),
    [
        ("aten.conv2d.padding", "named_padding"),
        ("aten.conv_transpose2d.input", "transposed_convolutions"),
        ("aten.dropout.default", "dropped"),
        ("aten.avg_pool1d.default", "averages"),
        ("aten.im2col.default", "moves"),
        ("aten.tril.default", "moves"),
    ],
)
def test_the_zero_forgotten(monkeypatch: pytest.MonkeyPatch, op: str, name: str) -> None:
    """Padding and dropout bring a zero that the box of the value need not hold."""
    check_case(op, name)
    monkeypatch.setattr(Interval, "with_zero", lambda self: self)
    with pytest.raises(Violation):
        check_case(op, name)


def test_the_scale_of_dropout_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Interval, "scaled", lambda self, factor: self)
    with pytest.raises(Violation):
        check_case("aten.dropout.default", "dropped")


def check_image_batch(batch_limit: float) -> None:
    t = Tape(torch.float64)
    x = t.input(2, 3, 4, 4, lo=-5.0, hi=5.0)
    weights = t.parameter(torch.ones(3)), t.parameter(torch.zeros(3))
    t("aten._native_batch_norm_legit.no_stats", x, *weights, True, 0.1, 1e-5)
    check_graph(t.graph("train"), t.tensors, t.domain, batch_limit=batch_limit)


def test_the_batch_of_an_image_taken_for_its_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """m is N·H·W, not N."""
    check_image_batch(2.0)
    monkeypatch.setattr(normalisation, "prod", lambda sizes: 1)
    with pytest.raises(Violation):
        check_image_batch(2.0)


def test_a_batch_declared_too_small() -> None:
    with pytest.raises(Violation):
        check_image_batch(1.0)


def normalised_unit(t: Tape) -> None:
    normal = t("aten.layer_norm.default", t.input(1, 4, lo=-9.0, hi=9.0), [4], None, None, 1e-5)
    t("aten.linear.default", normal, t.parameter(torch.tensor([[1.0, -1.0, 1.0, -1.0]])))


def test_the_ball_of_a_layer_norm_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    check_tape(normalised_unit, torch.float64)
    sound: Callable[..., Any] = contraction._in_ball

    def broken(*args: Any) -> Any:
        return tuple(0.9 * end for end in sound(*args))

    monkeypatch.setattr(contraction, "_in_ball", broken)
    with pytest.raises(Violation):
        check_tape(normalised_unit, torch.float64)


@pytest.mark.parametrize("op", ["aten.layer_norm.default", "aten.group_norm.default", "aten.instance_norm.default"])
def test_the_reach_of_a_norm_shrunk(monkeypatch: pytest.MonkeyPatch, op: str) -> None:
    name = next(case.name for case in CASES[op] if case.name != "weights_from_the_input")
    sound: Callable[..., Any] = normalisation._reach
    monkeypatch.setattr(normalisation, "_reach", lambda *args, **kwargs: 0.5 * sound(*args, **kwargs))
    with pytest.raises(Violation):
        check_case(op, name)


@pytest.mark.parametrize(("op", "name"), [
    ("aten.sub.Tensor", "numbers_between_floats"), ("aten.maximum.default", "no_further_than_a_number_between_floats"),
    ("aten.cat.default", "joins_of_several_types"), ("aten.add.Tensor", "truths_and_whole_numbers"),
    ("aten.sum.dim_IntList", "sums_in_another_type"), ("aten.full.default", "filled_with_whole_numbers"),
])  # fmt: skip
def test_conversion_to_the_type_of_the_result_forgotten(monkeypatch: pytest.MonkeyPatch, op: str, name: str) -> None:
    def write() -> None:
        case = next(case for case in CASES[op] if case.name == name)
        check_tape(case.write, torch.float32, samples=2, climbs=0)

    write()
    for module in (registry, propagate):
        monkeypatch.setattr(module, "converted", lambda value, source, target: value)
    with pytest.raises(Violation):
        write()


def test_softmax_said_to_sum_to_less_than_one(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = RULES["aten.softmax.int"]
    monkeypatch.setitem(RULES, "aten.softmax.int", lambda ctx, node: replace(sound(ctx, node), mix=0.9))
    with pytest.raises(Violation, match="sums to"):
        check_case("aten.matmul.default", "mixes")


def test_a_bound_that_is_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = RULES["aten.relu.default"]
    monkeypatch.setitem(
        RULES, "aten.relu.default", lambda ctx, node: replace(sound(ctx, node), hi=sound(ctx, node).hi * float("nan"))
    )
    with pytest.raises(Violation, match="NaN"):
        check_case("aten.relu.default", "boxes")
