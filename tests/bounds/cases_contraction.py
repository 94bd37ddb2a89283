"""Cases of weighted sums: dense layers, convolutions, matrix products."""

from __future__ import annotations

from typing import Any

import torch
from tests.bounds.cases import case
from tests.oracle import INF, Tape

UNITS = (torch.tensor([-2.0, 0.0, 1.0, -1e-3]), torch.tensor([-1.0, 0.0, 5.0, 1e3]))



def rank_of(op: str) -> int:
    """Spatial axes of an operator, from its name."""
    return int(next(letter for letter in op if letter.isdigit()))


@case("aten.linear.default")
def dense(t: Tape, op: str) -> None:
    for lo, hi in ((-1.0, 2.0), (0.0, 0.0), (0.5, 0.5), (-1e4, 1e3), UNITS, (-INF, INF), (0.0, INF)):
        weight = t.normal(5, 4)
        weight[0] = 0
        weight[1, :2] = 0
        t(op, t.input(3, 4, lo=lo, hi=hi), t.parameter(weight), t.parameter(t.normal(5)))
        t(op, t.input(2, 3, 4, lo=lo, hi=hi), t.parameter(weight))


@case("aten.linear.default")
def dense_wide(t: Tape, op: str) -> None:
    t(op, t.input(3, 200, lo=-3.0, hi=3.0), t.parameter(t.normal(4, 200)), t.parameter(t.normal(4, scale=10)))


@case("aten.linear.default")
def weight_from_the_input(t: Tape, op: str) -> None:
    t(op, t.input(3, 4), t.input(5, 4, lo=-2.0, hi=0.5), t.input(5, lo=0.0, hi=3.0))
    t(op, t.input(3, 4, lo=0.0), t.input(5, 4, lo=0.0, hi=0.5))
    t(op, t.input(3, 4), t.parameter(t.normal(5, 4)), t.input(5))


@case("aten.linear.default")
def weight_made_in_the_forward(t: Tape, op: str) -> None:
    """Known weights that are held compactly: made by `ones`, or expanded."""
    x = t.input(3, 4)
    t(op, x, t("aten.ones.default", [5, 4], dtype=t.dtype), t("aten.zeros.default", [5], dtype=t.dtype))
    t(op, x, t("aten.expand.default", t.parameter(t.normal(5, 1)), [5, 4]))
    t(op, x, t("aten.expand.default", t.parameter(t.normal(1, 4)), [5, 4]))


@case("aten.linear.default")
def subnormal_weights(t: Tape, op: str) -> None:
    small = float(torch.finfo(t.dtype).tiny)
    t(op, t.input(3, 4, lo=0.0), t.parameter(t.normal(5, 4, scale=small)), t.parameter(t.normal(5, scale=small)))


@case("aten.linear.default", dtypes=(torch.float32, torch.float64))
def partial_sums_that_overflow(t: Tape, op: str) -> None:
    """The sum is small, but on the way to it the largest float is passed."""
    top = float(torch.finfo(t.dtype).max)
    weight = torch.tensor([[0.9, 0.9, -0.95, -0.95]], dtype=torch.float64).to(t.dtype) * top
    t(op, t.input(2, 4, lo=1.0, hi=1.0), t.parameter(weight))


@case("aten.matmul.default", "aten.mm.default", "aten.bmm.default")
def products(t: Tape, op: str) -> None:
    lead = (2,) if "bmm" in op else ()
    known = t.parameter(t.normal(*lead, 4, 5))
    t(op, t.input(*lead, 3, 4, lo=-1.0, hi=2.0), known)
    t(op, t.parameter(t.normal(*lead, 3, 4)), t.input(*lead, 4, 5, lo=0.0, hi=2.0))
    t(op, t.input(*lead, 3, 4, lo=-1.0, hi=2.0), t.input(*lead, 4, 5, lo=-3.0, hi=0.5))
    t(op, t.input(*lead, 3, 4, lo=0.0, hi=2.0), t.input(*lead, 4, 5, lo=0.0, hi=INF))
    t(op, t.input(*lead, 3, 4, lo=-INF, hi=INF), t.input(*lead, 4, 5, lo=0.0, hi=0.0))


