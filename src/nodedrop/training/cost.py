"""What a unit costs: the multiply-adds of all weights that would go with it, its own and those that read it."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch

from ..planning import Structure
from ..tracing.graph import PARAMETER, Graph, Node
from .norms import parameter_behind
from .targets import Target

_SUMS = ("aten.linear.", "aten.addmm.", "aten.mm.", "aten.matmul.")


def factors(structure: Structure, targets: Sequence[Target], power: float) -> list[float]:
    """What a unit of each layer costs at the widths of the moment, beside the mean of all layers, to some power.

    A layer whose cost is not known, say that of a single unit, has the mean's.
    """
    if not power:
        return [1.0] * len(targets)
    found = costs(structure, targets)
    known = [cost for cost in found if cost > 0]
    return [(cost * len(known) / sum(known)) ** power if cost > 0 else 1.0 for cost in found]


def costs(structure: Structure, targets: Sequence[Target]) -> list[float]:
    """Multiply-adds per unit of each layer, on the example inputs."""
    graph = structure.program.graphs[0]
    times = _times(graph)
    sizes = {node.target: prod(node.shape) for node in graph.nodes if node.op == PARAMETER}
    fate = structure.representative
    spent = torch.zeros(len(fate), dtype=torch.double)
    for slot in structure.slots:
        if slot.tensor in times:
            each = times[slot.tensor] * sizes[slot.tensor] / max(slot.labels.numel(), 1)
            labels = fate[slot.labels].reshape(-1)
            spent.index_add_(0, labels, torch.full(labels.shape, each, dtype=torch.double))
    units = {layer.weight: fate[layer.labels].unique() for layer in reversed(structure.layers)}
    return [float(spent[units[t.weight]].mean()) if t.weight in units else 0.0 for t in targets]


def _times(graph: Graph) -> dict[str, int]:
    """How many products are taken with each element of a weight: one for each position of what its layer makes."""
    found: dict[str, int] = {}
    for node in graph.nodes:
        for argument in node.args if node.op.startswith(("aten.conv", *_SUMS)) else ():
            name = parameter_behind(graph, argument)
            if name is not None and len(graph.by_name[argument.name].shape) > 1:
                found[name] = found.get(name, 0) + _positions(graph, node)
    return found


def _positions(graph: Graph, node: Node) -> int:
    """Of a layer's result; a transposed convolution spreads each position of its input."""
    turned = "transpose" in node.op or (node.op == "aten.convolution.default" and bool(node.arg(6, "transposed")))
    shape = graph.by_name[node.args[0].name].shape if turned else node.shape
    return prod(shape) // max(shape[1 if node.op.startswith("aten.conv") else -1], 1)
