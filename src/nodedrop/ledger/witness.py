"""What a cut leaves for a checker: the slices that go, and as much of the weights behind them as their proofs need.

Behind an activation of fixed range a proof need not look, unless the units there are known to stay well inside of it.
So the bounds of the removed units are computed again on the part of the graph behind them, first up to the nearest
activations of fixed range, whose inputs count as unbounded, then up to those behind them, until the bounds suffice.
Weights that are still needed are kept as intervals, as wide as the bounds can spare: behind a layer norm, say, only
their size matters, for what rounding a mean can cost.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from ..bounds import Interval, Result
from ..planning import Cut, reach
from ..planning.account import _per_unit
from ..planning.rules.elementwise import ZERO_REGION
from ..planning.walk import Layer
from ..tracing import Graph, Node, Ref
from .enclosure import BITS, WHOLE, Enclosure, enclose
from .lines import gone
from .record import CutRecord

# Results of these lie in a fixed range, whatever they read first.
_NAMES = """aten.sigmoid aten.tanh aten.hardtanh aten.relu6 aten.hardsigmoid nodedrop.soft_clamped_relu aten._softmax
    aten.rms_norm aten._fused_rms_norm"""
FIXED_RANGE = frozenset(f"{name}.default" for name in _NAMES.split()) | {"aten.softmax.int"}
SUMS = ("aten.linear.", "aten.conv", "aten.addmm.", "aten.matmul.", "aten.mm.", "aten.bmm.")
LEAVES = ("parameter", "buffer")


class Witness:
    """What must be kept of the tensors before a cut, and the bounds that follow from it."""

    def __init__(self, record: CutRecord) -> None:
        self.record = record
        self.bounds: dict[tuple[str, int], float] = {}
        self._made: dict[tuple[str, int], Enclosure | None] = {}
        self._made_as: dict[Hashable, int] = {}
        self._values: dict[int, Result] = {}  # layer after layer asks for the same

    @cached_property
    def forms(self) -> dict[str, int]:
        """The bits a weight with which tensors are kept; of the others what is removed is enough."""
        structure, removed, modes = self.record.structure, self.record.plan.removed, self.record.analysis.modes
        found = {cut.tensor: WHOLE for cut in self.record.plan.cuts if cut.keep.dim() > 1}
        for layer in structure.layers:
            lost = removed[structure.representative[layer.labels]]
            if bool(lost.any()) and set(structure.program.graphs[layer.graph].modes) & set(modes):
                needed = self._needed(layer, lost) | ({layer.weight: WHOLE} if layer.axis != 0 else {})
                found = _wider(found, needed)
        return found

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Whole tensors by `whole/name`; slices by `removed/axis/name`, those of axis 1 without the rows of axis 0; and
        of what stays, intervals by `rows/name` and `steps/name`."""
        for name in {cut.tensor: None for cut in self.record.plan.cuts}:
            if self.forms.get(name) != WHOLE:
                value = self.record.before[name]
                for cut in self._cuts[name]:
                    yield f"removed/{cut.axis}/{name}", _picked(value, cut)
                    value = value.index_select(cut.axis, cut.keep.to(value.device))
        for name, bits in sorted(self.forms.items()):
            enclosed = self._enclosed(name, bits)
            yield from [(f"whole/{name}", self.record.before[name])] if enclosed is None else enclosed.tensors(name)

    @cached_property
    def _cuts(self) -> dict[str, list[Cut]]:
        """The cuts of each tensor, by axis."""
        found: dict[str, list[Cut]] = {}
        for cut in sorted(self.record.plan.cuts, key=lambda cut: cut.axis):
            found.setdefault(cut.tensor, []).append(cut)
        return found

    def _enclosed(self, name: str, bits: int) -> Enclosure | None:
        """What stays of a tensor, enclosed; None where it must be kept whole."""
        if (name, bits) not in self._made:
            cuts, stays = self._cuts.get(name, []), self.record.before[name].cpu()
            whole = bits == WHOLE or any(cut.keep.dim() > 1 for cut in cuts)
            for cut in [] if whole else cuts:
                stays = stays.index_select(cut.axis, cut.keep.cpu())
            self._made[name, bits] = None if whole else enclose(stays, bits)
        return self._made[name, bits]

    def known(self, name: str, bits: int) -> Tensor | Interval:
        """All that is kept of a tensor: what goes as it is, and what stays enclosed."""
        value, enclosed = self.record.before[name], self._enclosed(name, bits)
        if enclosed is None:
            return value
        inner, cuts = enclosed.interval(), self._cuts.get(name, [])
        lo, hi = (_within(value.detach().cpu(), cuts, stays) for stays in (inner.lo, inner.hi))
        return Interval(lo, hi, tuple(value.shape))

    def _needed(self, layer: Layer, lost: Tensor) -> dict[str, int]:
        """Tensors behind a layer's activations that its removed units' bounds depend on, and with how many bits."""
        structure = self.record.structure
        graph = structure.program.graphs[layer.graph]
        found: dict[str, int] = {}
        for name in reach(structure, layer).zero:
            node = graph.by_name[name]
            edge = ZERO_REGION[node.op](node) or 0.0
            depth, deeper = 1, True
            while deeper:
                part, far, deeper = _behind(graph, node.inputs[0], depth)
                tops = self._tops(part, layer, lost, {})
                deeper &= bool((tops > edge).any())
                depth += 1
            forms = dict.fromkeys(far, WHOLE)
            for bits in BITS if bool((tops <= edge).all()) else ():
                tried = {name: WHOLE if self._enclosed(name, bits) is None else bits for name in far}
                loose = self._tops(part, layer, lost, tried)
                if bool((loose <= edge).all()):
                    forms, tops = tried, loose
                    break
            for index, bound in zip(layer.places[lost].tolist(), tops.tolist(), strict=True):
                self.bounds[layer.name, index] = max(bound, self.bounds.get((layer.name, index), bound))
            found = _wider(found, forms)
        return found

    def _tops(self, part: Graph, layer: Layer, lost: Tensor, forms: Mapping[str, int]) -> Tensor:
        """The upper ends of removed units, with what is kept of the tensors behind them."""
        source, numbers = part.outputs[0], self._numbers(part, layer.graph, forms)
        known = {name: self._values[number] for name, number in numbers.items() if number in self._values}
        bounds = self.record.bounded(part, _Kept(self, forms), known)
        self._values |= {number: bounds.values[name] for name, number in numbers.items() if name in bounds.values}
        return _per_unit(self.record.structure, layer.graph, source, bounds[source].hi, layer.labels)[lost]

    def _numbers(self, part: Graph, graph: int, forms: Mapping[str, int]) -> dict[str, int]:
        """A number for each value that operators make, the same for all that are made alike: of the same graph, the
        same tensors kept with as many bits, and the same inputs unbounded."""
        batches = [node.shape[0] for node in part.inputs if node.is_tensor and node.shape]
        around = (graph, frozenset(node.dtype for node in part.nodes), *batches[:1])  # what rules may ask of the whole
        found: dict[str, int] = {}
        for node in part.nodes:
            made = (node.name, forms.get(node.target, WHOLE), tuple(found[name] for name in node.inputs), around)
            found[node.name] = self._made_as.setdefault(made, len(self._made_as))
        return {node.name: found[node.name] for node in part.nodes if node.op not in LEAVES}


