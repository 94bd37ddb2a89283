"""Cases of elementwise operators."""

from __future__ import annotations

from typing import Any

import torch
from tests.bounds.cases import case, elementwise
from tests.oracle import INF, Tape

elementwise(
    "aten.relu.default", "aten.relu6.default", "aten.hardtanh.default", "aten.sigmoid.default", "aten.tanh.default",
    "aten.erf.default", "aten.atan.default", "aten.floor.default", "aten.ceil.default", "aten.round.default",
    "aten.trunc.default", "aten.sign.default", "aten.softplus.default", "aten.log_sigmoid.default", "aten.elu.default",
    "aten.celu.default", "aten.selu.default", "aten.hardsigmoid.default", "aten.gelu.default", "aten.silu.default",
    "aten.mish.default", "aten.hardswish.default", "aten.abs.default", "aten.leaky_relu.default", "aten.neg.default",
    "aten.exp.default", "aten.expm1.default", "aten.sin.default", "aten.cos.default", "aten.square.default",
    "aten.reciprocal.default",
)
POSITIVE = ("one side", "a point", "zero")
elementwise("aten.log.default", "aten.log1p.default", "aten.sqrt.default", "aten.rsqrt.default", boxes=POSITIVE)
elementwise("aten.hardtanh.default", args=(0.0, 1.0))
elementwise("aten.hardtanh.default", args=(-0.1, 0.3))
elementwise("aten.clamp.default", args=(-0.5,))
elementwise("aten.clamp.default", args=(None, 0.7))
elementwise("aten.clamp.default", args=(0.1, 0.3))
elementwise("aten.clamp.default", args=(1.0, -1.0))
elementwise("aten.clamp_min.default", args=(0.1,))
elementwise("aten.clamp_max.default", args=(-0.3,))
elementwise("aten.threshold.default", args=(0.1, -20.0))
elementwise("aten.threshold.default", args=(0.5, 0.1))
elementwise("aten.threshold.default", args=(-1.0, 3.0))
elementwise("aten.softplus.default", args=(3.0, 1.0))
elementwise("aten.softplus.default", args=(0.1, 20.0))
elementwise("aten.elu.default", args=(0.3,))
elementwise("aten.elu.default", args=(1.5, 1.2, 0.4))
elementwise("aten.celu.default", args=(0.2,))
elementwise("aten.gelu.default", approximate="tanh")
elementwise("aten.leaky_relu.default", args=(0.3,))
elementwise("aten.leaky_relu.default", args=(-0.5,))
elementwise("aten.leaky_relu.default", args=(0.0,))
elementwise("aten.leaky_relu.default", args=(2.5,))
elementwise("nodedrop.soft_clamped_relu.default", args=(10.0,))
elementwise("nodedrop.soft_clamped_relu.default", args=(3.0,))
for power in (0, 1, 2, 3, 5, -1, 2.0, 0.5):
    elementwise("aten.pow.Tensor_Scalar", args=(power,))
for power in (-2, -0.5, 1.7):
    elementwise("aten.pow.Tensor_Scalar", args=(power,), boxes=("one side", "a point"))

elementwise("aten.add.Tensor", "aten.sub.Tensor", "aten.add.Scalar", "aten.sub.Scalar", "aten.rsub.Scalar",
            args=(0.1,), boxes=("both signs", "negative", "zero", "huge", "open"))
elementwise("aten.mul.Tensor", "aten.mul.Scalar", args=(-0.3,), boxes=("both signs", "per unit", "huge", "open above"))
elementwise("aten.mul.Tensor", args=(0,))
elementwise("aten.div.Tensor", "aten.div.Scalar", args=(-7,), boxes=("both signs", "per unit", "huge", "open above"))
elementwise("aten.div.Tensor", args=(0.1,))


@case("aten.pow.Tensor_Scalar", samples=2, climbs=0)
def large_powers(t: Tape, op: str) -> None:
    """Some kernels take logarithms, so that the result is off by the size of its exponent."""
    top = float(torch.finfo(t.dtype).max)
    for power in (2.6, 4, 20, -2.6):
        x = torch.linspace(top ** (0.9 / abs(power)), top ** (0.99 / abs(power)), 4096, dtype=torch.float64).to(t.dtype)
        off = (x**power).double() / x.double() ** power - 1
        for worst in (off.argmax(), off.argmin()):
            t(op, t.input(64, lo=float(x[worst]), hi=float(x[worst])), power)


@case("aten.softplus.default", samples=2, climbs=0)
def products_before_an_exponential(t: Tape, op: str) -> None:
    """β·x is rounded, so that e^{βx} is off by far more than its own rounding."""
    x = torch.linspace(-26.0, -1.0, 4096).to(t.dtype)
    real = torch.logaddexp(torch.zeros((), dtype=torch.float64), 3 * x.double()) / 3
    off = torch.nn.functional.softplus(x, beta=3.0).double() / real - 1
    for worst in (off.argmax(), off.argmin()):
        t(op, t.input(64, lo=float(x[worst]), hi=float(x[worst])), 3.0)


