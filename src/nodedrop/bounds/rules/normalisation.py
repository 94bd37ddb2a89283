"""Normalisation: batch norm by running statistics or by Samuelson's inequality, and the norms over one sample."""

from __future__ import annotations

from dataclasses import replace
from math import prod, sqrt

import torch
from torch import Tensor

from ...tracing.graph import Node, Ref
from ..interval import INF, Ball, Interval, unbounded
from ..registry import Context, Result, rule
from ..rounding import gamma
from .contraction import MEAN_ROUNDINGS

# The least that may be added to a variance: beside less, what kernels lose of squares that underflow would count.
LEAST = 2.0**-100
# Values of a unit in one training batch, at most, where no batch size is declared.
BATCH = 2**20


def _unknown(ctx: Context, *values: object) -> bool:
    """Whether a scale or shift is itself computed from the input, which these rules do not follow."""
    return any(isinstance(value, Ref) and not ctx.raw(value).exact for value in values)


def _per_unit(ctx: Context, value: object, rank: int, default: float) -> Tensor:
    known = ctx.known(value)
    known = torch.full((1,), default, dtype=torch.float64) if known is None else known
    return known.reshape(1, -1, *(1,) * (rank - 2))


def _summed(ctx: Context, node: Node, count: float) -> float:
    """Relative error of a sum of so many values, one after another: kernels add up in single precision at least."""
    return gamma(int(count) + 8, min(ctx.u(node), 2.0**-24))


def _underflow(ctx: Context, node: Node, size: Tensor, weight: Tensor, inverse: Tensor | float) -> Tensor:
    """Below the least normal number rounding is absolute. Kernels form w/σ first, which then meets values up to `size`,
    or a product with w or 1/σ, which then meets the other."""
    return 4 * ctx.tiny(node) * ((1 + weight.abs()) * (1 + inverse) + size)


def _affine(
    ctx: Context, node: Node, half: Tensor, weight: Tensor, bias: Tensor, lost: Tensor | float = 0.0
) -> Interval:
    """Ends of w·x̂ + b for |x̂| ≤ half, underflow aside; a weight of exactly zero leaves the bias."""
    lo, hi = -half, half
    first, second = ((weight * end).nan_to_num(nan=0.0, posinf=INF, neginf=-INF) for end in (lo, hi))
    low, high = torch.minimum(first, second) + bias, torch.maximum(first, second) + bias
    size = torch.maximum(first.abs(), second.abs()) + bias.abs()
    margin = (size * gamma(8, ctx.u(node)) + ctx.tiny(node) + lost).nan_to_num(nan=INF)
    margin = torch.where((first == 0) & (second == 0), ctx.lost(node, bias), margin)
    return ctx.limited(node, low - margin, high + margin)


@rule("aten.batch_norm.default")
def _batch_norm(ctx: Context, node: Node) -> Result | None:
    return _batch_norm_train(ctx, node) if node.args[5] else _by_statistics(ctx, node, float(node.args[7]))


@rule("aten._native_batch_norm_legit_no_training.default")
def _batch_norm_eval(ctx: Context, node: Node) -> Result:
    return _by_statistics(ctx, node, float(node.args[6]))


def _by_statistics(ctx: Context, node: Node, epsilon: float) -> Result:
    """An affine map by running statistics."""
    if _unknown(ctx, *node.args[1:5]) or (epsilon < LEAST and epsilon != 0):
        return _with_statistics(unbounded(node.shape), node)
    value, rank = ctx(node.args[0]), len(node.shape)
    mean = _per_unit(ctx, node.args[3], rank, 0.0)
    deviation = (_per_unit(ctx, node.args[4], rank, 1.0) + epsilon).sqrt()
    weight, bias = _per_unit(ctx, node.args[1], rank, 1.0), _per_unit(ctx, node.args[2], rank, 0.0)
    factor = weight / deviation
    # kernels compute either w·(x−μ)/σ + b or x·(w/σ) + (b − μ·w/σ): the margin covers both
    ends = [(factor * end).nan_to_num(nan=0.0, posinf=INF, neginf=-INF) for end in (value.lo, value.hi)]
    shift = bias - mean * factor
    size = torch.maximum(ends[0].abs(), ends[1].abs()) + bias.abs() + (mean * factor).abs()
    lost = _underflow(ctx, node, value.magnitude + mean.abs(), weight, 1 / deviation)
    margin = (size * gamma(12, ctx.u(node)) + lost).nan_to_num(nan=INF)
    margin = torch.where(factor == 0, ctx.lost(node, bias), margin)
    ctx.margins[node.name] = margin
    lo, hi = torch.minimum(*ends) + shift - margin, torch.maximum(*ends) + shift + margin
    return _with_statistics(ctx.limited(node, lo, hi), node)


