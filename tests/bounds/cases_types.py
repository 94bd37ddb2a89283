"""Cases of mixed types: an operator converts what it reads to the type of its result, and what it makes as well."""

from __future__ import annotations

from typing import Any

import torch
from tests.bounds.cases import case
from tests.oracle import Tape
from torch import Tensor

from nodedrop.bounds.rounding import unit_roundoff
from nodedrop.tracing.graph import PARAMETER, Ref

MIXED = {"samples": 2, "climbs": 0}
ONE = (torch.float32,)


def kept(t: Tape, value: Tensor) -> Ref:
    """A known tensor in its own precision, whatever that of the graph."""
    name = f"p{len(t.nodes)}"
    t.tensors[name] = value
    return t._leaf(name, PARAMETER, value)


def between_floats(t: Tape) -> list[tuple[Tensor, float]]:
    """Numbers of other types that are none of the graph's, and what they become there."""
    u = unit_roundoff(t.dtype)
    found = [(torch.tensor(int(1 / u) + 1), 1 / u), (torch.tensor(-int(1 / u) - 1), -1 / u)]
    for wider in (torch.float32, torch.float64):
        if unit_roundoff(wider) < u:
            found += [(torch.tensor(sign * (1 + 0.8 * u), dtype=wider), sign) for sign in (1.0, -1.0)]
    return found


@case("aten.add.Tensor", "aten.sub.Tensor", "aten.add_.Tensor", "aten.mul.Tensor", "aten.mul_.Tensor",
      "aten.div.Tensor", "aten.div_.Tensor", "aten.true_divide.Tensor", **MIXED)
def numbers_between_floats(t: Tape, op: str) -> None:
    """x − t is zero where x is what t is rounded to."""
    for number, rounded in between_floats(t):
        near = -rounded if "add" in op else rounded
        t(op, t("aten.clone.default", t.input(2, 3, lo=near, hi=near)), kept(t, number))


@case("aten.add.Tensor", "aten.sub.Tensor", **MIXED)
def numbers_between_floats_first(t: Tape, op: str) -> None:
    for number, rounded in between_floats(t):
        near = -rounded if "add" in op else rounded
        t(op, kept(t, number), t.input(2, 3, lo=near, hi=near))
        t(op, kept(t, number), t.input(2, 3, lo=near / 2, hi=near / 2), alpha=2)


@case("aten.add.Tensor", "aten.sub.Tensor", "aten.div.Tensor", "aten.maximum.default", **MIXED)
def whole_numbers_between_floats(t: Tape, op: str) -> None:
    """Not numbers alone: a tensor of whole numbers gives way to one of floats."""
    for number, rounded in between_floats(t)[:2]:
        near = -rounded if "add" in op else rounded
        t(op, t.input(2, 3, lo=near, hi=near), kept(t, number.reshape(1, 1).expand(2, 3).clone()))


@case("aten.maximum.default", "aten.minimum.default", **MIXED)
def no_further_than_a_number_between_floats(t: Tape, op: str) -> None:
    for number, rounded in between_floats(t):
        away = -abs(rounded) if "max" in op else abs(rounded)
        t(op, t.input(2, 3, lo=2 * away, hi=2 * away), kept(t, number))


@case("aten.where.self", "aten.masked_fill.Tensor", "aten.fill.Tensor", **MIXED)
def choices_between_floats(t: Tape, op: str) -> None:
    condition = t("aten.gt.Scalar", t.input(2, 3), 0.2)
    for number, rounded in between_floats(t):
        x, other = t.input(2, 3, lo=2 * rounded, hi=2 * rounded), kept(t, number)
        args = {"where": (condition, x, other), "masked_fill": (x, condition, other), "fill": (x, other)}
        t(op, *args[op.split(".")[1]])


@case("aten.cat.default", "aten.stack.default", "aten.concat.default", **MIXED)
def joins_of_several_types(t: Tape, op: str) -> None:
    for number, rounded in between_floats(t):
        t(op, [t.input(3, lo=rounded, hi=rounded), kept(t, number.expand(3).clone())])


@case("aten.select_scatter.default", "aten.slice_scatter.default", **MIXED)
def writes_of_several_types(t: Tape, op: str) -> None:
    for number, rounded in between_floats(t):
        size, where = ((3,), (0, 1)) if "select" in op else ((1, 3), (0, 1, 2))
        t(op, t.input(2, 3, lo=rounded, hi=rounded), kept(t, number.expand(size).clone()), *where)


@case("aten.sin.default", "aten.cos.default", "aten.sigmoid.default", "aten.sqrt.default", "aten.reciprocal.default",
      dtypes=ONE, **MIXED)
def functions_of_whole_numbers(t: Tape, op: str) -> None:
    t(op, kept(t, torch.arange(16777210, 16777232)))


@case("aten.sum.dim_IntList", "aten.mean.dim", dtypes=ONE, **MIXED)
def sums_in_another_type(t: Tape, op: str) -> None:
    t(op, kept(t, torch.tensor([[16777217, -16777217], [16777217, -1]])), [1], dtype=t.dtype)
    t(op, kept(t, torch.tensor([[16777217.0, -16777217.0]], dtype=torch.float64)), [1], dtype=t.dtype)
    if "sum" in op:
        x = t.input(2, 4, lo=0.875, hi=0.875)
        for dtype in (torch.int64, torch.uint8, torch.bool):
            t(op, x, [1], dtype=dtype)
            t(op, kept(t, torch.ones(2, 8, dtype=torch.bool)), [1], dtype=dtype)


