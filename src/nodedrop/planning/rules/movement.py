"""Labels move with the elements they belong to."""

from __future__ import annotations

import torch

from ...tracing.compact import MOVES, join, join_axis, names_of, reshape
from ...tracing.graph import Node, Ref
from ..labels import FIXED, Blocks, Factor, Factors, Grid, along, support, touching, vector
from ..walk import LABEL_RULES, Outcome, Walk, label_rule

_SEVERAL = {
    "aten.split.Tensor", "aten.split_with_sizes.default", "aten.split.sizes", "aten.chunk.default",
    "aten.unsafe_chunk.default", "aten.unbind.int",
}
_BY_INDEX = {"aten.select.int", "aten.unbind.int", "aten.roll.default", "aten.diagonal.default", "aten.narrow.default"}


def _move(walk: Walk, node: Node) -> Outcome:
    factors, shape = walk(node.args[0]), walk.shape(node.args[0])
    if node.op in _BY_INDEX:
        factors = _unless_touched(walk, node, factors, _touched_axes(node, len(shape)))
    return _moved(node, factors, shape)


def _moved(node: Node, factors: Factors, shape: tuple[int, ...]) -> Outcome:
    """Every factor moved; one that no longer tells elements apart is dropped."""
    moved = [MOVES[node.op](node, factor, shape, node.shape) for factor in factors]
    if node.op in _SEVERAL:
        return [tuple(m[k].contiguous() for m in moved if support(m[k])) for k in range(len(node.shapes))]
    return tuple(m.contiguous() for m in moved if support(m))


def _touched_axes(node: Node, rank: int) -> tuple[int, ...]:
    if node.op == "aten.roll.default":
        axes = node.arg(2, "dims", ())
        return tuple(int(d) % rank for d in axes) if axes else tuple(range(rank))
    if node.op == "aten.diagonal.default":
        return tuple(range(rank))
    return (int(node.arg(1, "dim", 0)) % rank,)


def _unless_touched(walk: Walk, node: Node, factors: Factors, axes: tuple[int, ...]) -> Factors:
    touched = touching(factors, axes)
    if touched:
        walk.pin(node, touched, "units are picked by their position")
    return tuple(f for f in factors if not set(support(f)) & set(axes))


for _op in MOVES:
    LABEL_RULES[_op] = _move


@label_rule("aten.split.Tensor", "aten.chunk.default", "aten.unsafe_chunk.default")
def _chunk(walk: Walk, node: Node) -> Outcome:
    """Equal parts, as many after the cut as before: each must keep the same number of units."""
    factors, shape = walk(node.args[0]), walk.shape(node.args[0])
    axis = int(node.arg(2, "dim", 0)) % len(shape)
    sizes = {s[axis] for s in node.shapes if s is not None}
    labelled = along(factors, axis)
    if labelled is None or len(sizes) > 1:
        return _moved(node, _unless_touched(walk, node, factors, (axis,)), shape)
    reason = walk.reason(node, "every part of a split must keep the same number of units")
    walk.labels.constraints.append(Blocks((vector(labelled).reshape(-1, node.shape[axis]),), False, reason))
    return _moved(node, factors, shape)


@label_rule("aten.split_with_sizes.default", "aten.split.sizes")
def _split(walk: Walk, node: Node) -> Outcome:
    """Parts of given sizes. Whether the model computes the sizes anew or has them fixed, the check will tell."""
    factors, shape = walk(node.args[0]), walk.shape(node.args[0])
    axis = int(node.arg(2, "dim", 0)) % len(shape)
    if along(factors, axis) is None:
        factors = _unless_touched(walk, node, factors, (axis,))
    return _moved(node, factors, shape)


@label_rule("aten.slice.Tensor")
def _slice(walk: Walk, node: Node) -> Outcome:
    factors, shape = walk(node.args[0]), walk.shape(node.args[0])
    axis = int(node.arg(1, "dim", 0)) % len(shape)
    if node.shape == shape:
        return _moved(node, factors, shape)
    piece = (node.arg(2, "start"), node.arg(3, "end"), node.arg(4, "step"))
    kept = _before_boundary(walk, node, factors, shape, axis, piece)
    return _moved(node, kept, shape)


def _before_boundary(
    walk: Walk, node: Node, factors: Factors, shape: tuple[int, ...], axis: int, piece: tuple[object, ...]
) -> Factors:
    """A slice has fixed ends: units in front of an end would shift it and are pinned, those behind it are not."""
    labelled = along(factors, axis)
    start, end, step = (part if isinstance(part, int) else None for part in piece)
    start, end = start or 0, shape[axis] if end is None else end
    if labelled is None or (step or 1) != 1 or start < 0 or end < 0:
        return _unless_touched(walk, node, factors, (axis,))
    boundary = end if end < shape[axis] else start
    walk.pin(node, (vector(labelled)[:boundary],), "lies in front of a fixed position")
    return factors