@rule("aten._native_batch_norm_legit_functional.default", "aten._native_batch_norm_legit.default",
      "aten._native_batch_norm_legit.no_stats", "aten.native_batch_norm.default")
def _batch_norm_train(ctx: Context, node: Node) -> Result:
    """|x̂| ≤ √(m−1) for m values per unit in a batch, and |x̂| ≤ (hi−lo)/√ε whatever they are."""
    value, rank = ctx(node.args[0]), len(node.shape)
    no_stats = node.op.endswith("no_stats")
    training = bool(node.args[3 if no_stats else 5])
    epsilon = float(node.args[5 if no_stats else 7])
    if not training or _unknown(ctx, *node.args[1:3]):
        return _with_statistics(unbounded(node.shape), node)
    spread = value.uniform((0, *range(2, rank)))
    least = sqrt(epsilon) if epsilon >= LEAST else 0.0
    reach = ((spread.hi - spread.lo) / least).nan_to_num(nan=INF)
    here = prod(node.shape) / node.shape[1]
    values = here * ctx.batch_growth
    off = _summed(ctx, node, values if values < INF else max(BATCH, here))
    noise = ((MEAN_ROUNDINGS * ctx.u(node) + off) * spread.magnitude / least).nan_to_num(nan=INF)
    samuelson = (noise.square() + max(values - 1, 0)).sqrt()
    half = torch.minimum(reach + noise, samuelson) * (1 + gamma(MEAN_ROUNDINGS, ctx.u(node)) + off)
    weight, bias = _per_unit(ctx, node.args[1], rank, 1.0), _per_unit(ctx, node.args[2], rank, 0.0)
    lost = _underflow(ctx, node, 2 * spread.magnitude, weight, 1 / least if least else INF)
    return _with_statistics(_affine(ctx, node, half, weight, bias, lost), node)


def _with_statistics(result: Interval, node: Node) -> Result:
    if len(node.shapes) == 1:
        return result
    return (result, *(unbounded(shape or ()) for shape in node.shapes[1:]))


def _largest(value: Interval) -> Tensor:
    return value.magnitude.max() if value.magnitude.numel() else torch.zeros((), dtype=torch.float64)


def _slack(ctx: Context, node: Node, largest: Tensor, epsilon: float) -> Tensor:
    """Largest error of one x̂ᵢ from rounding the row's mean, at the least variance: δμ/√ε."""
    if epsilon < LEAST:
        return torch.full_like(largest, INF)
    return MEAN_ROUNDINGS * ctx.u(node) * largest / sqrt(epsilon)


def _reach(ctx: Context, node: Node, count: int, slack: Tensor, *, centred: bool = True) -> Tensor:
    """max |x̂ᵢ| over rows of `count` values: √(n−1) if centred, in quadrature with what rounding the mean can add."""
    growth = 1 + gamma(MEAN_ROUNDINGS, ctx.u(node))
    return (max(count - centred, 0) + slack.square()).sqrt() * growth


@rule("aten.layer_norm.default", "aten.native_layer_norm.default", "aten.rms_norm.default",
      "aten._fused_rms_norm.default")