@case("aten.relu_.default", "aten.threshold_.default")
def overwritten(t: Tape, op: str) -> None:
    x = t("aten.clone.default", t.input(2, 3, lo=-2.0, hi=1.0))
    t(op, x) if "relu" in op else t(op, x, 0.5, -1.0)


@case("aten.clamp.default", "aten.hardtanh.default")
def bound_between_floats(t: Tape, op: str) -> None:
    """0.1 is no float: the result is the nearest one, above or below it."""
    t(op, t.input(2, 3, lo=0.0, hi=1.0), 0.0, 0.1)
    t(op, t.input(2, 3, lo=-1.0, hi=0.0), -0.1, 0.0)


@case("aten.threshold.default")
def at_the_threshold(t: Tape, op: str) -> None:
    edge = torch.tensor(0.1, dtype=t.dtype).double()
    t(op, t.input(2, 3, lo=edge, hi=1.0), 0.1, -20.0)


@case("aten.softplus.default")
def around_the_threshold(t: Tape, op: str) -> None:
    """The kernel returns x above the threshold, a step down from log(1 + eˣ)."""
    t(op, t.input(32, 3, lo=19.99999, hi=20.00001))
    t(op, t.input(32, 3, lo=0.875, hi=1.125), 1.0, 1.0)


@case("aten.gelu.default", "aten.silu.default", "aten.mish.default", "aten.hardswish.default")
def far_below_zero(t: Tape, op: str) -> None:
    """1 + erf(x/√2) cancels, so the relative error is large there."""
    t(op, t.input(64, 3, lo=-6.0, hi=-3.0))
    t(op, t.input(64, 3, lo=-5.5, hi=-5.25))


@case("aten.gelu.default")
def far_below_zero_by_tanh(t: Tape, op: str) -> None:
    t(op, t.input(64, 3, lo=-6.0, hi=-3.0), approximate="tanh")


@case("aten.hardswish.default", "aten.hardsigmoid.default")
def near_minus_three(t: Tape, op: str) -> None:
    """The upper end must not round to zero while the result is a small number above it."""
    tip = torch.tensor(-3.0, dtype=t.dtype)
    step = float(torch.finfo(t.dtype).eps)
    for k in (1, 2, 3, 5, 7, 100):
        t(op, t.input(3, lo=-4.0, hi=float((tip.double() + 2 * k * step).to(t.dtype))))


@case("aten.gelu.default", "aten.silu.default", "aten.mish.default", "aten.hardswish.default")
def at_the_bottom(t: Tape, op: str) -> None:
    t(op, t.input(200, 3, lo=-2.0, hi=-0.5))
    if "gelu" in op:
        t(op, t.input(200, 3, lo=-2.0, hi=-0.5), approximate="tanh")


@case("aten.prelu.default", "aten._prelu_kernel.default")
def slopes(t: Tape, op: str) -> None:
    weight = torch.tensor([0.25, -0.5, 0.0, 2.0])
    for lo, hi in ((-2.0, 3.0), (-3.0, -1.0), (-INF, 1.0)):
        x = t.input(2, 4, 3, lo=lo, hi=hi)
        t(op, x, t.parameter(weight if op == "aten.prelu.default" else weight.reshape(1, 4, 1)))


@case("aten.prelu.default")
def slopes_from_the_input(t: Tape, op: str) -> None:
    """A slope that is itself a value: any number of its interval."""
    t(op, t.input(2, 4, 3, lo=-2.0, hi=3.0), t.input(4, lo=-1.0, hi=1.0))


@case("aten.mul.Tensor", "aten.mul_.Tensor", "aten.add.Tensor", "aten.add_.Tensor", "aten.sub.Tensor",
      "aten.maximum.default", "aten.minimum.default")
def two_values(t: Tape, op: str) -> None:
    for first, second in (((-1.0, 2.0), (-3.0, 0.5)), ((0.0, 0.0), (-INF, INF)), ((-2.0, -1.0), (1.0, 4.0))):
        x = t.input(2, 3, lo=first[0], hi=first[1])
        x = t("aten.clone.default", x) if op.split(".")[1].endswith("_") else x
        t(op, x, t.input(3, lo=second[0], hi=second[1]))


