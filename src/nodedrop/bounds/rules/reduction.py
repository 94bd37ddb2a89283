"""Pooling and reductions."""

from __future__ import annotations

import torch
from torch import Tensor

from ...tracing.graph import Node, Shape
from ..interval import INF, Interval, between
from ..registry import Context, Result, rule
from ..rounding import sum_margin


def _axes(axes: object, rank: int) -> tuple[int, ...]:
    if axes is None or axes == () or axes == []:
        return tuple(range(rank))
    listed = axes if isinstance(axes, list | tuple) else (axes,)
    return tuple(sorted(int(d) % rank for d in listed))


def _drop(end: Tensor, axes: tuple[int, ...], shape: Shape) -> Tensor:
    """Reduced axes are of size 1 by now: keep or drop them as the result's shape says."""
    if end.dim() == len(shape):
        return end
    return end.reshape([n for d, n in enumerate(end.shape) if d not in axes])


@rule("aten.sum.dim_IntList", "aten.sum.default", "aten.mean.dim", "aten.mean.default")
def _sum(ctx: Context, node: Node) -> Result:
    value = ctx(node.args[0])
    rank = len(value.shape)
    axes = _axes(node.arg(1, "dim") if "default" not in node.op else None, rank)
    count = 1
    for d in axes:
        count *= value.shape[d]

    def total(end: Tensor) -> Tensor:
        for d in axes:
            end = end * value.shape[d] if end.size(d) == 1 else end.sum(d, keepdim=True)
        return end

    lo, hi, size = total(value.lo), total(value.hi), total(value.magnitude)
    if ".mean" in node.op:
        lo, hi, size = lo / count, hi / count, size / count
    margin = sum_margin(size, count + 2, ctx.u(node), ctx.tiny(node))
    ends = [_drop(end, axes, node.shape) for end in (lo - margin, hi + margin)]
    whole = _drop(total(value.magnitude), axes, node.shape)
    low = torch.where(_drop(total(value.lo.clamp(max=0)), axes, node.shape) == 0, ends[0].clamp(min=0), ends[0])
    high = torch.where(_drop(total(value.hi.clamp(min=0)), axes, node.shape) == 0, ends[1].clamp(max=0), ends[1])
    return ctx.limited(node, low, high, whole)


@rule("aten.amax.default", "aten.amin.default", "aten.max.dim", "aten.min.dim", "aten.max.default", "aten.min.default")
def _extreme(ctx: Context, node: Node) -> Result:
    value = ctx(node.args[0])
    axes = _axes(node.arg(1, "dim"), len(value.shape))
    # every result is one of the elements, and at least (at most) each of them
    if "max" in node.op:
        lo, hi = value.lo.amax(axes, keepdim=True), value.hi.amax(axes, keepdim=True)
    else:
        lo, hi = value.lo.amin(axes, keepdim=True), value.hi.amin(axes, keepdim=True)
    result = Interval(_drop(lo, axes, node.shape), _drop(hi, axes, node.shape), node.shape)
    if len(node.shapes) == 2:
        return result, between(0.0, INF, node.shapes[1] or ())
    return result


@rule("aten.max_pool1d.default", "aten.max_pool2d.default", "aten.max_pool3d.default",
      "aten.adaptive_max_pool1d.default", "aten.adaptive_max_pool2d.default", "aten.adaptive_max_pool3d.default",
      "aten.max_pool2d_with_indices.default", "aten.max_pool3d_with_indices.default")
def _max_pool(ctx: Context, node: Node) -> Result:
    value = ctx(node.args[0])
    spatial = _spatial(node, value)
    flat = value.uniform(spatial)
    hollow = "adaptive" not in node.op and any(_listed(node.arg(3, "padding", 0))) and any(
        step > 1 for step in _listed(node.arg(4, "dilation", 1))
    )  # a window may then see padding alone, which is −∞
    result = Interval(torch.full_like(flat.lo, -INF) if hollow else flat.lo, flat.hi, node.shape)
    if len(node.shapes) == 2:
        return result, between(0.0, INF, node.shapes[1] or ())
    return result


@rule("aten.avg_pool1d.default", "aten.avg_pool2d.default", "aten.avg_pool3d.default",
      "aten.adaptive_avg_pool1d.default", "aten.adaptive_avg_pool2d.default", "aten.adaptive_avg_pool3d.default",
      "aten._adaptive_avg_pool2d.default")
def _avg_pool(ctx: Context, node: Node) -> Result | None:
    value = ctx(node.args[0])
    padded = "adaptive" not in node.op and any(_listed(node.arg(3, "padding", 0)))
    flat = value.uniform(_spatial(node, value))
    if padded or node.arg(6, "divisor_override") is not None:
        flat = flat.with_zero()
    divisor = node.arg(6, "divisor_override") if "adaptive" not in node.op else None
    window = 1
    spatial = _spatial(node, value)
    kernel = _listed(node.args[1]) if "adaptive" not in node.op else [value.shape[d] for d in spatial]
    for n in kernel if len(kernel) == len(spatial) else [kernel[0]] * len(spatial):
        window *= n
    if divisor:
        if divisor < 0:
            return None
        flat = flat.scaled(window / divisor)
    return ctx.rounded(node, flat.lo, flat.hi, ulps=window + 4)


def _listed(value: object) -> tuple[int, ...]:
    return tuple(value) if isinstance(value, list | tuple) else (int(value),)  # type: ignore[call-overload]


def _spatial(node: Node, value: Interval) -> tuple[int, ...]:
    window = next((int(word[0]) for word in node.op.split("pool")[1:] if word[:1].isdigit()), 2)
    rank = len(value.shape)
    return tuple(range(rank - window, rank))
