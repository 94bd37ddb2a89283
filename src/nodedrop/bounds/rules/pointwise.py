"""Elementwise operators: monotone ones map end to end, the rest are treated one by one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from ...functional import soft_clamped_relu
from ...tracing.graph import Node, Ref
from ..interval import INF, Ball, Interval
from ..registry import RULES, Context, Result, rule
from .normalisation import LEAST, normalised

Function = Callable[[Tensor, Node], Tensor]

# More than any rounding that counts as a constant, in every precision.
TOUCH, TINY = 2.0**-4, float(torch.finfo(torch.float64).tiny)
# What e^{e·log x} is off by if the exponent is rounded to single precision: it is below 104, or the result is 0 or ∞.
FAR = 2.0**-15

# Operators that never decrease, evaluated at both ends; the number is the accuracy of common kernels in ulps,
# 0 for those that select or clamp and so never round.
INCREASING: dict[str, tuple[Function, float]] = {
    "aten.relu.default": (lambda x, n: x.clamp(min=0), 0),
    "aten.relu_.default": (lambda x, n: x.clamp(min=0), 0),
    "aten.relu6.default": (lambda x, n: x.clamp(0, 6), 0),
    "aten.hardtanh.default": (lambda x, n: x.clamp(n.arg(1, "min_val", -1), n.arg(2, "max_val", 1)), 0),
    "aten.sigmoid.default": (lambda x, n: x.sigmoid(), 8),
    "aten.tanh.default": (lambda x, n: x.tanh(), 8),
    "aten.exp.default": (lambda x, n: x.exp(), 8),
    "aten.expm1.default": (lambda x, n: x.expm1(), 8),
    "aten.log.default": (lambda x, n: x.clamp(min=0).log(), 8),
    "aten.log1p.default": (lambda x, n: x.clamp(min=-1).log1p(), 8),
    "aten.sqrt.default": (lambda x, n: x.clamp(min=0).sqrt(), 2),
    "aten.atan.default": (lambda x, n: x.atan(), 8),
    "aten.floor.default": (lambda x, n: x.floor(), 0),
    "aten.ceil.default": (lambda x, n: x.ceil(), 0),
    "aten.round.default": (lambda x, n: x.round(), 0),
    "aten.trunc.default": (lambda x, n: x.trunc(), 0),
    "aten.sign.default": (lambda x, n: x.sign(), 0),
    "aten.log_sigmoid.default": (lambda x, n: F.logsigmoid(x), 16),
    "aten.celu.default": (lambda x, n: F.celu(x, float(n.arg(1, "alpha", 1))), 16),
    "aten.selu.default": (lambda x, n: F.selu(x), 16),
    "aten.hardsigmoid.default": (lambda x, n: (x + 3).clamp(0, 6) / 6, 4),
    "nodedrop.soft_clamped_relu.default": (lambda x, n: soft_clamped_relu(x, float(n.arg(1, "beta", 10.0))), 16),
}

# Operators that fall to one minimum and rise after it: position and value of the minimum.
VALLEY: dict[str, tuple[Callable[[Tensor], Tensor], float, float]] = {
    "aten.silu.default": (F.silu, -1.2784645, -0.27847),
    "aten.mish.default": (F.mish, -1.1924, -0.30885),
    "aten.hardswish.default": (F.hardswish, -1.5, -0.375),
    "aten.abs.default": (torch.abs, 0.0, 0.0),
}


def _increasing(ctx: Context, node: Node) -> Result:
    value, (function, ulps) = ctx(node.args[0]), INCREASING[node.op]
    lo, hi = function(value.lo, node), function(value.hi, node)
    numbers = [arg for arg in (*node.args, *node.kwargs.values()) if isinstance(arg, int | float)]
    if ulps == 0 and all(ctx.scalar(number).exact for number in numbers):
        return Interval(lo, hi, node.shape)
    return ctx.rounded(node, lo, hi, max(ulps, 1))


@rule("aten.clamp.default", "aten.clamp_min.default", "aten.clamp_max.default")
def _clamp(ctx: Context, node: Node) -> Result | None:
    """The value itself, but no less than one number and no more than another; whole numbers that a type has not become
    others there."""
    value = ctx(node.args[0])
    least = node.arg(1, "min") if "max" not in node.op else None
    most = node.arg(2, "max") if "clamp." in node.op else node.args[1] if "max" in node.op else None
    if any(isinstance(number, int) and ctx(number).lo != number for number in (least, most)):
        return None
    lo, hi = value.lo.clamp(least, most), value.hi.clamp(least, most)
    lo, hi = _sloped(value, least, most, lo, hi)
    if all(ctx.scalar(float(number)).exact for number in (least, most) if number is not None):
        return Interval(lo, hi, node.shape)
    return ctx.rounded(node, lo, hi)


def _sloped(
    value: Interval, least: float | Tensor | None, most: float | Tensor | None, lo: Tensor, hi: Tensor
) -> tuple[Tensor, Tensor]:
    """Not quite flat where a value just reaches an end: clamp, maximum and minimum have a slope there, so that a unit
    which never does more than touch it still takes part in gradients."""
    if least is not None:
        touches = (value.hi == least) & (value.lo < least)
        hi = torch.where(touches, hi + hi.abs() * TOUCH + TINY, hi)
    if most is not None:
        touches = (value.lo == most) & (value.hi > most)
        lo = torch.where(touches, lo - lo.abs() * TOUCH - TINY, lo)
    return lo, hi


def _valley(ctx: Context, node: Node) -> Result:
    return _in_valley(ctx, node, *VALLEY[node.op])


def _in_valley(
    ctx: Context, node: Node, function: Callable[[Tensor], Tensor], position: float, depth: float
) -> Interval:
    value = ctx(node.args[0])
    at_lo = function(value.lo).nan_to_num(nan=0.0, posinf=INF, neginf=-INF)
    at_hi = function(value.hi).nan_to_num(nan=0.0, posinf=INF, neginf=-INF)
    hi = torch.maximum(at_lo, at_hi)
    crosses = (value.lo <= position + 1e-3) & (value.hi >= position - 1e-3)
    lo = torch.minimum(at_lo, at_hi).masked_fill(crosses, depth)
    if node.op == "aten.abs.default":
        return Interval(lo, hi, node.shape)
    # x times a number in [0, 1], which is off by a few roundings of 1, and settled beyond ±64
    noise = 32 * ctx.u(node) * value.magnitude.clamp(max=64)
    settled = (at_lo == 0) & (at_hi == 0) & (value.hi < position) & torch.tensor(node.op == "aten.hardswish.default")
    result = ctx.rounded(node, lo - noise, hi + noise, 4)
    return Interval(torch.where(settled, 0.0, result.lo), torch.where(settled, 0.0, result.hi), node.shape)


@rule("aten.gelu.default")
def _gelu(ctx: Context, node: Node) -> Result:
    form = str(node.kwargs.get("approximate", node.arg(1, "approximate", "none")))
    return _in_valley(ctx, node, lambda x: F.gelu(x, approximate=form), -0.7517916, -0.1702)


@rule("aten.erf.default")
def _erf(ctx: Context, node: Node) -> Result:
    """Kernels without a library for it use a formula whose error is one of 1, also near 0."""
    value = ctx(node.args[0])
    noise = 0.0 if ctx.u(node) <= 2.0**-50 else 2.0**-20
    return ctx.rounded(node, value.lo.erf() - noise, value.hi.erf() + noise, 8)


@rule("aten.softplus.default")
def _softplus(ctx: Context, node: Node) -> Result | None:
    """log(1 + e^{βx})/β, but x itself beyond a threshold, where the kernel steps down to it if β is positive.

    It falls with β, which may be rounded; the product βx is, unless β is 1.
    """
    value, edge, steep = ctx(node.args[0]), float(node.arg(2, "threshold", 20)), ctx.scalar(node.arg(1, "beta", 1))
    least, most = float(steep.lo), float(steep.hi)
    if not least > 0:
        return None
    low, high = (
        torch.logaddexp(torch.zeros_like(end), beta * end) / beta for end, beta in ((value.lo, most), (value.hi, least))
    )
    stepped = torch.minimum(low, value.lo.clamp(min=min(edge / least, edge / most)))
    reached = (most * value.hi > edge * (1 - 1e-6)) | (least * value.hi > edge * (1 - 1e-6))
    return ctx.rounded(node, torch.where(reached, stepped, low), high, 16 if least == most == 1 else 128)


@rule("aten.elu.default")
def _elu(ctx: Context, node: Node) -> Result | None:
    alpha, scale, steep = (float(node.arg(k, name, 1)) for k, name in ((1, "alpha"), (2, "scale"), (3, "input_scale")))
    if alpha < 0 or scale < 0 or steep < 0:
        return None
    value = ctx(node.args[0])
    ends = [torch.where(x > 0, scale * x, scale * alpha * (steep * x).expm1()) for x in (value.lo, value.hi)]
    return ctx.rounded(node, ends[0], ends[1], 16)


for _op in INCREASING:
    RULES[_op] = _increasing
for _op in VALLEY:
    RULES[_op] = _valley


@rule("aten.leaky_relu.default", "aten.prelu.default", "aten._prelu_kernel.default")
def _leaky(ctx: Context, node: Node) -> Result | None:
    value = ctx(node.args[0])
    slope = node.arg(1, "negative_slope", 0.01)
    steep = ctx.known(slope) if isinstance(slope, Ref) else torch.tensor(float(slope), dtype=torch.float64)
    if steep is None:
        return None
    if node.op == "aten.prelu.default" and steep.dim() == 1:
        steep = steep.reshape([-1 if d == 1 else 1 for d in range(max(len(node.shape), 2))][: len(node.shape)])
    ends = [torch.where(end > 0, end, (steep * end).nan_to_num(nan=0.0)) for end in (value.lo, value.hi)]
    lo, hi = torch.minimum(*ends), torch.maximum(*ends)
    crosses = (value.lo < 0) & (value.hi > 0)
    lo, hi = torch.where(crosses, lo.clamp(max=0), lo), torch.where(crosses, hi.clamp(min=0), hi)
    return ctx.rounded(node, lo, hi, 2)


@rule("aten.threshold.default", "aten.threshold_.default")
def _threshold(ctx: Context, node: Node) -> Result:
    """x where x > t, else v: two cases, each if the interval reaches it."""
    value, edge, other = (ctx(argument) for argument in node.args)
    above, below = value.hi > edge.lo, value.lo <= edge.hi
    low = torch.where(above, torch.maximum(value.lo, edge.lo), INF)
    high = torch.where(above, value.hi, -INF)
    lo = torch.where(below, torch.minimum(low, other.lo), low)
    hi = torch.where(below, torch.maximum(high, other.hi), high)
    return Interval(lo, hi, node.shape)


@rule("aten.neg.default")
def _neg(ctx: Context, node: Node) -> Result:
    value = ctx(node.args[0])
    lo = -value.hi
    return Interval(lo, lo if value.exact else -value.lo, node.shape)


@rule("aten.reciprocal.default", "aten.rsqrt.default")
def _reciprocal(ctx: Context, node: Node) -> Result:
    value = ctx(node.args[0])
    root = "rsqrt" in node.op
    lo, hi = (end.clamp(min=0).sqrt() if root else end for end in (value.lo, value.hi))
    sound = lo > 0 if root else (lo > 0) | (hi < 0)
    low, high = torch.where(sound, 1 / hi, 0.0 if root else -INF), torch.where(sound, 1 / lo, INF)
    return ctx.rounded(node, low, high, ulps=4)


@rule("aten.pow.Tensor_Scalar", "aten.square.default")
def _power(ctx: Context, node: Node) -> Result | None:
    value = ctx(node.args[0])
    exponent = float(node.arg(1, "exponent", 2.0)) if "square" not in node.op else 2.0
    if exponent in (0.0, 1.0):
        return value if exponent else Interval(torch.ones_like(value.lo), torch.ones_like(value.lo), node.shape)
    there, whole = ctx.scalar(exponent), exponent == int(exponent) and exponent > 0
    if not whole and (bool((value.lo < 0).any()) or (exponent < 0 and bool((value.lo == 0).any()))):
        return None
    if whole and not there.exact:  # an odd power may become an even one
        return None
    # e·log x is linear in each of both, so that corners are extremes
    powers = [end**e for end in (value.lo, value.hi) for e in dict.fromkeys((float(there.lo), float(there.hi)))]
    lo, hi = torch.stack(powers).amin(0), torch.stack(powers).amax(0)
    if whole and int(exponent) % 2 == 0:
        lo = lo.masked_fill((value.lo <= 0) & (value.hi >= 0), 0.0)
    if exponent in (2.0, 3.0):  # by multiplication
        return ctx.rounded(node, lo, hi, 2 * exponent)
    noise = FAR if ctx.u(node) > 2.0**-50 else FAR * 2.0**-26
    return ctx.rounded(node, lo - lo.abs() * noise, hi + hi.abs() * noise, max(8, 2 * exponent))


@rule("aten.sin.default", "aten.cos.default")
def _wave(ctx: Context, node: Node) -> Result:
    value = ctx(node.args[0])
    if value.exact:
        wave = value.lo.sin() if "sin" in node.op else value.lo.cos()
        return ctx.rounded(node, wave, wave, 16)
    return Interval(torch.full_like(value.lo, -1.0), torch.full_like(value.lo, 1.0), node.shape)


def product(first: Interval, second: Interval) -> tuple[Tensor, Tensor]:
    """Ends of the product; zero times unbounded is zero, as every value is finite."""
    corners = [
        (x * y).nan_to_num(nan=0.0, posinf=INF, neginf=-INF)
        for x in (first.lo, first.hi)
        for y in (second.lo, second.hi)
    ]
    lo = torch.minimum(torch.minimum(corners[0], corners[1]), torch.minimum(corners[2], corners[3]))
    hi = torch.maximum(torch.maximum(corners[0], corners[1]), torch.maximum(corners[2], corners[3]))
    return lo, hi


@rule("aten.mul.Tensor", "aten.mul.Scalar", "aten.mul_.Tensor")
def _mul(ctx: Context, node: Node) -> Result:
    first, second = ctx(node.args[0]), ctx(node.args[1])
    if isinstance(node.args[1], Ref) and node.args[0] == node.args[1]:
        lo = torch.where((first.lo <= 0) & (first.hi >= 0), 0.0, torch.minimum(first.lo**2, first.hi**2))
        return ctx.rounded(node, lo, torch.maximum(first.lo**2, first.hi**2))
    lo, hi = product(first, second)
    result = ctx.rounded(node, lo, hi)
    ball = _scaled_ball(ctx, node, first, second) or _scaled_ball(ctx, node, second, first) or _rms(ctx, node)
    return replace(result, ball=ball) if ball is not None else result


def _scaled_ball(ctx: Context, node: Node, value: Interval, factor: Interval) -> Ball | None:
    """A normalised row times known weights is a normalised row with other weights."""
    if value.ball is None or not factor.exact or any(n != 1 for n in factor.lo.shape[:-1]):
        return None
    ball, row = value.ball, factor.lo.reshape(-1)
    scaled = replace(ball, scale=ball.scale * row, shift=ball.shift * row, error=ball.error * row.abs())
    return ctx.rounded_ball(node, scaled)


def _rms(ctx: Context, node: Node) -> Ball | None:
    """`x * rsqrt(mean(x², -1) + ε)`, written out by hand: rows of norm at most √d."""
    for value, factor in (node.args[:2], node.args[1::-1]):
        chain = _chain(ctx, factor, "aten.rsqrt.default", "aten.add.Tensor", "aten.mean.dim")
        if chain is None or not isinstance(value, Ref):
            continue
        mean = chain[-1]
        square = ctx.graph.by_name[mean.args[0].name]
        squared = square.args[0] == value and (
            (square.op == "aten.pow.Tensor_Scalar" and square.args[1] == 2)
            or (square.op == "aten.mul.Tensor" and square.args[1] == value)
        )
        epsilon = chain[1].args[1] if chain[1].arg(2, "alpha", 1) == 1 else None
        last = tuple(int(d) for d in mean.args[1]) in ((-1,), (len(node.shape) - 1,))
        whole = len(mean.shape) == len(node.shape) and mean.shape[-1] == 1
        alike = {part.dtype for part in (square, *chain)} == {node.dtype}  # none of them rounds more than the product
        # beside a normal ε, what underflows of x² is no more than rounding
        enough = max(LEAST, *(ctx.tiny(part) for part in (square, *chain)))
        if squared and last and whole and alike and isinstance(epsilon, float) and epsilon >= enough:
            ones = torch.ones(node.shape[-1], dtype=torch.float64)
            return normalised(ctx, node, ones, torch.zeros_like(ones), centred=False)
    return None


def _chain(ctx: Context, start: object, *ops: str) -> list[Node] | None:
    found: list[Node] = []
    for op in ops:
        node = ctx.graph.by_name.get(start.name) if isinstance(start, Ref) else None
        if node is None or node.op != op:
            return None
        found.append(node)
        start = node.args[0]
    return found


@rule("aten.add.Tensor", "aten.add.Scalar", "aten.sub.Tensor", "aten.sub.Scalar", "aten.add_.Tensor",
      "aten.rsub.Scalar")
def _add(ctx: Context, node: Node) -> Result:
    first, second = ctx(node.args[0]), ctx(node.args[1])
    alpha = node.arg(2, "alpha", 1)
    alpha = float(alpha) if isinstance(alpha, int | float) else 1.0
    if node.op == "aten.rsub.Scalar":
        first, second = second, first
    if "sub" in node.op:
        alpha = -alpha
    scaled = (second.lo * alpha, second.hi * alpha) if alpha >= 0 else (second.hi * alpha, second.lo * alpha)
    lo = (first.lo + scaled[0]).nan_to_num(nan=-INF, neginf=-INF)
    hi = (first.hi + scaled[1]).nan_to_num(nan=INF, posinf=INF)
    # x + 0 is exact: a constant zero on one side leaves the other side's ends as they are
    still = _is_zero(first) | _is_zero(second)
    if alpha not in (1.0, -1.0):  # the product is rounded by itself, so relative to its own size
        noise = 4 * ctx.u(node) * torch.maximum(scaled[0].abs(), scaled[1].abs()).nan_to_num(posinf=0.0)
        lo, hi = lo - noise, hi + noise
    result = ctx.rounded(node, lo, hi)
    if bool(still.any()) and alpha in (1.0, -1.0):
        lo, hi = torch.where(still, lo, result.lo), torch.where(still, hi, result.hi)
        result = Interval(lo, hi, node.shape)
    if first.ball is not None and second.exact and all(n == 1 for n in second.lo.shape[:-1]) and alpha == 1.0:
        ball = replace(first.ball, shift=first.ball.shift + second.lo.reshape(-1))
        result = replace(result, ball=ctx.rounded_ball(node, ball))
    return result


def _is_zero(value: Interval) -> Tensor:
    return (value.lo == 0) & (value.hi == 0)


@rule("aten.div.Tensor", "aten.div.Scalar", "aten.div_.Tensor", "aten.true_divide.Tensor")
def _div(ctx: Context, node: Node) -> Result:
    first, second = ctx(node.args[0]), ctx(node.args[1])
    sound = (second.lo > 0) | (second.hi < 0)
    safe = Interval(torch.where(sound, 1 / second.hi, -INF), torch.where(sound, 1 / second.lo, INF), second.shape)
    lo, hi = product(first, safe)
    nonzero = torch.broadcast_to(sound, lo.shape)
    lo, hi = lo.masked_fill(~nonzero, -INF), hi.masked_fill(~nonzero, INF)
    return ctx.rounded(node, lo, hi, ulps=2)


@rule("aten.maximum.default", "aten.minimum.default")
def _pairwise(ctx: Context, node: Node) -> Result:
    first, second = ctx(node.args[0]), ctx(node.args[1])
    pick = torch.maximum if "maximum" in node.op else torch.minimum
    lo, hi = pick(first.lo, second.lo), pick(first.hi, second.hi)
    for value, other in ((first, second), (second, first)):
        least, most = (other.lo, None) if "maximum" in node.op else (None, other.hi)
        lo, hi = _sloped(value, least, most, lo, hi)
    return Interval(lo, hi, node.shape)


@rule("aten.glu.default")
def _glu(ctx: Context, node: Node) -> Result:
    value = ctx(node.args[0])
    axis = int(node.arg(1, "dim", -1)) % len(node.shape)
    full = value.written_out((axis,))
    (lo, _), (hi, _) = full.lo.chunk(2, axis), full.hi.chunk(2, axis)
    return ctx.rounded(node, lo.clamp(max=0), hi.clamp(min=0), ulps=16)