@case("aten.add.Tensor", "aten.sub.Tensor", "aten.add_.Tensor")
def scaled_second(t: Tape, op: str) -> None:
    """x + α·y where both nearly cancel: the error is that of the terms, not of the sum."""
    y = t.normal(64, 3)
    sign = 1 if "sub" in op else -1
    for alpha in (2, -1, 0.3, -1.7):
        x = (sign * alpha * y.double()).to(t.dtype)
        known = t("aten.clone.default", t.input(64, 3, lo=x.double(), hi=x.double()))
        t(op, known, t.input(64, 3, lo=y.double(), hi=y.double()), alpha=alpha)
        t(op, t("aten.clone.default", t.input(64, 3)), t.input(64, 3, lo=-2.0, hi=0.5), alpha=alpha)


@case("aten.add.Tensor", "aten.sub.Tensor", "aten.rsub.Scalar")
def number_that_cancels(t: Tape, op: str) -> None:
    """0.1 − 0.1 is zero among floats, not the distance of 0.1 to its nearest one."""
    edge = torch.tensor(0.1, dtype=t.dtype).double()
    t(op, t.input(2, 3, lo=edge, hi=edge), -0.1 if "add" in op else 0.1)


@case("aten.mul.Tensor")
def square_of_one_value(t: Tape, op: str) -> None:
    x = t.input(4, 3, lo=-2.0, hi=1.0)
    t(op, x, x)
    y = t.input(4, 3, lo=-3.0, hi=-1.0)
    t(op, y, y)


@case("aten.mul.Tensor")
def rms_by_hand(t: Tape, op: str) -> None:
    x = t.input(4, 6, lo=-INF, hi=INF)
    mean = t("aten.mean.dim", t("aten.pow.Tensor_Scalar", x, 2), [-1], True)
    normal = t(op, x, t("aten.rsqrt.default", t("aten.add.Tensor", mean, 1e-6)))
    scaled = t(op, normal, t.parameter(t.normal(6)))
    t("aten.linear.default", t("aten.add.Tensor", scaled, t.parameter(t.normal(6))), t.parameter(t.normal(5, 6)))


@case("aten.mul.Tensor")
def no_rms_without_keepdim(t: Tape, op: str) -> None:
    """Rows are divided by the norms of other rows: nothing is normalised."""
    x = t.input(6, 6, lo=-4.0, hi=4.0)
    mean = t("aten.mean.dim", t("aten.pow.Tensor_Scalar", x, 2), [-1])
    normal = t(op, x, t("aten.rsqrt.default", t("aten.add.Tensor", mean, 1e-6)))
    t("aten.linear.default", normal, t.parameter(torch.eye(6)))


@case("aten.div.Tensor", "aten.div_.Tensor", "aten.true_divide.Tensor")
def quotients(t: Tape, op: str) -> None:
    for lo, hi in ((0.5, 4.0), (-3.0, -0.1), (-1.0, 2.0), (0.0, 1.0)):
        x = t("aten.clone.default", t.input(4, 3, lo=-2.0, hi=3.0))
        t(op, x, t.input(4, 3, lo=lo, hi=hi))


@case("aten.glu.default")
def gates(t: Tape, op: str) -> None:
    t(op, t.input(2, 6, lo=-3.0, hi=1.0))
    t(op, t.input(2, 4, 3, lo=torch.tensor([[[-2.0], [1.0], [0.0], [-9.0]]]), hi=3.0), 1)


@case("aten.sin.default", "aten.cos.default")
def known_angles(t: Tape, op: str) -> None:
    t(op, t.parameter(torch.linspace(-40, 40, 333)))
    t(op, t.parameter(torch.tensor([3.14159274, 1.57079637, 1e4])))


@case("aten.relu.default", "aten.round.default", "aten.sign.default")
def integers(t: Tape, op: str) -> None:
    t(op, t.parameter(torch.arange(-3, 4)))


@case("aten.add.Tensor", "aten.mul.Tensor")
def integers_and_numbers(t: Tape, op: str) -> None:
    x = t(op, t.parameter(torch.arange(-3, 4)), 3)
    t(op, x, t.input(7, lo=-1.0, hi=1.0))


def _infinite_mask(size: int) -> torch.Tensor:
    return torch.full((size, size), -INF).triu(1)


@case("aten.add.Tensor")
def infinite_mask(t: Tape, op: str) -> None:
    masked = t(op, t.input(2, 4, 4, lo=-2.0, hi=2.0), t.parameter(_infinite_mask(4)))
    t("aten.mul.Tensor", masked, 0.5)
    t("aten.softmax.int", masked, -1)


@case("aten.add.Tensor", "aten.mul.Tensor", dtypes=(torch.float32, torch.float16, torch.bfloat16))
def beyond_the_largest_float(t: Tape, op: str) -> None:
    top = float(torch.finfo(t.dtype).max)
    x: Any = t.input(2, 3, lo=top / 2, hi=top)
    t(op, x, t.input(2, 3, lo=top / 2, hi=top))