@label_rule("aten.channel_shuffle.default", "aten.native_channel_shuffle.default")
def _channel_shuffle(walk: Walk, node: Node) -> Outcome:
    """Units seen as [groups, units]: whole slices go, as if the model had written view, transpose and view."""
    factors, shape, groups = walk(node.args[0]), walk.shape(node.args[0]), int(node.args[1])
    for factor in touching(factors, (1,)):
        wide = reshape(factor, shape, (shape[0], groups, shape[1] // groups, *shape[2:]))
        reason = walk.reason(node, "its units were arranged along several axes, and only whole slices can go")
        walk.labels.constraints.append(Grid(wide, reason))
    return _moved(node, factors, shape)


@label_rule("aten.pixel_shuffle.default", "aten.pixel_unshuffle.default")
def _pixel_shuffle(walk: Walk, node: Node) -> Outcome:
    """The r² units that make one channel go together; the other way round, one unit makes r² channels."""
    factors, shape = walk(node.args[0]), walk.shape(node.args[0])
    axis, block = len(shape) - 3, int(node.args[1]) ** 2
    labelled = along(factors, axis)
    kept = tuple(f for f in factors if not set(support(f)) & set(range(axis, len(shape))))
    walk.pin(node, tuple(f for f in touching(factors, range(axis, len(shape))) if f is not labelled), "is shuffled")
    if labelled is None:
        return kept
    if node.op == "aten.pixel_unshuffle.default":
        units = vector(labelled).repeat_interleave(block)
    else:
        rows = vector(labelled).reshape(-1, block)
        walk.labels.unite(rows, rows[:, :1])
        units = rows[:, 0]
        if len(units) == 1:
            walk.pin(node, (labelled,), "is a single channel")
            return kept
    return (*kept, units.reshape([-1 if d == axis else 1 for d in range(len(node.shape))]))


@label_rule("aten.cat.default", "aten.stack.default", "aten.concat.default")
def _join(walk: Walk, node: Node) -> Outcome:
    names = [n for n in names_of(node.args[0]) if walk.graph.by_name[n].shape != (0,)]
    rank, axis = len(node.shape), join_axis(node)
    stacked = node.op.startswith("aten.stack")
    operands = []
    for name in names:
        factors, shape = walk(Ref(name)), walk.shape(Ref(name))
        if stacked:
            factors = tuple(f.unsqueeze(axis) for f in factors)
            shape = (*shape[:axis], 1, *shape[axis:])
        walk.pin(node, tuple(f for f in factors if _mixed(f, axis)), "units lie along several axes")
        operands.append((tuple(f for f in factors if not _mixed(f, axis)), shape))
    others = [(tuple(f for f in fs if axis not in support(f)), _one(s, axis)) for fs, s in operands]
    result = walk.align(node, others, _one(node.shape, axis))
    own = [along(fs, axis) for fs, _ in operands]
    if stacked or all(f is None for f in own):
        return result
    parts = []
    for factor, (_, shape) in zip(own, operands, strict=True):
        sizes = [shape[axis] if d == axis else 1 for d in range(rank)]
        parts.append((torch.full(sizes, FIXED) if factor is None else factor.reshape(sizes), shape))
    return (*result, join(node, parts, node.shape, axis=axis))


def _mixed(factor: Factor, axis: int) -> bool:
    return axis in support(factor) and len(support(factor)) > 1


def _one(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return (*shape[:axis], 1, *shape[axis + 1 :])


@label_rule("aten.select_scatter.default")
def _select_scatter(walk: Walk, node: Node) -> Outcome:
    axis = int(node.arg(2, "dim", 0)) % len(node.shape)
    factors = _unless_touched(walk, node, walk(node.args[0]), (axis,))
    written, flat = tuple(f.unsqueeze(axis) for f in walk(node.args[1])), _one(node.shape, axis)
    return walk.align(node, [(factors, flat), (written, flat)], flat)


@label_rule("aten.slice_scatter.default")
def _slice_scatter(walk: Walk, node: Node) -> Outcome:
    axis = int(node.arg(2, "dim", 0)) % len(node.shape)
    base, piece = walk(node.args[0]), (node.arg(3, "start"), node.arg(4, "end"), node.arg(5, "step"))
    written = walk(node.args[1])
    flat = _one(node.shape, axis)
    own: Factors = ()
    if walk.shape(node.args[1])[axis] == node.shape[axis]:
        return walk.align(node, [(base, node.shape), (written, node.shape)], node.shape)
    if along(base, axis) is not None:
        base = _before_boundary(walk, node, base, node.shape, axis, piece)
        own = tuple(f for f in base if axis in support(f))
        open_end = piece[1] is None or piece[1] >= node.shape[axis]
        if open_end and own:  # what is written reaches the end: it is as long as what it replaces
            walk.pin(node, own, "is overwritten by position")
            own = ()
    walk.pin(node, touching(written, (axis,)), "is written to a fixed position")
    others = tuple(f for f in base if axis not in support(f))
    rest = tuple(f for f in written if axis not in support(f))
    return (*walk.align(node, [(others, flat), (rest, flat)], flat), *own)


@label_rule("aten.constant_pad_nd.default", "aten.pad.default")
def _pad(walk: Walk, node: Node) -> Outcome:
    rank = len(node.shape)
    padded = {rank - 1 - k // 2 for k, amount in enumerate(node.args[1]) if amount}
    return _unless_touched(walk, node, walk(node.args[0]), tuple(padded))
