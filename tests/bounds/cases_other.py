"""Cases of operators that make values, reduce them, drop some, attend, or recur."""

from __future__ import annotations

from typing import Any

import torch
from tests.bounds.cases import case
from tests.oracle import INF, Tape

FULL = (torch.float64, torch.float32)
UNITS = (torch.tensor([[-2.0], [0.0], [1.0]]), torch.tensor([[-1.0], [0.0], [7.0]]))


@case("aten.full.default", "aten.full_like.default", "aten.new_full.default")
def filled(t: Tape, op: str) -> None:
    for number in (0.5, 0.1, -0.3, 7, True):
        size = () if "like" in op else ([2, 3],)
        source = () if op == "aten.full.default" else (t.input(2, 3),)
        t(op, *source, *size, number, dtype=t.dtype)


@case("aten.zeros.default", "aten.ones.default", "aten.rand.default", "aten.randn.default", "aten.empty.memory_format")
def made(t: Tape, op: str) -> None:
    t(op, [2, 3], dtype=t.dtype)


@case("aten.zeros_like.default", "aten.ones_like.default", "aten.rand_like.default", "aten.randn_like.default",
      "aten.empty_like.default", "aten.zero.default")
def made_like_another(t: Tape, op: str) -> None:
    t(op, t.input(2, 3))


@case("aten.new_zeros.default", "aten.new_ones.default", "aten.new_empty.default")
def made_by_another(t: Tape, op: str) -> None:
    t(op, t.input(2, 3), [4, 5])


@case("aten.scalar_tensor.default")
def numbers(t: Tape, op: str) -> None:
    for number in (0.5, 0.1, -0.7, 3):
        t(op, number, dtype=t.dtype)


@case("aten.arange.default", "aten.arange.start", "aten.arange.start_step")
def ranges(t: Tape, op: str) -> None:
    args: list[Any] = {"default": [(5,), (0.35,)], "start": [(-2, 3), (-0.1, 1.0)]}.get(
        op.rsplit(".", maxsplit=1)[-1], [(1, 1.3, 0.1), (5, -5, -2), (-0.7, 0.7, 0.1)]
    )
    for numbers in args:
        t(op, *numbers, dtype=t.dtype)
        t(op, *numbers)


@case("aten.fill.Scalar", "aten.fill.Tensor")
def overwritten_by_a_number(t: Tape, op: str) -> None:
    x = t.input(2, 3)
    for number in (0.1, -2.0):
        t(op, x, number if "Scalar" in op else t.parameter(torch.tensor(number)))
    if "Tensor" in op:
        t(op, x, t("aten.sum.default", t.input(3, lo=1.0, hi=2.0)))


@case("aten.bernoulli.default", "aten.bernoulli.p")
def coins(t: Tape, op: str) -> None:
    t(op, t.input(4, 3, lo=0.0, hi=1.0), *((0.3,) if op.endswith("p") else ()))


@case(*(f"aten.{name}.{kind}" for name in ("eq", "ne", "lt", "le", "gt", "ge") for kind in ("Scalar", "Tensor")))
def comparisons(t: Tape, op: str) -> None:
    t(op, t.input(4, 3), 0.0 if "Scalar" in op else t.input(3))


@case("aten.logical_not.default", "aten.logical_and.default", "aten.logical_or.default", "aten.logical_xor.default",
      "aten.isnan.default", "aten.isinf.default", "aten.any.default", "aten.all.default", "aten.any.dim",
      "aten.all.dim", "aten.any.dims", "aten.argmax.default", "aten.argsort.default", "aten.bitwise_not.default",
      "aten.bitwise_and.Tensor", "aten.bitwise_or.Tensor", "aten.bitwise_xor.Tensor", "aten.cumsum.default")