@case("aten.matmul.default")
def products_of_many_axes(t: Tape, op: str) -> None:
    shapes: Any = (((2, 3, 4), (4, 5)), ((3, 4), (2, 4, 5)), ((2, 1, 3, 4), (6, 4, 5)), ((4,), (4, 5)), ((3, 4), (4,)))
    for first, second in shapes:
        t(op, t.input(*first), t.parameter(t.normal(*second)))
        t(op, t.parameter(t.normal(*first)), t.input(*second))
        t(op, t.input(*first), t.input(*second))


@case("aten.matmul.default")
def mixes(t: Tape, op: str) -> None:
    """Rows of a softmax mix the rows of the value."""
    weights = t("aten.softmax.int", t.input(2, 3, 4, lo=-8.0, hi=8.0), -1)
    t(op, weights, t.input(2, 4, 5, lo=-3.0, hi=-1.0))
    t(op, weights, t.parameter(t.normal(2, 4, 5)))
    t(op, t("aten.transpose.int", weights, 1, 2), t.input(2, 3, 5, lo=1.0, hi=2.0))
    dropped = t("aten.dropout.default", t("aten.softmax.int", t.input(2, 3, 4, lo=-8.0, hi=8.0), -1), 0.5, True)
    t(op, dropped, t.input(2, 4, 5, lo=1.0, hi=2.0))


@case("aten.matmul.default")
def mixes_of_one_table(t: Tape, op: str) -> None:
    """The value has fewer axes than the weights that mix its rows."""
    weights = t("aten.softmax.int", t.input(2, 3, 4, lo=-8.0, hi=8.0), -1)
    t(op, weights, t.input(4, 5, lo=-3.0, hi=-1.0))
    t(op, weights, t.parameter(t.normal(4, 5)))


@case("aten.addmm.default", "aten.baddbmm.default")
def products_with_offset(t: Tape, op: str) -> None:
    lead = (2,) if "baddbmm" in op else ()
    for alpha, beta in ((1, 1), (0.5, 1), (1, -2), (3, 0)):
        x, w = t.input(*lead, 3, 4, lo=-1.0, hi=2.0), t.parameter(t.normal(*lead, 4, 5))
        bias = t.parameter(t.normal(*lead, 3, 5))
        t(op, bias, x, w, **({} if alpha == beta == 1 else {"alpha": alpha, "beta": beta}))
    t(op, t.input(*lead, 1, 5), t.input(*lead, 3, 4), t.input(*lead, 4, 5))


CONVOLUTIONS = ("aten.conv1d.default", "aten.conv2d.default", "aten.conv3d.default")