@case("aten.add.Tensor", "aten.sub.Tensor", dtypes=ONE, **MIXED)
def whole_numbers_between_doubles(t: Tape, op: str) -> None:
    """What bounds are computed in does not hold every whole number."""
    big, near = kept(t, torch.tensor([2**53 + 1])), 2**53
    t(op, big, -near if "add" in op else near)
    t(op, big, kept(t, torch.tensor([-near if "add" in op else near])))
    t(op, kept(t, torch.tensor([-near if "add" in op else near])), 2**53 + 1)


FILLS = ((torch.int64, 1.9), (torch.int64, -1.9), (torch.int8, 5), (torch.bool, 5), (torch.bool, -0.5), (torch.bool, 0))


@case("aten.full.default", "aten.full_like.default", "aten.new_full.default", "aten.scalar_tensor.default",
      dtypes=ONE, **MIXED)
def filled_with_whole_numbers(t: Tape, op: str) -> None:
    for dtype, number in FILLS:
        size = () if "like" in op or "scalar" in op else ([2, 3],)
        source = (t.input(2, 3),) if "like" in op or "new" in op else ()
        t(op, *source, *size, number, dtype=dtype)


@case("aten.fill.Scalar", "aten.masked_fill.Scalar", dtypes=ONE, **MIXED)
def whole_numbers_overwritten(t: Tape, op: str) -> None:
    condition = t("aten.gt.Scalar", t.input(2, 3), 0.2)
    for dtype, number in FILLS:
        x = kept(t, torch.full((2, 3), 2).to(dtype))
        t(op, x, number) if "masked" not in op else t(op, x, condition, number)


@case("aten.arange.default", "aten.arange.start", "aten.arange.start_step", dtypes=ONE, **MIXED)
def whole_numbers_of_a_range(t: Tape, op: str) -> None:
    args: list[Any] = {"default": [(5.5,)], "start": [(0.5, 5.5), (-0.5, 2.5)]}.get(
        op.rsplit(".", maxsplit=1)[-1], [(5.5, 0.5, -1.5), (0.9, 4.9, 1.9)]
    )
    for numbers in args:
        t(op, *numbers, dtype=torch.int64)


@case("aten.add.Tensor", "aten.add_.Tensor", "aten.mul.Tensor", "aten.mul_.Tensor", "aten.maximum.default",
      "aten.minimum.default", dtypes=ONE, **MIXED)
def truths_and_whole_numbers(t: Tape, op: str) -> None:
    """True + True is True, and 300 is 44 among whole numbers of 8 bits."""
    yes, no = (kept(t, torch.full((3,), truth)) for truth in (True, False))
    maybe, small = t("aten.gt.Scalar", t.input(3), 0.2), kept(t, torch.tensor([60, 70, 100], dtype=torch.int8))
    for first, second in ((yes, yes), (yes, no), (yes, maybe), (small, kept(t, torch.tensor(300))), (small, small)):
        t(op, t("aten.clone.default", first), second)
    if "imum" not in op:
        t(op, t("aten.clone.default", yes), True)
        t(op, t("aten.clone.default", small), 300)


@case("aten.threshold.default", dtypes=ONE, **MIXED)
def a_threshold_of_whole_numbers(t: Tape, op: str) -> None:
    t(op, kept(t, torch.tensor([-1, 0, 1])), -0.5, 7.9)


@case("aten.where.self", "aten.cat.default", dtypes=ONE, **MIXED)
def choices_of_whole_numbers(t: Tape, op: str) -> None:
    condition, small = t("aten.gt.Scalar", t.input(3), 0.2), kept(t, torch.tensor([60, 70, 100], dtype=torch.int8))
    if "where" in op:
        t(op, condition, small, kept(t, torch.tensor(300)))
    else:
        t(op, [small, kept(t, torch.tensor([300]))])


@case("aten._to_copy.default", dtypes=(torch.float64, torch.float32), **MIXED)
def casts_of_known_numbers(t: Tape, op: str) -> None:
    numbers = kept(t, torch.tensor([-2.9, -0.5, 0.0, 0.5, 3.9, 300.5], dtype=t.dtype))
    for dtype in (torch.int64, torch.int16, torch.bool, torch.float32, torch.bfloat16):
        t(op, t(op, numbers, dtype=dtype), dtype=t.dtype)
    t(op, kept(t, torch.tensor([2**53 + 1, 2**24 + 1, -1])), dtype=t.dtype)
    t(op, kept(t, torch.tensor([300, -1, 5])), dtype=torch.uint8)
    t(op, kept(t, torch.tensor([1e39, -7.0], dtype=torch.float64)), dtype=torch.float32)


@case("aten.conv1d.default", dtypes=ONE, **MIXED)
def kernels_of_whole_numbers(t: Tape, op: str) -> None:
    t(op, kept(t, torch.ones(1, 1, 3, dtype=torch.int64)), kept(t, torch.tensor([[[16777217, -16777216]]])))
