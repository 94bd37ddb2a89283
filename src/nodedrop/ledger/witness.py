"""What a cut leaves for a checker: the slices that go, and as much of the weights behind them as their proofs need.

Behind an activation of fixed range a proof need not look, unless the units there are known to stay well inside of it.
So the bounds of the removed units are computed again on the part of the graph behind them, first up to the nearest
activations of fixed range, whose inputs count as unbounded, then up to those behind them, until the bounds suffice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from ..planning import Cut, reach
from ..planning.account import _per_unit
from ..planning.rules.elementwise import ZERO_REGION
from ..planning.walk import Layer
from ..tracing import Graph, Node, Ref
from .lines import gone
from .record import CutRecord

# Results of these lie in a fixed range, whatever they read.
_NAMES = "aten.sigmoid aten.tanh aten.hardtanh aten.relu6 aten.hardsigmoid nodedrop.soft_clamped_relu aten._softmax"
FIXED_RANGE = frozenset(f"{name}.default" for name in _NAMES.split()) | {"aten.softmax.int"}
SUMS = ("aten.linear.", "aten.conv", "aten.addmm.", "aten.matmul.", "aten.mm.", "aten.bmm.")
LEAVES = ("parameter", "buffer")


class Witness:
    """What must be kept of the tensors before a cut, and the bounds that follow from it."""

    def __init__(self, record: CutRecord) -> None:
        self.record = record
        self.bounds: dict[tuple[str, int], float] = {}

    @cached_property
    def whole(self) -> set[str]:
        """Tensors that are kept whole; of the others what is removed is enough."""
        structure, removed, modes = self.record.structure, self.record.plan.removed, self.record.analysis.modes
        found = {cut.tensor for cut in self.record.plan.cuts if cut.keep.dim() > 1}
        for layer in structure.layers:
            lost = removed[structure.representative[layer.labels]]
            if bool(lost.any()) and set(structure.program.graphs[layer.graph].modes) & set(modes):
                found |= self._needed(layer, lost) | ({layer.weight} if layer.axis != 0 else set())
        return found

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Whole tensors by `whole/name`, and slices by `removed/axis/name`; those of axis 1 lack the rows of axis 0."""
        left: dict[str, Tensor] = {}
        for cut in sorted(self.record.plan.cuts, key=lambda cut: cut.axis):
            if cut.tensor not in self.whole:
                value = left.get(cut.tensor, self.record.before[cut.tensor])
                yield f"removed/{cut.axis}/{cut.tensor}", _picked(value, cut)
                left[cut.tensor] = value.index_select(cut.axis, cut.keep.to(value.device))
        for name in sorted(self.whole):
            yield f"whole/{name}", self.record.before[name]

    def _needed(self, layer: Layer, lost: Tensor) -> set[str]:
        """Tensors behind a layer's activations that its removed units' bounds depend on."""
        structure = self.record.structure
        graph = structure.program.graphs[layer.graph]
        found: set[str] = set()
        for name in reach(structure, layer).zero:
            node = graph.by_name[name]
            edge = ZERO_REGION[node.op](node) or 0.0
            depth, deeper = 1, True
            while deeper:
                part, far, deeper = _behind(graph, node.inputs[0], depth)
                top = self.record.bounded(part)[node.inputs[0]].hi
                tops = _per_unit(structure, layer.graph, node.inputs[0], top, layer.labels)
                deeper &= bool((tops[lost] > edge).any())
                depth += 1
            for index, bound in zip(layer.places[lost].tolist(), tops[lost].tolist(), strict=True):
                self.bounds[layer.name, index] = max(bound, self.bounds.get((layer.name, index), bound))
            found |= far
        return found


def _picked(value: Tensor, cut: Cut) -> Tensor:
    return value.index_select(cut.axis, torch.tensor(gone(cut), device=value.device))


def _behind(graph: Graph, source: str, depth: int) -> tuple[Graph, set[str], bool]:
    """The graph that computes a value, back to the `depth`-th activations of fixed range; the tensors it reads behind
    its nearest sums; and whether there is more behind it."""
    nodes: dict[str, Node] = {}
    seen: dict[str, tuple[int, bool]] = {}
    far: set[str] = set()
    deeper = False
    frontier = [(source, 0, False)]
    while frontier:
        name, passed, behind = frontier.pop()
        before = seen.get(name)
        if before is not None and before[0] <= passed and before[1] >= behind:
            continue
        node = graph.by_name[name]
        least = passed if before is None else min(passed, before[0])
        seen[name] = (least, behind or (before is not None and before[1]))
        nodes[name] = node
        if node.op in LEAVES:
            far |= {node.target} if behind else set()
            continue
        passed = least + (node.op in FIXED_RANGE)
        if passed >= depth and node.op in FIXED_RANGE:
            inner = graph.by_name[node.inputs[0]]
            stub = Node(f"{inner.name}__unbounded", "input", shapes=inner.shapes, dtypes=inner.dtypes)
            nodes[name] = replace(node, args=(Ref(stub.name), *node.args[1:]))
            nodes[stub.name] = replace(stub, target=stub.name)
            deeper = True
            continue
        summing = node.op.startswith(SUMS)
        for k, reads in enumerate(node.inputs):
            frontier.append((reads, passed, behind or (summing and k == 0)))
    stubs = [node for name, node in nodes.items() if name not in graph.by_name]
    ordered = [nodes[node.name] for node in graph.nodes if node.name in nodes]
    return Graph(graph.mode, (*stubs, *ordered), (source,), graph.constants, ()), far, deeper
