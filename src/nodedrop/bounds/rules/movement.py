"""Operators that only move elements: bounds move along."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch.nn import functional

from ...tracing.compact import MOVES, join, join_axis, names_of
from ...tracing.graph import Node, Ref
from ..interval import Interval, constant, hull
from ..registry import RULES, Context, Result, rule


def _move(ctx: Context, node: Node) -> Result:
    value, move = ctx.raw(node.args[0]), MOVES[node.op]
    out = node.shape
    lo = move(node, value.lo, value.shape, out)
    hi = lo if value.exact else move(node, value.hi, value.shape, out)
    if isinstance(lo, tuple):
        return tuple(Interval(a, b, s or ()) for a, b, s in zip(lo, hi, node.shapes, strict=True))
    moved = Interval(lo, hi, out)
    if _last_axis_kept(node, value.shape, out):
        moved = replace(moved, ball=value.ball, mix=value.mix)
    return moved


def _last_axis_kept(node: Node, before: tuple[int, ...], after: tuple[int, ...]) -> bool:
    """Whether every row (along the last axis) is still a row, so that what is known of rows stays true."""
    if not before or not after or before[-1] != after[-1]:
        return False
    if node.op in ("aten.transpose.int", "aten.swapaxes.default", "aten.swapdims.default"):
        rank = len(before)
        return rank - 1 not in (node.args[1] % rank, node.args[2] % rank)
    if node.op == "aten.permute.default":
        return int(node.args[1][-1]) % len(before) == len(before) - 1
    reshaping = ("view", "reshape", "squeeze", "clone", "contiguous", "detach", "alias", "expand", "flatten")
    return any(word in node.op for word in reshaping)


for _op in MOVES:
    RULES[_op] = _move


@rule("aten.cat.default", "aten.stack.default", "aten.concat.default")
def _join(ctx: Context, node: Node) -> Result:
    doubles = [ctx(Ref(name)) for name in names_of(node.args[0])]
    axis = join_axis(node)
    lo = join(node, [(part.lo, part.shape) for part in doubles], node.shape, axis=axis)
    if all(part.exact for part in doubles):
        return Interval(lo, lo, node.shape)
    return Interval(lo, join(node, [(part.hi, part.shape) for part in doubles], node.shape, axis=axis), node.shape)


@rule("aten._to_copy.default", "aten.to.dtype", "aten.to.dtype_layout", "aten.to.device", "aten.to.other",
      "aten.type_as.default", "aten._cast_Float.default")
def _cast(ctx: Context, node: Node) -> Result:
    """What is read has been converted already."""
    return replace(ctx(node.args[0]), shape=node.shape)


@rule("aten.constant_pad_nd.default", "aten.pad.default")
def _pad(ctx: Context, node: Node) -> Result:
    mode = node.arg(2, "mode", "constant") if node.op == "aten.pad.default" else "constant"
    fill = node.arg(3, "value") if node.op == "aten.pad.default" else node.arg(2, "value", 0)
    value, pads = ctx(node.args[0]), list(node.args[1])
    rank = len(node.shape)
    padded = {rank - 1 - k // 2 for k, amount in enumerate(pads) if amount}
    if mode != "constant":
        return Interval(*_hull_over(value, padded), node.shape)
    number = float(fill or 0)
    if not ctx.scalar(number).exact:
        return Interval(*_hull_over(_around(ctx, node, number), set()), node.shape)
    written = {d for d in padded if value.lo.size(d) > 1 or value.hi.size(d) > 1}
    if not written:
        return hull(Interval(value.lo, value.hi, node.shape), constant(number, node.shape), node.shape)
    amounts = [amount if rank - 1 - k // 2 in written else 0 for k, amount in enumerate(pads)]
    full = value.written_out(tuple(written))
    lo, hi = (functional.pad(end, amounts, value=number) for end in (full.lo, full.hi))
    if padded - written:
        lo, hi = lo.clamp(max=number), hi.clamp(min=number)
    return Interval(lo, hi, node.shape)


def _around(ctx: Context, node: Node, number: float) -> Interval:
    """The hull of the padded value and a number that the kernel rounds."""
    value, fill = ctx(node.args[0]), ctx.scalar(number)
    flat = value.uniform(tuple(range(len(node.shape))))
    return hull(Interval(flat.lo, flat.hi, node.shape), fill, node.shape)


def _windowed(node: Node) -> set[int]:
    """The axes a spatial operator works along: as many of the last as its name says."""
    count = next(int(c) for c in node.op if c.isdigit())
    return set(range(len(node.shape) - count, len(node.shape)))


def _hull_over(value: Interval, axes: set[int]) -> tuple[torch.Tensor, torch.Tensor]:
    flat = value.uniform(tuple(sorted(axes)))
    return flat.lo, flat.hi


@rule("aten.reflection_pad1d.default", "aten.reflection_pad2d.default", "aten.replication_pad1d.default",
      "aten.replication_pad2d.default", "aten.replication_pad3d.default", "aten.upsample_nearest1d.vec",
      "aten.upsample_nearest2d.vec", "aten.upsample_nearest3d.vec", "aten.upsample_nearest2d.default",
      "aten.upsample_nearest1d.default", "aten._upsample_nearest_exact2d.vec")
def _copied(ctx: Context, node: Node) -> Result:
    return Interval(*_hull_over(ctx(node.args[0]), _windowed(node)), node.shape)


@rule("aten.upsample_bilinear2d.vec", "aten.upsample_linear1d.vec", "aten.upsample_trilinear3d.vec",
      "aten.upsample_bilinear2d.default")
def _interpolated(ctx: Context, node: Node) -> Result:
    lo, hi = _hull_over(ctx(node.args[0]), _windowed(node))
    return ctx.rounded(node, lo, hi, ulps=16)


@rule("aten.select_scatter.default")
def _select_scatter(ctx: Context, node: Node) -> Result:
    base, source = ctx(node.args[0]), ctx(node.args[1])
    axis = int(node.arg(2, "dim", 0)) % len(node.shape)
    index = int(node.arg(3, "index", 0)) % node.shape[axis]
    lifted = Interval(source.lo.unsqueeze(axis), source.hi.unsqueeze(axis), ())
    return _written(base, lifted, axis, slice(index, index + 1), node)


@rule("aten.slice_scatter.default")
def _slice_scatter(ctx: Context, node: Node) -> Result:
    base, source = ctx(node.args[0]), ctx(node.args[1])
    axis = int(node.arg(2, "dim", 0)) % len(node.shape)
    picked = slice(node.arg(3, "start"), node.arg(4, "end"), node.arg(5, "step", 1))
    return _written(base, source, axis, picked, node)


def _written(base: Interval, source: Interval, axis: int, where: slice, node: Node) -> Interval:
    ends = []
    index = (slice(None),) * axis + (where,)
    for old, new in ((base.lo, source.lo), (base.hi, source.hi)):
        sizes = [node.shape[d] if d == axis else max(old.size(d), new.size(d)) for d in range(len(node.shape))]
        target = old.expand(sizes).clone()
        target[index] = new.expand([n if d != axis else target[index].size(axis) for d, n in enumerate(sizes)])
        ends.append(target)
    return Interval(ends[0], ends[1], node.shape)


@rule("aten.index.Tensor", "aten.gather.default", "aten.index_select.default", "aten.take.default",
      "aten.masked_select.default", "aten.repeat_interleave.self_int", "aten.unfold.default",
      "aten.im2col.default", "aten.take_along_dim.default")
def _picked(ctx: Context, node: Node) -> Result:
    """Some elements of the value, whichever: the hull of all of them (im2col pads with zero)."""
    value = ctx(node.args[0])
    lo = value.lo.amin().reshape((1,) * len(node.shape))
    hi = value.hi.amax().reshape((1,) * len(node.shape))
    result = Interval(lo, hi, node.shape)
    return result.with_zero() if node.op == "aten.im2col.default" else result
