"""Compact tensors, and the operators that only move elements, applied to them.

A compact tensor describes every element of a value of shape S with a tensor of the same rank, whose size along an
axis is either that of S or 1, where all positions along the axis share one entry. Bounds and labels are both compact,
so that moving elements is written once, here, for both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from torch import Tensor, cat, stack

from .graph import Node, Ref, Shape

Move = Callable[[Node, Tensor, Shape, Shape], Any]


def expand_axes(compact: Tensor, shape: Shape, axes: Sequence[int]) -> Tensor:
    """The compact tensor written out along some axes."""
    sizes = [shape[d] if d in axes else compact.size(d) for d in range(len(shape))]
    return compact.expand(sizes)


def reshape(compact: Tensor, before: Shape, after: Shape) -> Tensor:
    """A reshape that writes out only axes that are merged or split while they are not uniform."""
    if 0 in before or 0 in after:
        return compact.expand(before).reshape(after)
    sizes: list[int] = []
    expanded = list(compact.shape)
    for old_axes, new_axes in _aligned(before, after):
        if all(compact.size(d) == 1 for d in old_axes):
            sizes += [1] * len(new_axes)
        else:
            for d in old_axes:
                expanded[d] = before[d]
            sizes += [after[d] for d in new_axes]
    return compact.expand(expanded).reshape(sizes)


def _aligned(before: Shape, after: Shape) -> list[tuple[list[int], list[int]]]:
    """Split a reshape into independent blocks of axes with equal products."""
    blocks: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(before) or j < len(after):
        old, new = [i] if i < len(before) else [], [j] if j < len(after) else []
        i, j = i + len(old), j + len(new)
        while prod(before[d] for d in old) != prod(after[d] for d in new):
            if prod(before[d] for d in old) < prod(after[d] for d in new):
                old.append(i)
                i += 1
            else:
                new.append(j)
                j += 1
        blocks.append((old, new))
    return blocks


def _along(compact: Tensor, axis: int, move: Callable[[Tensor], Any], uniform: Callable[[Tensor], Any]) -> Any:
    return uniform(compact) if compact.size(axis) == 1 else move(compact)


def _axis(node: Node, position: int, rank: int, name: str = "dim", default: int = 0) -> int:
    return int(node.arg(position, name, default)) % max(rank, 1)


def _reshape(node: Node, t: Tensor, s: Shape, out: Shape) -> Tensor:
    return reshape(t, s, out)


def _same(node: Node, t: Tensor, s: Shape, out: Shape) -> Tensor:
    return t


def _permute(node: Node, t: Tensor, s: Shape, out: Shape) -> Tensor:
    return t.permute([int(d) for d in node.args[1]])


def _transpose(node: Node, t: Tensor, s: Shape, out: Shape) -> Tensor:
    return t.transpose(int(node.args[1]), int(node.args[2]))


def _t(node: Node, t: Tensor, s: Shape, out: Shape) -> Tensor:
    return t.transpose(-2, -1) if len(s) > 1 else t


def _expand(node: Node, t: Tensor, s: Shape, out: Shape) -> Tensor:
    return t.reshape((1,) * (len(out) - len(s)) + tuple(t.shape))


def _repeat(node: Node, t: Tensor, s: Shape, out: Shape) -> Tensor:
    lifted = _expand(node, t, s, out)
    times = [o // n if n else 1 for o, n in zip(out, (1,) * (len(out) - len(s)) + s, strict=True)]
    return lifted.repeat([k if lifted.size(d) > 1 else 1 for d, k in enumerate(times)])


def _slice(node: Node, t: Tensor, s: Shape, out: Shape) -> Tensor:
    axis = _axis(node, 1, len(s))
    start, end, step = node.arg(2, "start"), node.arg(3, "end"), node.arg(4, "step", 1)
    pick = slice(start, None if end is None or end >= s[axis] else end, step)
    index = (slice(None),) * axis + (pick,)
    return _along(t, axis, lambda u: u[index], lambda u: u)  # type: ignore[no-any-return]


def _select(node: Node, t: Tensor, s: Shape, out: Shape) -> Tensor:
    axis = _axis(node, 1, len(s))
    return t.select(axis, 0 if t.size(axis) == 1 else int(node.arg(2, "index")))


def _narrow(node: Node, t: Tensor, s: Shape, out: Shape) -> Tensor:
    axis = _axis(node, 1, len(s))
    return _along(t, axis, lambda u: u.narrow(axis, node.args[2], node.args[3]), lambda u: u)  # type: ignore[no-any-return]


def _split(node: Node, t: Tensor, s: Shape, out: Shape) -> tuple[Tensor, ...]:
    axis = _axis(node, 2, len(s))
    sizes = [shape[axis] for shape in node.shapes if shape is not None]
    return _along(t, axis, lambda u: tuple(u.split(sizes, axis)), lambda u: (u,) * len(sizes))  # type: ignore[no-any-return]


def _unbind(node: Node, t: Tensor, s: Shape, out: Shape) -> tuple[Tensor, ...]:
    axis = _axis(node, 1, len(s))
    return tuple(t.select(axis, 0 if t.size(axis) == 1 else k) for k in range(s[axis]))


def _flip(node: Node, t: Tensor, s: Shape, out: Shape) -> Tensor:
    return t.flip([int(d) for d in node.args[1]])


def _roll(node: Node, t: Tensor, s: Shape, out: Shape) -> Tensor:
    shifts, axes = node.args[1], node.arg(2, "dims", ())
    if not axes:
        return t.expand(s).reshape(-1).roll(tuple(shifts)).reshape(s)
    return t.roll(tuple(shifts), tuple(axes))


def _diagonal(node: Node, t: Tensor, s: Shape, out: Shape) -> Tensor:
    return t.expand(s).diagonal(*node.args[1:])


def _channel_shuffle(node: Node, t: Tensor, s: Shape, out: Shape) -> Tensor:
    groups = int(node.args[1])
    wide = (s[0], groups, s[1] // groups, *s[2:])
    turned = reshape(t, s, wide).transpose(1, 2)
    return reshape(turned, (s[0], s[1] // groups, groups, *s[2:]), s)


def _pixel_shuffle(node: Node, t: Tensor, s: Shape, out: Shape) -> Tensor:
    r, lead = int(node.args[1]), s[:-3]
    c, h, w = s[-3] // (r * r), s[-2], s[-1]
    k = len(lead)
    wide = reshape(t, s, (*lead, c, r, r, h, w))
    turned = wide.permute([*range(k), k, k + 3, k + 1, k + 4, k + 2])
    return reshape(turned, (*lead, c, h, r, w, r), out)


def _pixel_unshuffle(node: Node, t: Tensor, s: Shape, out: Shape) -> Tensor:
    r, lead = int(node.args[1]), s[:-3]
    c, h, w = s[-3], s[-2] // r, s[-1] // r
    k = len(lead)
    wide = reshape(t, s, (*lead, c, h, r, w, r))
    turned = wide.permute([*range(k), k, k + 2, k + 4, k + 1, k + 3])
    return reshape(turned, (*lead, c, r, r, h, w), out)




MOVES: dict[str, Move] = {
    **dict.fromkeys(
        [
            "aten.view.default", "aten.reshape.default", "aten._unsafe_view.default", "aten.flatten.using_ints",
            "aten.unflatten.int", "aten.squeeze.dim", "aten.squeeze.dims", "aten.squeeze.default",
            "aten.unsqueeze.default", "aten.view_copy.default", "aten.reshape_as.default", "aten.view_as.default",
        ],
        _reshape,
    ),
    **dict.fromkeys(
        [
            "aten.clone.default", "aten.contiguous.default", "aten.detach.default", "aten.detach_.default",
            "aten.alias.default", "aten.lift_fresh_copy.default", "aten.lift_fresh.default",
            "aten.positive.default", "aten.conj.default", "aten.resolve_conj.default",
        ],
        _same,
    ),
    "aten.permute.default": _permute,
    "aten.transpose.int": _transpose,
    "aten.t.default": _t,
    "aten.mT.default": _t,
    "aten.numpy_T.default": lambda node, t, s, out: t.permute(*reversed(range(t.dim()))),
    "aten.movedim.int": lambda node, t, s, out: t.movedim(node.args[1], node.args[2]),
    "aten.movedim.intlist": lambda node, t, s, out: t.movedim(tuple(node.args[1]), tuple(node.args[2])),
    "aten.swapaxes.default": _transpose,
    "aten.swapdims.default": _transpose,
    "aten.expand.default": _expand,
    "aten.expand_as.default": _expand,
    "aten.broadcast_to.default": _expand,
    "aten.repeat.default": _repeat,
    "aten.tile.default": _repeat,
    "aten.slice.Tensor": _slice,
    "aten.select.int": _select,
    "aten.narrow.default": _narrow,
    "aten.split.Tensor": _split,
    "aten.split_with_sizes.default": _split,
    "aten.split.sizes": _split,
    "aten.chunk.default": _split,
    "aten.unsafe_chunk.default": _split,
    "aten.unbind.int": _unbind,
    "aten.flip.default": _flip,
    "aten.roll.default": _roll,
    "aten.diagonal.default": _diagonal,
    "aten.channel_shuffle.default": _channel_shuffle,
    "aten.native_channel_shuffle.default": _channel_shuffle,
    "aten.pixel_shuffle.default": _pixel_shuffle,
    "aten.pixel_unshuffle.default": _pixel_unshuffle,
}


def join(node: Node, parts: Sequence[tuple[Tensor, Shape]], out: Shape, *, axis: int) -> Tensor:
    """Concatenation (`cat`) or stacking (`stack`) of compact tensors; the joined axis is written out."""
    rank = len(out)
    if node.op.startswith("aten.stack"):
        common = [max(t.size(d) for t, _ in parts) for d in range(rank - 1)]
        return stack([t.expand(common) for t, _ in parts], axis)
    parts = [(t, s) for t, s in parts if s != (0,)]
    common = [max(t.size(d) for t, _ in parts) for d in range(rank)]
    pieces = [t.expand([s[d] if d == axis else common[d] for d in range(rank)]) for t, s in parts]
    return cat(pieces, axis)


def join_axis(node: Node) -> int:
    """The axis that `cat` or `stack` joins along, counted from the front."""
    return _axis(node, 1, len(node.shape))


def names_of(value: Any) -> list[str]:
    """Names of the nodes in a list argument."""
    return [item.name for item in value if isinstance(item, Ref)]