@case(*CONVOLUTIONS)
def convolutions(t: Tape, op: str) -> None:
    n = rank_of(op)
    per_unit = (UNITS[0].reshape(4, *[1] * n), UNITS[1].reshape(4, *[1] * n))
    for lo, hi in ((-1.0, 2.0), (0.5, 1.0), (-INF, INF), (0.0, INF), per_unit):
        for groups, padding in ((1, 0), (2, 1), (4, 0)):
            weight = t.normal(8, 4 // groups, *[3] * n)
            weight[0] = 0
            x, w, b = t.input(2, 4, *[4] * n, lo=lo, hi=hi), t.parameter(weight), t.parameter(t.normal(8))
            t(op, x, w, b, [1] * n, [padding] * n, [1] * n, groups)
        t(op, x, t.parameter(t.normal(2, 4, *[2] * n)), None, [2] * n, [1] * n, [2] * n)


@case(*CONVOLUTIONS)
def convolution_of_one_sample(t: Tape, op: str) -> None:
    n = rank_of(op)
    t(op, t.input(4, *[4] * n), t.parameter(t.normal(3, 4, *[2] * n)), t.parameter(t.normal(3)))


@case(*CONVOLUTIONS)
def kernel_made_in_the_forward(t: Tape, op: str) -> None:
    """A blur: one known kernel, expanded or repeated to every channel."""
    n = rank_of(op)
    x, blur = t.input(2, 4, *[4] * n), t.parameter(t.normal(1, 1, *[3] * n))
    t(op, x, t("aten.repeat.default", blur, [4, 1, *[1] * n]), None, [1] * n, [1] * n, [1] * n, 4)
    t(op, x, t("aten.expand.default", blur, [4, 1, *[3] * n]), None, [1] * n, [0] * n, [1] * n, 4)
    ones = t("aten.ones.default", [4, 1, *[3] * n], dtype=t.dtype)
    t(op, x, ones, t("aten.zeros.default", [4], dtype=t.dtype), [1] * n, [0] * n, [1] * n, 4)
    t(op, x, t("aten.ones.default", [2, 4, *[3] * n], dtype=t.dtype))


@case(*CONVOLUTIONS)
def small_tap_beside_a_large_one(t: Tape, op: str) -> None:
    """The negative part of a kernel must not be lost in the rounding of its sum."""
    n = rank_of(op)
    weight = torch.zeros(1, 1, *[2] * n, dtype=torch.float64)
    weight.view(-1)[0], weight.view(-1)[1] = 1.0, -2.0**-60
    t(op, t.input(2, 1, *[2] * n, lo=-1.0, hi=0.0), t.parameter(weight))
    t(op, t.input(2, 1, *[2] * n, lo=0.0, hi=1.0), t.parameter(weight))


@case("aten.conv1d.padding", "aten.conv2d.padding", "aten.conv3d.padding")
def named_padding(t: Tape, op: str) -> None:
    n = rank_of(op)
    for padding in ("same", "valid"):
        x = t.input(2, 4, *[5] * n, lo=1.0, hi=2.0)
        t(op, x, t.parameter(t.normal(3, 4, *[3] * n)), t.parameter(t.normal(3)), [1] * n, padding)
        t(op, x, t.parameter(t.normal(4, 2, *[3] * n)), None, [1] * n, padding, [2] * n, 2)


@case("aten.convolution.default")
def general_convolutions(t: Tape, op: str) -> None:
    for transposed in (False, True):
        for groups, padding in ((1, 0), (2, 1)):
            shape = (4, 6 // groups, 3, 3) if transposed else (6, 4 // groups, 3, 3)
            args: Any = ([2, 2], [padding] * 2, [1, 1], transposed, [1 if transposed else 0] * 2, groups)
            x = t.input(2, 4, 4, 4, lo=0.5, hi=2.0)
            t(op, x, t.parameter(t.normal(*shape)), t.parameter(t.normal(6)), *args)


@case("aten.conv_transpose1d.default", "aten.conv_transpose2d.input", "aten.conv_transpose3d.input")
def transposed_convolutions(t: Tape, op: str) -> None:
    n = rank_of(op)
    for lo, hi in ((-1.0, 2.0), (0.5, 1.0), (-INF, INF)):
        for groups, stride, padding, extra, dilation in ((1, 1, 0, 0, 1), (2, 2, 1, 1, 1), (4, 3, 0, 1, 2)):
            x, w = t.input(2, 4, *[3] * n, lo=lo, hi=hi), t.parameter(t.normal(4, 2, *[3] * n))
            bias = t.parameter(t.normal(2 * groups))
            t(op, x, w, bias, [stride] * n, [padding] * n, [extra] * n, groups, [dilation] * n)
        t(op, x, w)


@case("aten.einsum.default")
def sums_by_letters(t: Tape, op: str) -> None:
    t(op, "bhid,bhjd->bhij", [t.input(2, 2, 3, 4, lo=-1.0, hi=2.0), t.input(2, 2, 3, 4)])
    t(op, "bchw,bchw->b", [t.input(2, 3, 4, 4, lo=0.0), t.input(2, 3, 4, 4, lo=0.0, hi=3.0)])
    t(op, "...i,ij->...j", [t.input(2, 3, 4), t.parameter(t.normal(4, 5))])
    t(op, "bi,bj->bij", [t.input(2, 3), t.input(2, 4, lo=-INF, hi=INF)])
    t(op, "ii->i", [t.input(3, 3)])