class _Kept(dict[str, "Tensor | Interval"]):
    """What is kept of tensors, worked out when it is asked for."""

    def __init__(self, witness: Witness, forms: Mapping[str, int]) -> None:
        super().__init__()
        self.witness, self.forms = witness, forms

    def __missing__(self, name: str) -> Tensor | Interval:
        return self.witness.known(name, self.forms.get(name, WHOLE))


def _wider(one: Mapping[str, int], two: Mapping[str, int]) -> dict[str, int]:
    return {name: max(one.get(name, 0), two.get(name, 0)) for name in {**one, **two}}


def _within(whole: Tensor, cuts: Sequence[Cut], stays: Tensor) -> Tensor:
    """What stays of a tensor after all cuts, and around it what goes."""
    for k, cut in reversed(list(enumerate(cuts))):
        goes = _picked(whole, cut)
        for earlier in cuts[:k]:
            goes = goes.index_select(earlier.axis, earlier.keep.cpu())
        wide = stays.new_empty((*stays.shape[: cut.axis], cut.size, *stays.shape[cut.axis + 1 :]))
        wide.index_copy_(cut.axis, cut.keep.cpu(), stays).index_copy_(cut.axis, torch.tensor(gone(cut)), goes.to(wide))
        stays = wide
    return stays


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
        summing, first = node.op.startswith(SUMS), int(passed >= depth and node.op in FIXED_RANGE)
        for k, reads in enumerate(node.inputs[first:], first):
            frontier.append((reads, passed, behind or (summing and k == 0)))
    stubs = [node for name, node in nodes.items() if name not in graph.by_name]
    ordered = [nodes[node.name] for node in graph.nodes if node.name in nodes]
    return Graph(graph.mode, (*stubs, *ordered), (source,), graph.constants, ()), far, deeper