def truths(t: Tape, op: str) -> None:
    x, y = t.input(4, 3), t.input(4, 3)
    if "bitwise" in op:
        x, y = t("aten.gt.Scalar", x, 0.0), t("aten.lt.Scalar", y, 0.3)
    extra = {"aten.any.dim": (1,), "aten.all.dim": (0,), "aten.any.dims": ([0, 1],), "aten.cumsum.default": (0,)}
    two = any(word in op for word in ("_and", "_or", "_xor"))
    t(op, x, *((y,) if two else extra.get(op, ())))
    if "bitwise" in op:
        number = t.parameter(torch.tensor([5, -9, 12]))
        t(op, number, *((t.parameter(torch.tensor([3, 7, -2])),) if two else ()))


@case("aten.randint.low")
def random_numbers(t: Tape, op: str) -> None:
    t(op, 2, 9, [4, 3])


@case("aten.embedding.default")
def look_ups(t: Tape, op: str) -> None:
    table = t.normal(7, 4)
    table[3] = 0
    t(op, t.parameter(table), t.tensor_input(torch.tensor([[0, 3, 6], [2, 2, 5]])))
    t(op, t.parameter(table), t.tensor_input(torch.arange(7)), 3)


DROPOUTS = ("aten.dropout.default", "aten.native_dropout.default", "aten.feature_dropout.default",
            "aten.dropout_.default")


@case(*DROPOUTS, samples=12)
def dropped(t: Tape, op: str) -> None:
    for lo, hi in ((1.0, 2.0), (-3.0, -1.0), (0.0, 0.0), (-INF, INF)):
        for p, training in ((0.5, True), (0.9, True), (0.1, True), (0.0, True), (0.5, False), (1.0, True)):
            if p < 1 or hi < INF:
                t(op, t("aten.clone.default", t.input(4, 3, 2, lo=lo, hi=hi)), p, training)


@case("aten.native_dropout.default")
def dropped_by_default(t: Tape, op: str) -> None:
    t(op, t.input(4, 3, lo=1.0, hi=2.0), 0.5, None)


@case("aten.scaled_dot_product_attention.default", samples=8)
def attention(t: Tape, op: str) -> None:
    for lo, hi in ((-3.0, -1.0), (0.5, 2.0), (-1.0, 4.0), (-INF, INF)):
        q, k = t.input(2, 2, 3, 4, lo=-9.0, hi=9.0), t.input(2, 2, 5, 4, lo=-9.0, hi=9.0)
        v = t.input(2, 2, 5, 4, lo=lo, hi=hi)
        t(op, q, k, v)
        t(op, q, k, v, None, 0.3)
        t(op, q, k, v, None, 0.0, True)
        t(op, q, k, v, t.tensor_input(torch.tensor([[True, False, True, False, False], [False] * 5, [True] * 5])))
        t(op, q, k, v, t.parameter(torch.full((3, 5), -INF).triu(1)), scale=2.0)


@case("aten.scaled_dot_product_attention.default", dtypes=FULL)
def attention_of_other_shapes(t: Tape, op: str) -> None:
    per_unit = torch.tensor([-4.0, -3.0, 2.0])
    q, k, v = t.input(2, 4, 3, 4), t.input(2, 2, 5, 4), t.input(2, 2, 5, 3, lo=per_unit, hi=per_unit + 1)
    t(op, q, k, v, enable_gqa=True)
    t(op, t.input(3, 4), t.input(5, 4), t.input(5, 3, lo=per_unit, hi=per_unit + 1))
    t(op, t.input(2, 3, 4), t.input(1, 5, 4), t.input(1, 5, 3, lo=per_unit, hi=per_unit + 1))
    heads = torch.tensor([1.0, 5.0]).reshape(2, 1, 1)
    t(op, q, k, t.input(2, 2, 5, 3, lo=heads, hi=heads + 1), enable_gqa=True)


@case("aten.where.self", "aten.where.ScalarSelf", "aten.where.ScalarOther", "aten.where.Scalar")
def choices(t: Tape, op: str) -> None:
    condition = t("aten.gt.Scalar", t.input(2, 4, 3), 0.2)
    x, y = t.input(4, 3, lo=1.0, hi=2.0), t.input(3, lo=torch.tensor([-3.0, 0.0, 9.0]), hi=9.0)
    kind = op.rsplit(".", maxsplit=1)[-1]
    t(op, condition, -0.1 if kind in ("ScalarSelf", "Scalar") else x, 0.1 if kind in ("ScalarOther", "Scalar") else y)


