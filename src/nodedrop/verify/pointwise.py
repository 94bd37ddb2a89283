"""Elementwise operators on intervals. An operator that is not here, and not among the sums, has an unbounded result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import erf, sqrt

import numpy as np

from .calls import RULES, Args, Call, rule
from .interval import INF, Array, Ball, Value, product, times, unbounded


def _sigmoid(x: Array) -> Array:
    """Never 0 where 1 / (1 + e⁻ˣ) is not."""
    power = np.exp(-np.abs(x))
    return np.asarray(np.where(x < 0, power, 1.0) / (1 + power))


def _soft_clamped(x: Array, beta: float) -> tuple[Array, Array]:
    """SoftClampedReLU before it is cut off at 0, and how far off that can be as computed here."""
    away = beta * np.abs(1 - x)
    far = np.exp(-away)
    y = np.where(x < 1, x, 1) - np.log1p(far) / beta
    return y, 2.0**-50 * (np.minimum(np.abs(x), 1) + np.where(far > 0, far * (away + 4), 0) / beta)


def _gelu(x: Array) -> Array:
    return times(x, (1 + np.vectorize(erf, otypes=[float])(x / sqrt(2))) / 2)


MADE = "zeros ones full new_zeros new_ones new_full zeros_like ones_like full_like"

# Operators that never fall: what they do, and the accuracy of kernels in units of the last place (0: they select).
RISING: dict[str, tuple[Callable[[Array, Args], Array], float]] = {
    "relu": (lambda x, a: np.maximum(x, 0), 0),
    "relu6": (lambda x, a: np.clip(x, 0, 6), 0),
    "sigmoid": (lambda x, a: _sigmoid(x), 8),
    "tanh": (lambda x, a: np.tanh(x), 8),
    "exp": (lambda x, a: np.exp(x), 8),
    "sqrt": (lambda x, a: np.sqrt(np.maximum(x, 0)), 2),
    "hardsigmoid": (lambda x, a: np.clip(x + 3, 0, 6) / 6, 4),
    "floor": (lambda x, a: np.floor(x), 0),
    "celu": (lambda x, a: np.where(x > 0, x, a["alpha"] * np.expm1(np.minimum(x, 0) / a["alpha"])), 16),
}


def _rising(call: Call, a: Args) -> Value:
    x, (function, ulps) = a["self"], RISING[call.op.split(".")[0]]
    with np.errstate(over="ignore", invalid="ignore"):
        lo, hi = function(x.lo, a), function(x.hi, a)
    return Value(lo, hi, call.shape) if ulps == 0 else call.ends(lo, hi, ulps)


RULES.update({f"{name}.default": _rising for name in RISING})
RULES["relu_.default"] = lambda call, a: Value(np.maximum(a["self"].lo, 0), np.maximum(a["self"].hi, 0), call.shape)


@rule("nodedrop.soft_clamped_relu.default")
def _soft(call: Call, a: Args) -> Value:
    """Exactly 0 up to 0, and as far above it as the curve is below 0 by more than a kernel can be off: 32 u.

    Above 0 that is 32 u of the value.
    """
    x, u = a["v"], call.arithmetic.u
    with np.errstate(over="ignore", invalid="ignore"):
        (lo, low_error), (hi, high_error) = (_soft_clamped(end, float(a["beta"])) for end in (x.lo, x.hi))
    lo = lo - low_error - 32 * u * np.clip(lo, 0, 1)
    hi = np.where((x.hi <= 0) | (hi + 32 * u <= 0), 0.0, np.clip(hi + high_error + 32 * u * np.clip(hi, 0, 1), 0, 1))
    return Value(np.maximum(lo, 0), hi, call.shape)


@rule("erf.default")
def _erf(call: Call, a: Args) -> Value:
    """Some kernels use a formula that is off by 10⁻⁷ and more also where the value is far smaller."""
    lo, hi = (np.vectorize(erf, otypes=[float])(end) for end in (a["self"].lo, a["self"].hi))
    return call.ends(lo - 2.0**-20, hi + 2.0**-20, 32)


@rule("hardtanh.default", "clamp.default", "clamp_min.default", "clamp_max.default")
def _clamp(call: Call, a: Args) -> Value:
    x, least, most = a["self"], a.get("min_val", a.get("min")), a.get("max_val", a.get("max"))
    low, high = call.value(-INF if least is None else least), call.value(INF if most is None else most)
    lo = np.minimum(np.maximum(x.lo, low.lo), high.lo)
    return Value(lo, np.minimum(np.maximum(x.hi, low.hi), high.hi), call.shape)


@rule("threshold.default", "threshold_.default")
def _threshold(call: Call, a: Args) -> Value:
    """x above the threshold, else another number: two cases, each where the interval reaches it."""
    x, edge, other = a["self"], call.value(a["threshold"]), call.value(a["value"])
    above, below = x.hi > edge.lo, x.lo <= edge.hi
    lo, hi = np.where(above, np.maximum(x.lo, edge.lo), INF), np.where(above, x.hi, -INF)
    return Value(
        np.where(below, np.minimum(lo, other.lo), lo), np.where(below, np.maximum(hi, other.hi), hi), call.shape
    )


# Operators x·p(x) with 0 ≤ p ≤ 1 that fall to one minimum and rise after it: function, place and depth of the minimum.
VALLEYS: dict[str, tuple[Callable[[Array], Array], float, float]] = {
    "gelu": (_gelu, -0.7517916, -0.1702),
    "silu": (lambda x: times(x, _sigmoid(x)), -1.2784645, -0.27847),
    "hardswish": (lambda x: times(x, np.clip(x + 3, 0, 6) / 6), -1.5, -0.375),
}


def _valley(call: Call, a: Args) -> Value:
    x, name = a["self"], call.op.split(".")[0]
    function, place, depth = VALLEYS[name]
    ends = function(x.lo), function(x.hi)
    around = (x.lo <= place + 1e-3) & (x.hi >= place - 1e-3)
    noise = 32 * call.arithmetic.u * np.minimum(x.size, 64) + (2e-3 if a.get("approximate") == "tanh" else 0)
    found = call.ends(np.where(around, depth, np.minimum(*ends)) - noise, np.maximum(*ends) + noise, 4)
    flat = (x.hi <= -3) & (name == "hardswish")
    return Value(np.where(flat, 0.0, found.lo), np.where(flat, 0.0, found.hi), call.shape)


RULES.update({f"{name}.default": _valley for name in VALLEYS})


@rule("leaky_relu.default", "prelu.default", "elu.default")
def _leaky(call: Call, a: Args) -> Value:
    """Two slopes, or a curve between −|α·scale| and x; the hull of the ends and, where it is crossed, 0."""
    x = a["self"]
    if call.op == "elu.default":
        alpha, scale = float(a["alpha"]), float(a["scale"])
        with np.errstate(over="ignore"):
            ends = [np.where(e > 0, scale * e, scale * alpha * np.expm1(a["input_scale"] * e)) for e in (x.lo, x.hi)]
        sound = alpha >= 0 and scale >= 0 and a["input_scale"] >= 0
        return call.ends(ends[0], ends[1], 16) if sound else unbounded(call.shape)
    slope = a["weight"] if call.op == "prelu.default" else call.value(a["negative_slope"])
    if slope.lo.ndim == 1:
        wide = [-1 if d == 1 else 1 for d in range(len(call.shape))]
        slope = Value(slope.lo.reshape(wide), slope.hi.reshape(wide), ())
    below = product(Value(np.minimum(x.lo, 0), np.minimum(x.hi, 0), x.shape), slope)
    lo = np.where(x.lo > 0, x.lo, np.minimum(below[0], np.maximum(x.lo, 0)))
    hi = np.maximum(np.where(x.lo > 0, 0, below[1]), np.where(x.hi > 0, x.hi, -INF))
    return call.ends(lo, hi, 2)


@rule("add.Tensor", "add_.Tensor", "add.Scalar", "sub.Tensor", "sub.Scalar", "rsub.Scalar", "rsub.Tensor")
def _add(call: Call, a: Args) -> Value:
    x, y, factor = call.value(a["self"]), call.value(a["other"]), float(a.get("alpha", 1))
    if "rsub" in call.op:
        x, y = y, x
    factor = -factor if "sub" in call.op else factor
    low, high = (times(end, factor) for end in ((y.lo, y.hi) if factor >= 0 else (y.hi, y.lo)))
    with np.errstate(invalid="ignore"):
        lo, hi = x.lo + low, x.hi + high
    if abs(factor) != 1:
        noise = 4 * call.arithmetic.u * np.maximum(np.abs(low), np.abs(high))
        lo, hi = lo - noise, hi + noise
    found = call.ends(lo, hi)
    still = (x.zero | y.zero) & (abs(factor) == 1) & ~np.isnan(lo) & ~np.isnan(hi)  # x + 0 is not rounded
    found = Value(np.where(still, lo, found.lo), np.where(still, hi, found.hi), call.shape)
    if x.ball is not None and y.exact and factor == 1 and all(n == 1 for n in y.lo.shape[:-1]):
        found = replace(found, ball=call.rounded(replace(x.ball, shift=x.ball.shift + y.lo.reshape(-1))))
    return found


@rule("mul.Tensor", "mul_.Tensor", "mul.Scalar")
def _mul(call: Call, a: Args) -> Value:
    x, y = call.value(a["self"]), call.value(a["other"])
    found = call.ends(*product(x, y))
    if x is y:
        found = replace(found, lo=np.maximum(found.lo, 0))
    for row, weight in ((x, y), (y, x)):
        if row.ball is not None and weight.exact and all(n == 1 for n in weight.lo.shape[:-1]):
            w, ball = weight.lo.reshape(-1), row.ball
            scaled = Ball(ball.scale * w, ball.shift * w, ball.centred, ball.slack, ball.error * np.abs(w))
            found = replace(found, ball=call.rounded(scaled))
    return found


@rule("div.Tensor", "div.Scalar")
def _div(call: Call, a: Args) -> Value:
    x, y = call.value(a["self"]), call.value(a["other"])
    sound = (y.lo > 0) | (y.hi < 0)
    with np.errstate(divide="ignore"):
        inverse = Value(np.where(sound, 1 / y.hi, -INF), np.where(sound, 1 / y.lo, INF), y.shape)
    lo, hi = product(x, inverse)
    return call.ends(np.where(sound, lo, -INF), np.where(sound, hi, INF), 2)


@rule("abs.default")
def _abs(call: Call, a: Args) -> Value:
    x = a["self"]
    return Value(np.maximum(np.maximum(x.lo, -x.hi), 0), x.size, call.shape)


@rule("fill.Tensor", "fill.Scalar", *(f"{name}.default" for name in MADE.split()))
def _fill(call: Call, a: Args) -> Value:
    """One number everywhere."""
    value, shape = call.value(a.get("value", a.get("fill_value", float("ones" in call.op)))), (1,) * len(call.shape)
    return Value(value.lo.reshape(shape), value.hi.reshape(shape), call.shape)


@rule("neg.default")
def _neg(call: Call, a: Args) -> Value:
    lo = -a["self"].hi
    return Value(lo, lo if a["self"].exact else -a["self"].lo, call.shape)


@rule("maximum.default", "minimum.default")
def _pick(call: Call, a: Args) -> Value:
    pick = np.maximum if "max" in call.op else np.minimum
    return Value(pick(a["self"].lo, a["other"].lo), pick(a["self"].hi, a["other"].hi), call.shape)


@rule("_to_copy.default", "to.dtype", "to.dtype_layout", "to.device")
def _cast(call: Call, a: Args) -> Value:
    """What is read has been converted already."""
    x: Value = a["self"]
    return replace(x, shape=call.shape)


@rule("dropout.default", "feature_dropout.default", "native_dropout.default")
def _dropout(call: Call, a: Args) -> Value:
    """In training mode an element is 0 or divided by 1 − p."""
    x: Value = a["input"]
    p = float(a["p"])
    if a["train"] is False or p == 0:
        return x  # as it is, with all that is known of it
    scale = 1 / (1 - p) if p < 1 else 0.0
    found = call.ends(times(np.minimum(x.lo, 0), scale), times(np.maximum(x.hi, 0), scale), 2)
    return replace(found, mix=None if x.mix is None else x.mix * scale * (1 + 4 * call.arithmetic.u))
