"""Walk graphs and label every value; the registry of label rules, one per kind of operator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ..tracing.graph import BUFFER, CONSTANT, GETITEM, INPUT, PARAMETER, Graph, Node, Program, Ref, Shape
from .labels import FIXED, Blocks, Factor, Factors, Grid, Labels, Slot, Whole, along, support, touching

Outcome = Factors | list[Factors]
LabelRule = Callable[["Walk", Node], Outcome]

LABEL_RULES: dict[str, LabelRule] = {}

# Tests set this, so that a rule that fails is an error and not merely an operator without a rule.
STRICT = False


def label_rule(*ops: str) -> Callable[[LabelRule], LabelRule]:
    """Register a label rule for some operators."""

    def register(function: LabelRule) -> LabelRule:
        for op in ops:
            LABEL_RULES[op] = function
        return function

    return register


@dataclass(frozen=True)
class Side:
    """One operand of a weighted sum. A read's labels lie along `axes`, of which the last is summed over.

    `units` labels the operand's other channel axis, where what a removed unit reads does not count. A grouped
    convolution's weight is seen as [groups, units, indices, positions]; `transposed` says which axis comes first.
    """

    value: str
    axes: tuple[int, ...]
    units: Tensor | None = None
    units_axis: int = 0
    groups: int = 1
    transposed: bool = False


@dataclass(frozen=True)
class Fold:
    """Where a constant input of a weighted sum can be moved to: its bias."""

    weight: str
    axis: int
    bias: str


@dataclass(frozen=True)
class Read:
    """A place where units are summed away: exact without a unit only if one side is zero at its index.

    `labels` has one axis, or two where each head sums over its own; `heads` are the readers then.
    """

    graph: int
    node: str
    labels: Tensor
    sides: tuple[Side, Side]
    fold: Fold | None = None
    heads: Tensor | None = None


@dataclass(frozen=True)
class Layer:
    """A weight of which one axis, or part of it, is made of units; `places` are their indices along that axis."""

    name: str
    weight: str
    axis: int
    places: Tensor
    graph: int
    node: str
    labels: Tensor
    where: str


def layer_name(weight: str) -> str:
    """A layer goes by its module's name, or by that of a bare parameter."""
    return weight.removesuffix(".weight")


@dataclass(frozen=True)
class Fixed:
    """Units that no rule can take apart: they stay, and are counted."""

    name: str
    weight: str
    units: int
    reason: str


@dataclass
class Walk:
    """One graph being labelled."""

    labels: Labels
    graph: Graph
    index: int
    values: dict[str, Outcome] = field(default_factory=dict)
    reads: list[Read] = field(default_factory=list)
    layers: list[Layer] = field(default_factory=list)
    fixed: list[Fixed] = field(default_factory=list)
    regroups: dict[str, Tensor] = field(default_factory=dict)
    sized: list[tuple[str, Tensor]] = field(default_factory=list)

    def __call__(self, value: Any) -> Factors:
        """The factors of an argument; none for plain numbers."""
        if not isinstance(value, Ref):
            return ()
        found = self.values.get(value.name, ())
        return found[0] if isinstance(found, list) else found

    def shape(self, value: Any) -> Shape:
        """The shape of an argument."""
        return self.graph.by_name[value.name].shape if isinstance(value, Ref) else ()

    def node(self, value: Ref) -> Node:
        """The node behind a reference."""
        return self.graph.by_name[value.name]

    def reason(self, node: Node, text: str) -> str:
        """A reason that names operator and source line."""
        short = node.op.split(".")[1] if "." in node.op else node.op
        return f"{text} ({short}{' at ' + node.where if node.where else ''})"

    def pin(self, node: Node, factors: Factors, text: str) -> Factors:
        """Pin factors at a node."""
        self.labels.pin(factors, self.reason(node, text))
        return ()

    def single(self, node: Node, factors: Factors, axis: int) -> Factor | None:
        """The one factor on an axis; where several axes or factors are entangled there, they are pinned."""
        found = along(factors, axis)
        if found is None:
            self.pin(node, touching(factors, (axis,)), "units lie along several axes")
        return found

    def align(self, node: Node, operands: list[tuple[Factors, Shape]], out: Shape) -> Factors:
        """Elementwise meeting of operands: factors on common axes unite, those that meet fixed values are pinned."""
        rank = len(out)
        lifted = [
            ([f.reshape((1,) * (rank - f.dim()) + tuple(f.shape)) for f in factors], (1,) * (rank - len(s)) + tuple(s))
            for factors, s in operands
        ]
        result: list[Factor] = []
        for k, (factors, _) in enumerate(lifted):
            for factor in factors:
                axes = set(support(factor))
                for other, (others, shape) in enumerate(lifted):
                    if other == k or all(shape[d] == 1 for d in axes):
                        continue
                    partners = [f for f in others if axes & set(support(f))]
                    for partner in partners:
                        self.labels.unite(factor, partner)
                    if not partners:
                        self.pin(node, (factor,), "meets values that cannot be cut")
                held = next((f for f in result if set(support(f)) >= axes), None)
                if held is None:
                    result = [f for f in result if not set(support(f)) < axes]
                    result.append(factor)
        return tuple(result)


