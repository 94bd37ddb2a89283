"""Which units of a layer meet an activation with a zero region, and behind which batch norm.

A layer's units are followed through the graph by their numbers. A value's are a compact tensor: the number of the unit
that each element belongs to, or −1. So units that are parted or joined on their way are told from those beside them.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import dropwhile

import torch
from torch import Tensor

from ..planning import Structure
from ..planning.labels import FIXED, Factors, support
from ..planning.reach import BATCH_NORMS
from ..planning.rules.elementwise import NO_ZERO_REGION, ZERO_REGION
from ..planning.walk import Layer
from ..tracing.compact import MOVES, join, join_axis, names_of
from ..tracing.graph import GETITEM, Graph, Node
from .norms import parameter_behind

Numbers = Tensor | tuple[Tensor, ...]
_EQUAL_PARTS = ("aten.split.Tensor", "aten.chunk.default", "aten.unsafe_chunk.default")
_JOINS = ("aten.cat.default", "aten.stack.default", "aten.concat.default")


@dataclass
class Meetings:
    """Units that meet an activation directly, and behind each norm, by its node's name: row of the norm, unit."""

    direct: set[int] = field(default_factory=set)
    behind: dict[str, dict[int, int]] = field(default_factory=dict)


def ends(structure: Structure) -> frozenset[tuple[int, str]]:
    """Where units end, by graph and node: they are summed up, or others made of them, also where none can be cut."""
    return frozenset((item.graph, item.node) for items in (structure.reads, structure.layers) for item in items)


def meetings(structure: Structure, layer: Layer, stops: Container[tuple[int, str]]) -> Meetings:
    """Follow a layer's units up to the first activations; the last norm before one is what they meet it behind."""
    graph, found = structure.program.graphs[layer.graph], Meetings()
    held: dict[str, list[tuple[str, Numbers]]] = {layer.node: [("", first) for first in _first(structure, layer)]}
    rows: dict[str, dict[int, int]] = {}
    waiting = set(graph.readers.get(layer.node, ()))
    for node in dropwhile(lambda item: item.name != layer.node, graph.nodes):
        if not waiting:
            break
        if node.name not in waiting:
            continue
        waiting.remove(node.name)
        if (layer.graph, node.name) in stops or node.name in graph.shapeless or node.op in NO_ZERO_REGION:
            continue
        active = node.op in ZERO_REGION and ZERO_REGION[node.op](node) is not None
        names = dict.fromkeys(node.inputs)
        for source, norm, numbers in [(name, *item) for name in names for item in held.get(name, ())]:
            if active:
                _meet(found, norm, numbers, rows.get(norm, {}))
                continue
            passed = _pass(structure, layer.graph, node, source, numbers)
            if passed is None:
                continue
            if node.op in BATCH_NORMS and isinstance(passed, Tensor) and _affine(graph, node):
                norm = node.name
                rows.setdefault(norm, {}).update(_rows(passed, node))
            known = held.setdefault(node.name, [])
            if not any(norm == other and _equal(passed, numbers) for other, numbers in known):
                known.append((norm, passed))
                waiting.update(graph.readers.get(node.name, ()))
    return found


def _meet(found: Meetings, norm: str, numbers: Numbers, rows: Mapping[int, int]) -> None:
    met = {number for part in _parts(numbers) for number in part.reshape(-1).tolist()} - {-1}
    if norm:
        found.behind.setdefault(norm, {}).update((row, unit) for row, unit in rows.items() if unit in met)
    else:
        found.direct |= met


def _first(structure: Structure, layer: Layer) -> Iterator[Tensor]:
    """The numbers of what the layer itself makes: its units' places along the weight's axis."""
    shape = structure.program.graphs[layer.graph].by_name[layer.node].shape
    if bool((layer.labels == FIXED).all()):  # an only unit, or units that no rule can take apart
        convolution = structure.program.graphs[layer.graph].by_name[layer.node].op.startswith("aten.conv")
        axis = 1 if convolution else len(shape) - 1
        if len(layer.places) in (1, shape[axis]):
            yield layer.places.reshape([-1 if d == axis else 1 for d in range(len(shape))])
        return
    table = _table(structure, layer.labels, layer.places)
    for factor in _factors(structure, layer.graph, layer.node):
        if bool((table[factor] >= 0).any()):
            yield table[factor]