@case("aten.masked_fill.Scalar", "aten.masked_fill.Tensor")
def fills(t: Tape, op: str) -> None:
    condition = t("aten.gt.Scalar", t.input(2, 4, 3), 0.2)
    for number in (0.1, -INF, 7.0):
        fill = number if "Scalar" in op else t.parameter(torch.tensor(number))
        t(op, t.input(4, 3, lo=torch.tensor([1.0, 2.0, 3.0]), hi=4.0), condition, fill)


@case("aten.softmax.int", "aten._softmax.default", "aten._safe_softmax.default", "aten.log_softmax.int",
      "aten._log_softmax.default")
def shares(t: Tape, op: str) -> None:
    for lo, hi in ((-2.0, 3.0), (0.0, 0.0), (-1e4, 1e4)):
        for axis in (-1, 1, 0):
            half_to_float = (False,) if "._" in op and "safe" not in op else ()
            t(op, t.input(2, 5, 7, lo=lo, hi=hi), axis, *half_to_float)


@case("aten.sum.dim_IntList", "aten.mean.dim", "aten.amax.default", "aten.amin.default")
def reductions(t: Tape, op: str) -> None:
    for lo, hi in ((-1.0, 2.0), UNITS, (-INF, 0.0), (0.0, 0.0), (-3.0, -2.0), (0.0, INF)):
        x = t.input(2, 3, 4, lo=lo, hi=hi)
        for axes in ([1], [-1], [0, 2], [0, 1, 2], []):
            for keep in (False, True):
                t(op, x, axes, keep)


@case("aten.sum.default", "aten.mean.default", "aten.max.default", "aten.min.default")
def reductions_to_a_number(t: Tape, op: str) -> None:
    for lo, hi in ((-1.0, 2.0), UNITS, (-INF, 0.0)):
        t(op, t.input(2, 3, 4, lo=lo, hi=hi))


@case("aten.max.dim", "aten.min.dim")
def reductions_with_place(t: Tape, op: str) -> None:
    for lo, hi in ((-1.0, 2.0), UNITS):
        for axis, keep in ((1, False), (-1, True), (0, False)):
            t(op, t.input(2, 3, 4, lo=lo, hi=hi), axis, keep)


@case("aten.sum.dim_IntList", "aten.mean.dim")
def sums_that_cancel(t: Tape, op: str) -> None:
    base = torch.tensor([1e4, -1e4, 1e-3, -1e-3]).repeat(16)
    t(op, t.input(3, 64, lo=base, hi=base + 1e-4 * base.abs()), [1])


@case("aten.sum.dim_IntList", "aten.mean.dim", "aten.avg_pool1d.default", dtypes=FULL)
def sums_beyond_the_largest_float(t: Tape, op: str) -> None:
    top = float(torch.finfo(t.dtype).max)
    x = t.input(2, 3, 4, lo=top / 2, hi=top)
    t(op, x, [2])


MAX_POOLS = ("aten.max_pool1d.default", "aten.max_pool2d.default", "aten.max_pool3d.default",
             "aten.max_pool2d_with_indices.default", "aten.max_pool3d_with_indices.default")


def spatial_rank(op: str) -> int:
    """Spatial axes of an operator, from its name."""
    return int(next(letter for letter in op if letter.isdigit()))


