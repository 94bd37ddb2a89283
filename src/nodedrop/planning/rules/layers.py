"""What rules of weighted sums share: units are registered, biases go with them, constants may move into those."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ...tracing.graph import INPUT, PARAMETER, Node, Ref
from ..labels import FIXED, Factor, Factors, vector
from ..walk import Fold, Layer, Walk, layer_name


def spread(factor: Factor, axis: int, rank: int) -> Factor:
    """A single-axis factor as a factor of another value."""
    return vector(factor).reshape([-1 if d == axis else 1 for d in range(rank)])


def parameter_of(walk: Walk, ref: Ref) -> Node | None:
    """The parameter that a value is made of, and of no input: rearranged, masked, scaled or normalised."""
    node, seen = walk.node(ref), {ref.name}
    frontier, found = [node], None
    while frontier:
        node = frontier.pop(0)
        if node.op == INPUT:
            return None
        if node.op == PARAMETER and found is None:
            found = node
        frontier += [walk.graph.by_name[name] for name in node.inputs if name not in seen]
        seen.update(node.inputs)
    return found


def add_layer(walk: Walk, node: Node, weight: Ref, units: Tensor | None, size: int, axis: int = 0) -> None:
    """Register a layer of `size` units, along `axis` if no axis has their labels. A single one is fixed."""
    owner = parameter_of(walk, weight)
    if owner is not None:
        labels = torch.full((size,), FIXED) if units is None else vector(units)
        name, first = layer_name(owner.target), int(labels[0])
        slots = [s for (tensor, _), s in walk.labels.slots.items() if tensor == owner.target and first in s.labels]
        axis, start = (slots[0].axis, int(slots[0].labels.min())) if slots and first != FIXED else (axis, first)
        places = labels - start if first != FIXED else torch.arange(size)
        walk.layers.append(Layer(name, owner.target, axis, places, walk.index, node.name, labels, node.where))


def with_bias(walk: Walk, node: Node, factors: Factors, bias: object, *, axis: int | None = None) -> Factors:
    """The bias goes with the units; a convolution's lies along `axis` instead of the last one."""
    if not isinstance(bias, Ref):
        return factors
    own, shape = walk(bias), walk.shape(bias)
    if axis is not None:
        own = tuple(spread(f, axis, len(node.shape)) for f in own)
        shape = tuple(shape[0] if d == axis else 1 for d in range(len(node.shape)))
    return walk.align(node, [(factors, node.shape), (own, shape)], node.shape)


def note_fold(walk: Walk, node: Node, summed: list[str], weight: Ref, bias: object, *, axis: int) -> None:
    """Remember where constants of the read just made could be folded: into a bias parameter of a plain weight."""
    if not summed or not isinstance(bias, Ref):
        return
    weight_node, bias_node = walk.node(weight), walk.node(bias)
    if weight_node.op == PARAMETER and bias_node.op == PARAMETER:
        read = walk.reads[-1]
        fold = Fold(weight_node.target, axis, bias_node.target)
        walk.reads[-1] = replace(read, fold=fold)
