"""Convolutions make units and read them, in groups or not, also transposed."""

from __future__ import annotations

from ...tracing.graph import PARAMETER, Node, Ref
from ..labels import Blocks, Factors, Slot, touching, vector
from ..walk import Outcome, Read, Side, Walk, label_rule
from .layers import add_layer, note_fold, spread, with_bias


def _groups(node: Node) -> int:
    return int(node.arg(8 if node.op == "aten.convolution.default" else 6, "groups", 1))


@label_rule("aten.conv1d.default", "aten.conv2d.default", "aten.conv3d.default", "aten.convolution.default",
            "aten.conv1d.padding", "aten.conv2d.padding", "aten.conv3d.padding",
            "aten.conv_transpose1d.default", "aten.conv_transpose2d.input", "aten.conv_transpose3d.input")
def _conv(walk: Walk, node: Node) -> Outcome:
    value, weight, bias = node.args[0], node.args[1], node.arg(2, "bias")
    rank = len(node.shape)
    general = node.op == "aten.convolution.default"
    transposed = "transpose" in node.op or (general and bool(node.args[6]))
    if len(walk.shape(weight)) != rank:
        walk.pin(node, walk(value) + walk(weight) + walk(bias), "is a convolution without batch axis")
        return ()
    groups = _groups(node)
    walk.pin(node, touching(walk(weight), range(2, rank)), "is a kernel position")
    walk.pin(node, touching(walk(value), [0, *range(2, rank)]), "is convolved over")
    if groups == 1:
        factors = _dense(walk, node, value, weight, bias, transposed)
    else:
        factors = _grouped(walk, node, value, weight, groups, transposed)
    return with_bias(walk, node, factors, bias, axis=1)


def _dense(walk: Walk, node: Node, value: Ref, weight: Ref, bias: object, transposed: bool) -> Factors:
    unit_axis, inner_axis = (1, 0) if transposed else (0, 1)
    units = walk.single(node, walk(weight), unit_axis)
    inner = walk.single(node, walk(weight), inner_axis)
    read = walk.single(node, walk(value), 1)
    add_layer(walk, node, weight, units, node.shape[1])
    if inner is not None and read is not None:
        walk.labels.unite(vector(read), vector(inner))
        sides = (
            Side(value.name, (1,)),
            Side(weight.name, (inner_axis,), None if units is None else vector(units), unit_axis),
        )
        walk.reads.append(Read(walk.index, node.name, vector(read), sides))
        if not transposed and not _padded(node):
            note_fold(walk, node, ["i"], weight, bias, axis=inner_axis)
    else:
        walk.pin(node, tuple(f for f in (inner, read) if f is not None), "meets values that cannot be cut")
    return () if units is None else (spread(units, 1, len(node.shape)),)


def _padded(node: Node) -> bool:
    padding = node.arg(4, "padding", 0)
    if isinstance(padding, str):
        return padding != "valid"
    return any(padding) if isinstance(padding, list | tuple) else bool(padding)


def _grouped(walk: Walk, node: Node, value: Ref, weight: Ref, groups: int, transposed: bool) -> Factors:
    """A grouped convolution: its groups must stay equal, and each reads its own inputs through one inner axis."""
    shape, owner = walk.shape(weight), walk.node(weight)
    channels = walk.shape(value)[1]
    inputs, outputs = channels // groups, node.shape[1] // groups
    read = walk.single(node, walk(value), 1)
    outer = walk.single(node, walk(weight), 0)
    if owner.op != PARAMETER or read is None or outer is None:
        add_layer(walk, node, weight, None if transposed else outer, node.shape[1])
        walk.pin(node, walk(value) + walk(weight), "is a grouped convolution of values that cannot be cut")
        return ()
    if not transposed:
        add_layer(walk, node, weight, outer, node.shape[1])
    if inputs == 1 and (not transposed or shape[1] == 1):
        # depthwise: output c·k … c·k+k−1 is made of input c alone, so they go together
        if transposed:
            add_layer(walk, node, weight, outer, node.shape[1])
        walk.labels.unite(vector(outer).reshape(channels, -1), vector(read).reshape(channels, 1))
        walk.regroups[owner.target] = vector(read).reshape(channels, 1)
        return (spread(outer, 1, len(node.shape)),)
    return _blockwise(walk, node, (value, weight), (vector(read), vector(outer)), (groups, inputs, outputs), transposed)


def _blockwise(
    walk: Walk, node: Node, refs: tuple[Ref, Ref], labels: tuple, sizes: tuple[int, int, int], transposed: bool  # type: ignore[type-arg]
) -> Factors:
    (value, weight), (read, outer), (groups, inputs, outputs) = refs, labels, sizes
    target, rank, inner_size = walk.node(weight).target, len(node.shape), walk.shape(weight)[1]
    walk.pin(node, touching(walk(weight), (1,)), "belongs to every group of a convolution")
    known = walk.labels.slots.get((target, 1))
    before = known.labels if known is not None and known.labels.dim() == 2 else None
    if transposed:
        made = walk.labels.fresh(groups * outputs) if before is None else before.reshape(-1)
        walk.labels.unite(read, outer)
        inner = made.reshape(groups, outputs)
    else:
        made, inner = outer, read.reshape(groups, inputs)
    if before is not None:
        walk.labels.unite(before, inner)
    elif inner_size > 1:
        walk.labels.slots[target, 1] = Slot(target, 1, inner)
    if transposed:
        add_layer(walk, node, weight, made, len(made), axis=1)
    matrices = (read.reshape(groups, inputs), made.reshape(groups, outputs))
    reason = walk.reason(node, "every group of a convolution must keep the same number of units")
    walk.labels.constraints.append(Blocks(matrices, True, reason))
    walk.regroups[target] = matrices[0]
    sides = (Side(value.name, (1,)), Side(weight.name, (1,), made, 0, groups, transposed))
    walk.reads.append(Read(walk.index, node.name, read, sides))
    return (made.reshape([-1 if d == 1 else 1 for d in range(rank)]),)