def _layer_norm(ctx: Context, node: Node) -> Result:
    value, axes = ctx(node.args[0]), len(node.args[1])
    rms = "rms" in node.op
    weight, bias = node.arg(2, "weight"), None if rms else node.arg(3, "bias")
    given = node.arg(3 if rms else 4, "eps")
    epsilon = float(given) if given is not None else float(torch.finfo(node.dtype or torch.float32).eps)
    if _unknown(ctx, weight, bias):
        return _with_statistics(unbounded(node.shape), node)
    known_scale, known_shift = ctx.known(weight), ctx.known(bias)
    scale = torch.ones((1,) * axes, dtype=torch.float64) if known_scale is None else known_scale
    shift = torch.zeros((1,) * axes, dtype=torch.float64) if known_shift is None else known_shift
    slack = _slack(ctx, node, torch.zeros((), dtype=torch.float64) if rms else _largest(value), epsilon)
    half = _reach(ctx, node, prod(node.args[1]), slack, centred=not rms).reshape((1,) * len(node.shape))
    result = _affine(ctx, node, half, scale, shift)
    if axes == 1:
        scale, shift = (part.expand(node.shape[-1]) for part in (scale, shift))
        result = replace(result, ball=normalised(ctx, node, scale, shift, not rms, float(slack)))
    return _with_statistics(result, node)


def normalised(
    ctx: Context, node: Node, scale: Tensor, shift: Tensor, centred: bool, slack: float = 0.0
) -> Ball | None:
    """Rows that a kernel normalises, and scales after they were rounded."""
    exact = Ball(scale, shift, centred, slack, 2 * ctx.tiny(node) * scale.abs())
    return ctx.rounded_ball(node, exact, MEAN_ROUNDINGS)


@rule("aten.group_norm.default", "aten.native_group_norm.default")
def _group_norm(ctx: Context, node: Node) -> Result:
    value, rank = ctx(node.args[0]), len(node.shape)
    plain = node.op == "aten.group_norm.default"
    groups = int(node.args[1] if plain else node.args[6])
    weight, bias = (node.arg(2, "weight"), node.arg(3, "bias")) if plain else (node.args[1], node.args[2])
    epsilon = float(node.arg(4, "eps", 1e-5) if plain else node.args[7])
    count = prod(node.shape[1:]) // groups
    size = _largest(value).reshape((1,) * rank)
    last = ctx.graph.by_name[node.args[0].name].last
    return _with_statistics(_bounded(ctx, node, size, count, epsilon, weight, bias, last=last), node)


@rule("aten.instance_norm.default")
def _instance_norm(ctx: Context, node: Node) -> Result:
    value, rank = ctx(node.args[0]), len(node.shape)
    if not node.args[5]:
        return unbounded(node.shape)
    size = value.uniform((0, *range(2, rank))).magnitude
    return _bounded(ctx, node, size, prod(node.shape[2:]), float(node.args[7]), node.args[1], node.args[2])


def _bounded(
    ctx: Context, node: Node, size: Tensor, count: int, epsilon: float, weight: object, bias: object, *,
    last: bool = False,
) -> Interval:  # fmt: skip
    """Of groups of `count` values up to `size`. Where channels lie `last`, kernels form the variance as the mean of
    squares less the square of the mean, which may cancel to 0."""
    rank = len(node.shape)
    if _unknown(ctx, weight, bias):
        return unbounded(node.shape)
    off = _summed(ctx, node, count)
    half = _reach(ctx, node, count, _slack(ctx, node, size, epsilon) * (1 + off / (MEAN_ROUNDINGS * ctx.u(node))))
    if last:
        lost = 4 * off * size.square() / epsilon if epsilon >= LEAST else torch.full_like(size, INF)
        half = half * lost.clamp(min=1).sqrt()
    gain = _per_unit(ctx, weight, rank, 1.0)
    lost = _underflow(ctx, node, 2 * size, gain, 1 / sqrt(epsilon) if epsilon >= LEAST else INF)
    return _affine(ctx, node, half, gain, _per_unit(ctx, bias, rank, 0.0), lost)