@dataclass(frozen=True)
class Structure:
    """What the graphs of a program say about cutting, independent of any weight's value."""

    program: Program
    representative: Tensor
    slots: tuple[Slot, ...]
    reads: tuple[Read, ...]
    layers: tuple[Layer, ...]
    fixed: tuple[Fixed, ...]
    constraints: tuple[Blocks | Grid | Whole, ...]
    free: Tensor
    pins: Mapping[int, str]
    regroups: Mapping[str, Tensor]
    sized: tuple[tuple[str, Tensor], ...]
    values: tuple[Mapping[str, Outcome], ...]

    @cached_property
    def uses(self) -> Mapping[tuple[str, int, int], list[Layer]]:
        """Layers by weight, axis and first place: the uses of the same units, in forward order."""
        found: dict[tuple[str, int, int], list[Layer]] = {}
        for layer in self.layers:
            found.setdefault((layer.weight, layer.axis, int(layer.places[0])), []).append(layer)
        return found

    @cached_property
    def joined(self) -> Tensor:
        """Whether a representative stands for units of several layers, or for several of one."""
        owners = [self.representative[uses[0].labels] for uses in self.uses.values()]
        found = torch.zeros(len(self.representative), dtype=torch.long)
        for own in owners:
            found += torch.bincount(own, minlength=len(found))
        return found > 1

    @cached_property
    def reading(self) -> tuple[frozenset[str], ...]:
        """For each graph, the nodes that read units one by one, also where nothing can be cut."""
        nodes = [(read.graph, read.node) for read in self.reads] + [(layer.graph, layer.node) for layer in self.layers]
        return tuple(frozenset(node for graph, node in nodes if graph == k) for k in range(len(self.program.graphs)))


def structure(program: Program) -> Structure:
    """Label all values of all graphs."""
    from . import rules as _rules  # noqa: F401  (registers every rule)

    labels = Labels()
    labels.pin((torch.full((1,), FIXED),), "it is the only unit of its layer, or cannot be told apart from others")
    walks = []
    for index, graph in enumerate(program.graphs):
        walk = Walk(labels, graph, index)
        for node in graph.nodes:
            walk.values[node.name] = _label(walk, node)
        _finish(walk)
        walks.append(walk)
    representative = labels.solve()
    pins: dict[int, str] = {}
    for pinned, reason in labels.pins:
        for label in representative[pinned].unique().tolist():
            pins.setdefault(label, reason)
    return Structure(
        program,
        representative,
        tuple(labels.slots.values()),
        tuple(read for walk in walks for read in walk.reads),
        _named(layer for walk in walks for layer in walk.layers),
        tuple(item for walk in walks for item in walk.fixed),
        tuple(labels.constraints),
        torch.cat([torch.zeros(0, dtype=torch.long), *labels.free]),
        pins,
        {name: groups for walk in walks for name, groups in walk.regroups.items()},
        tuple(item for walk in walks for item in walk.sized),
        tuple(walk.values for walk in walks),
    )


def _named(layers: Iterable[Layer]) -> tuple[Layer, ...]:
    """Layers with a name each: a weight that makes units along both axes (tied) is named with the second."""
    first: dict[str, int] = {}
    found = []
    for layer in layers:
        axis = first.setdefault(layer.weight, layer.axis)
        found.append(layer if axis == layer.axis else replace(layer, name=f"{layer.name}[{layer.axis}]"))
    return tuple(found)


def _label(walk: Walk, node: Node) -> Outcome:
    if node.op in (PARAMETER, BUFFER):
        return walk.labels.of_tensor(node.target, node.shape)
    if node.op in (INPUT, CONSTANT):
        return ()
    if node.op == GETITEM:
        found = walk.values.get(node.args[0].name, ())
        return found[node.args[1]] if isinstance(found, list) else found
    outcome: Outcome | None = None
    if node.op in LABEL_RULES and node.name not in walk.graph.shapeless:
        try:
            outcome = LABEL_RULES[node.op](walk, node)
        except Exception:  # a use of the operator that its rule did not foresee
            if STRICT:
                raise
    if outcome is None:
        for name in node.inputs:
            found, source = walk.values.get(name, ()), walk.graph.by_name[name]
            for factors in found if isinstance(found, list) else [found]:
                walk.pin(node, factors, f"{node.op} has no rule")
            if source.op == PARAMETER and sum(n > 1 for n in source.shape) > 1:
                reason = walk.reason(node, f"{node.op} has no rule")
                walk.fixed.append(Fixed(layer_name(source.target), source.target, source.shape[0], reason))
        return [()] * len(node.shapes) if len(node.shapes) > 1 else ()
    for factors in outcome if isinstance(outcome, list) else [outcome]:
        for factor in factors:
            if len(support(factor)) > 1:
                reason = walk.reason(node, "its units were arranged along several axes, and only whole slices can go")
                walk.labels.constraints.append(Grid(factor, reason))
    return outcome


def _finish(walk: Walk) -> None:
    where = "network output" if not walk.graph.part else f"output of '{walk.graph.part.rstrip('.')}'"
    for name in walk.graph.outputs:
        found = walk.values.get(name, ())
        for factors in found if isinstance(found, list) else [found]:
            walk.labels.pin(factors, where)
    for written, value in walk.graph.mutations:
        node = walk.graph.by_name[value]
        walk.align(node, [(walk(Ref(written)), walk.shape(Ref(written))), (walk(Ref(value)), node.shape)], node.shape)
