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


def parameters_of(walk: Walk, ref: Ref) -> list[Node]:
    """The parameters that a value is made of, and of no input: rearranged, joined, masked, scaled or normalised."""
    node, seen = walk.node(ref), {ref.name}
    frontier, found = [node], list[Node]()
    while frontier:
        node = frontier.pop(0)
        if node.op == INPUT:
            return []
        found += [node] if node.op == PARAMETER else []
        frontier += [walk.graph.by_name[name] for name in node.inputs if name not in seen]
        seen.update(node.inputs)
    return found


def add_layer(walk: Walk, node: Node, weight: Ref, units: Tensor | None, size: int, axis: int = 0) -> None:
    """Register a layer of `size` units, each with the parameter that has its label, along `axis` of the first one where
    none has. A single unit is fixed."""
    owners = parameters_of(walk, weight)
    labels = torch.full((size,), FIXED) if units is None else vector(units)
    placed = list(enumerate(labels.tolist()))
    first = {label: place for place, label in reversed(placed)}  # a weight may have a parameter twice
    rest = torch.tensor([bool(owners) and (u == FIXED or first[u] == place) for place, u in placed], dtype=torch.bool)

    def register(target: str, along: int, mine: Tensor, places: Tensor) -> None:
        name = layer_name(target)
        walk.layers.append(Layer(name, target, along, places[mine], walk.index, node.name, labels[mine], node.where))

    for owner in owners:
        for slot in [slot for (tensor, _), slot in walk.labels.slots.items() if tensor == owner.target]:
            mine = rest & (labels != FIXED) & torch.isin(labels, slot.labels)
            rest = rest & ~mine
            if mine.any():
                register(owner.target, slot.axis, mine, labels - slot.labels.min())
    if rest.any():
        register(owners[0].target, axis, rest, torch.arange(size))


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