def per_unit(rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A box for each of three units."""
    return UNITS[0].reshape(3, *[1] * rank), UNITS[1].reshape(3, *[1] * rank)


@case(*MAX_POOLS)
def largest_in_windows(t: Tape, op: str) -> None:
    n = spatial_rank(op)
    for shape in ((2, 3, *[5] * n), (3, *[5] * n)):
        for padding, dilation, ceil in ((0, 1, False), (1, 1, True), (1, 2, False)):
            lo, hi = per_unit(n)
            t(op, t.input(*shape, lo=lo, hi=hi), [3] * n, [2] * n, [padding] * n, [dilation] * n, ceil)


@case(*(op for op in MAX_POOLS if spatial_rank(op) < 3), dtypes=FULL)  # torch's own 3-d kernel does not survive it
def windows_that_miss_every_value(t: Tape, op: str) -> None:
    """A dilated window can step over a small input: only padding is left, −∞."""
    n = spatial_rank(op)
    t(op, t.input(2, 3, *[3] * n, lo=1.0, hi=2.0), [2] * n, [1] * n, [1] * n, [4] * n)


@case("aten.adaptive_max_pool1d.default", "aten.adaptive_max_pool2d.default", "aten.adaptive_max_pool3d.default",
      "aten.adaptive_avg_pool1d.default", "aten.adaptive_avg_pool2d.default", "aten.adaptive_avg_pool3d.default",
      "aten._adaptive_avg_pool2d.default")
def windows_to_size(t: Tape, op: str) -> None:
    n = spatial_rank(op)
    lo, hi = per_unit(n)
    for size in (1, 2, 3, 7):
        t(op, t.input(2, 3, *[5] * n, lo=lo, hi=hi), [size] * n)
        t(op, t.input(3, *[5] * n, lo=-1.0, hi=3.0), [size] * n)


@case("aten.avg_pool1d.default", "aten.avg_pool2d.default", "aten.avg_pool3d.default")
def averages(t: Tape, op: str) -> None:
    n = spatial_rank(op)
    windows = ((0, False, True), (1, False, True), (1, True, True), (1, True, False), (0, True, True))
    for lo, hi in (per_unit(n), (1.0, 2.0), (-2.0, -1.0)):
        for padding, ceil, count in windows:
            for divisor in (None,) if n == 1 else (None, 1, 2, 30):
                x = t.input(2, 3, *[4] * n, lo=lo, hi=hi)
                t(op, x, [3] * n, [2] * n, [padding] * n, ceil, count, *(() if n == 1 else (divisor,)))


@case("aten.avg_pool2d.default", "aten.avg_pool3d.default")
def averages_by_a_negative_number(t: Tape, op: str) -> None:
    n = spatial_rank(op)
    t(op, t.input(2, 3, *[4] * n, lo=1.0, hi=2.0), [2] * n, [2] * n, [0] * n, False, True, -2)


@case("aten.avg_pool2d.default", "aten.max_pool2d.default")
def windows_given_by_one_number(t: Tape, op: str) -> None:
    """A list of one number stands for all axes."""
    x = t.input(2, 3, 4, 4, lo=1.0, hi=2.0)
    t(op, x, [2], [2], [0], False, True, 1) if "avg" in op else t(op, x, [2])


def recurrent_weights(t: Tape, gates: int, inputs: int, units: int) -> list[Any]:
    """Weights and biases of one layer."""
    shapes = ((gates * units, inputs), (gates * units, units), (gates * units,), (gates * units,))
    return [t.parameter(t.normal(*shape)) for shape in shapes]


@case("aten.lstm.input", "aten.gru.input", "aten.rnn_tanh.input", "aten.rnn_relu.input")
def recurrence(t: Tape, op: str) -> None:
    kind = op.split(".")[1]
    weights = recurrent_weights(t, {"lstm": 4, "gru": 3}.get(kind, 1), 3, 2)
    for lo, hi in ((-1.0, 2.0), (-50.0, 50.0)):
        x = t.input(2, 6, 3, lo=lo, hi=hi)
        first = t.input(1, 2, 2, lo=-3.0, hi=3.0)
        state: Any = [first, t.input(1, 2, 2)] if kind == "lstm" else first
        t(op, x, state, weights, True, 1, 0.0, False, False, True)


@case("aten.lstm.input", dtypes=FULL)
def projected_recurrence(t: Tape, op: str) -> None:
    shapes = ((12, 4), (12, 2), (12,), (12,), (2, 3))
    weights = [t.parameter(t.normal(*shape, scale=3.0)) for shape in shapes]
    state = [t.input(1, 2, 2), t.input(1, 2, 3)]
    t(op, t.input(2, 6, 4, lo=-5.0, hi=5.0), state, weights, True, 1, 0.0, False, False, True)