def _pass(structure: Structure, graph: int, node: Node, source: str, numbers: Numbers) -> Numbers | None:
    """The numbers of a node's result; None where units end."""
    program, rank = structure.program.graphs[graph], len(node.shape)
    if isinstance(numbers, tuple):
        return _labelled(structure, graph, node, numbers[node.args[1]]) if node.op == GETITEM else None
    shape = program.by_name[source].shape
    if node.op == GETITEM:
        return _labelled(structure, graph, node, numbers) if node.args[1] == 0 else None
    if node.op in MOVES:
        moved: Numbers = MOVES[node.op](node, numbers, shape, node.shape)
        if support(numbers) and not support(_parts(moved)[0]) and node.op not in _EQUAL_PARTS:
            return None  # picked by its position, where it is pinned
        return moved if isinstance(moved, tuple) else _labelled(structure, graph, node, moved)
    if node.op in _JOINS:
        nothing = torch.full([1] * len(shape), -1)
        names = names_of(node.args[0])
        parts = [(numbers if name == source else nothing, program.by_name[name].shape) for name in names]
        return _labelled(structure, graph, node, join(node, parts, node.shape, axis=join_axis(node)))
    lifted = numbers.reshape([1] * max(rank - numbers.dim(), 0) + list(numbers.shape))
    before = (1,) * (rank - len(shape)) + shape
    if lifted.dim() == rank and all(n in (1, m) for n, m in zip(lifted.shape, node.shape, strict=True)):
        alone = not support(lifted)  # such as an only unit: it may not spread over others
        if not alone or all(m <= n for m, n in zip(node.shape, before, strict=True)):
            return _labelled(structure, graph, node, lifted)
    return _by_labels(structure, graph, node, source, numbers)


def _labelled(structure: Structure, graph: int, node: Node, numbers: Tensor) -> Tensor | None:
    """The numbers, if the node's result still has units along their axes, and any of these."""
    if not bool((numbers >= 0).any()):
        return None
    axes = set(support(numbers))
    known = {axis for factor in _factors(structure, graph, node.name) for axis in support(factor)}
    return numbers if axes & known or not axes else None


def _by_labels(structure: Structure, graph: int, node: Node, source: str, numbers: Tensor) -> Tensor | None:
    """The numbers of a result with other axes, found by the labels that went there."""
    for factor in _factors(structure, graph, source):
        if factor.dim() == numbers.dim() and set(support(numbers)) == set(support(factor)):
            table = _table(structure, factor.reshape(-1), numbers.reshape(-1))
            for other in _factors(structure, graph, node.name):
                if bool((table[other] >= 0).any()):
                    return table[other]
    return None


def _table(structure: Structure, labels: Tensor, numbers: Tensor) -> Tensor:
    """The number of each label."""
    table = torch.full((len(structure.representative),), -1)
    table[labels] = numbers
    return table


def _factors(structure: Structure, graph: int, name: str) -> Factors:
    outcome = structure.values[graph].get(name, ())
    return outcome[0] if isinstance(outcome, list) else outcome


def _affine(graph: Graph, node: Node) -> bool:
    return all(parameter_behind(graph, arg) is not None for arg in node.args[1:3])


def _rows(numbers: Tensor, node: Node) -> dict[int, int]:
    """The unit of each row of a norm: one, also where several are arranged along other axes."""
    units = numbers.movedim(1, 0).reshape(numbers.shape[1], -1).amax(1).expand(node.shape[1])
    return {row: unit for row, unit in enumerate(units.tolist()) if unit >= 0}


def _equal(first: Numbers, second: Numbers) -> bool:
    return all(map(torch.equal, _parts(first), _parts(second)))


def _parts(numbers: Numbers) -> tuple[Tensor, ...]:
    return numbers if isinstance(numbers, tuple) else (numbers,)
