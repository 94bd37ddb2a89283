"""The layers a penalty acts on, found from the graph: those whose units meet an activation with a zero region."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from math import prod
from types import MappingProxyType

from torch import Tensor

from ..errors import InputError
from ..planning import Structure
from ..planning.walk import Layer
from ..tracing.graph import Graph, Node
from .meetings import ends, meetings
from .norms import Norm, input_read, norm_read, on_the_left, parameter_behind

_NOTHING: Mapping[int, str] = MappingProxyType({})


@dataclass(frozen=True)
class Behind:
    """A batch norm between a layer and its activation: which of the norm's rows are which of the layer's units."""

    scale: str
    shift: str
    positions: int
    units: Mapping[int, int]


@dataclass(frozen=True)
class Target:
    """One layer's parameters by name, and where they meet activations.

    Units `direct` do without a batch norm in between, there weight and bias are what counts; of others the scale and
    shift of `norms`. `reads` is a norm right before the layer, which bounds its inputs, `source` the network's input,
    if it reads that, whose domain does; a weight on the `left` reads it across its rows. A `computed` weight is not a
    parameter itself, but made of one by a parametrization or a mask. Units that could not be cut if they were dead are
    left out; `held` says why.
    """

    layer: str
    weight: str
    bias: str | None
    groups: int = 1
    transposed: bool = False
    direct: tuple[int, ...] = ()
    norms: tuple[Behind, ...] = ()
    computed: bool = False
    reads: Norm | None = None
    source: str | None = None
    left: bool = False
    held: str = ""

    def units(self, weight: Tensor) -> int:
        """How many units a weight of this layer has."""
        return weight.shape[1] * self.groups if self.transposed else weight.shape[0]

    @property
    def pressed(self) -> tuple[int, ...]:
        """The units that the penalty acts on."""
        behind = {unit for norm in self.norms for unit in norm.units.values()}
        return tuple(sorted(behind.union(self.direct)))

    @property
    def able(self) -> bool:
        """Whether the penalty can act on it."""
        return bool(self.pressed) and not self.computed

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of what the penalty acts on."""
        own = (self.weight, self.bias) if self.direct else ()
        found = (*own, *(name for norm in self.norms for name in (norm.scale, norm.shift)))
        return tuple(name for name in found if name is not None)


def find_targets(structure: Structure, blocked: Mapping[int, str] = _NOTHING) -> tuple[Target, ...]:
    """Targets in forward order; `blocked` are labels that a cut was refused for. A row of a norm belongs to one: the
    last layer of those that are added before it."""
    found, stops = dict[str, Target](), ends(structure)
    for layer in structure.layers:
        if layer.weight not in found and (target := _target(structure, layer, stops)) is not None:
            found[layer.weight] = target
    owner = {
        (norm.scale, row): target.weight
        for target in found.values() if not target.computed
        for norm in target.norms for row in norm.units
    }  # fmt: skip
    owned = (_owned(target, owner) for target in found.values())
    return tuple(_cuttable(structure, target, blocked) for target in owned if target.pressed)


def _owned(target: Target, owner: Mapping[tuple[str, int], str]) -> Target:
    """The target with those rows of norms that are its own."""
    if target.computed:
        return target
    return _limited(target, lambda norm, row: owner[norm.scale, row] == target.weight)


def _cuttable(structure: Structure, target: Target, blocked: Mapping[int, str]) -> Target:
    """The target without units that stay whatever their weights are: pressure could only take what they do."""
    held = dict[int, str]()
    for layer in structure.layers:
        if layer.weight == target.weight and len(layer.labels) > 1:  # an only unit stays until the layer may go
            labels = structure.representative[layer.labels].tolist()
            for place, label in zip(layer.places.tolist(), labels, strict=True):
                if (reason := structure.pins.get(label) or blocked.get(label)) is not None:
                    held[place] = reason
    if held.keys().isdisjoint(target.pressed):
        return target
    left = replace(target, direct=tuple(unit for unit in target.direct if unit not in held), held=min(held.values()))
    return _limited(left, lambda norm, row: norm.units[row] not in held)


def _limited(target: Target, wanted: Callable[[Behind, int], bool]) -> Target:
    """The target with these rows of its norms."""
    kept = [replace(n, units={row: unit for row, unit in n.units.items() if wanted(n, row)}) for n in target.norms]
    return replace(target, norms=tuple(norm for norm in kept if norm.units))


def choose(
    targets: Sequence[Target], include: Sequence[str] | None = None, exclude: Sequence[str] = ()
) -> tuple[Target, ...]:
    """Those with names that `include`, if given, has and `exclude` has not; `*` matches anything."""
    wanted = [item for item in targets if include is None or _fits(item.layer, include)]
    return tuple(item for item in wanted if not _fits(item.layer, exclude))


def require_names(
    structure: Structure, targets: Sequence[Target], include: Sequence[str] | None, exclude: Sequence[str]
) -> None:
    """Refuse names that no layer has, and those of layers that the penalty cannot act on where it is to act."""
    names = sorted({layer.name for layer in structure.layers})
    for pattern in (*(include or ()), *exclude):
        if not any(fnmatchcase(name, pattern) for name in names):
            raise InputError(f"no layer is called '{pattern}'; there are {', '.join(names)}")
    there, held = [t.layer for t in targets if t.pressed], {t.layer: t.held for t in targets if not t.pressed}
    for pattern in include or () if there else ():
        if not any(fnmatchcase(name, pattern) for name in there):
            if (name := next((name for name in held if fnmatchcase(name, pattern)), None)) is not None:
                raise InputError(f"include names '{pattern}', and no unit of '{name}' could be cut: {held[name]}")
            raise InputError(
                f"include names '{pattern}', and the penalty cannot act there, since no activation with a zero region "
                f"follows; it can on {', '.join(there)}"
            )


def nothing_left(targets: Sequence[Target]) -> str:
    """Why there is nothing to act on, given all targets before names chose among them."""
    if there := [target.layer for target in targets if target.able]:
        return f"include= and exclude= leave none of the layers that NodeDrop can act on: {', '.join(there)}"
    computed = [target.weight for target in targets if target.computed]
    if not targets:
        why = "none is followed by an activation with a zero region (ReLU, SoftClampedReLU, Hardtanh(0, 1), …)"
    elif computed:
        why = (
            f"an activation with a zero region follows, but the weights are computed from {', '.join(computed)} "
            "(a parametrization, a mask); remove that before training"
        )
    else:
        why = "their units could not be cut if they were dead: " + "; ".join(f"{t.layer}: {t.held}" for t in targets)
    return f"the model has no layer that NodeDrop can act on: {why}"


def _fits(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _target(structure: Structure, layer: Layer, stops: Container[tuple[int, str]]) -> Target | None:
    """A layer's target, with all uses of its weight in the graph."""
    graph = structure.program.graphs[layer.graph]
    node = graph.by_name[layer.node]
    if node.op == "aten.embedding.default":
        return None
    key = (layer.weight, layer.axis, layer.graph)
    uses = [item for item in structure.layers if (item.weight, item.axis, item.graph) == key]
    direct, norms = set[int](), dict[str, Behind]()
    for met in (meetings(structure, use, stops) for use in uses):
        direct |= met.direct
        for name, units in met.behind.items():
            norm = _behind(graph, graph.by_name[name], units)
            known = norms.get(norm.scale, norm)
            norms[norm.scale] = replace(known, units={**norm.units, **known.units})
    if not direct and not any(norm.units for norm in norms.values()):
        return None
    convolution = node.op.startswith("aten.conv")
    groups = int(node.arg(8 if node.op == "aten.convolution.default" else 6, "groups", 1)) if convolution else 1
    computed = layer.weight not in {parameter_behind(graph, arg) for arg in node.args}
    turned, left = layer.axis == 1 or "transpose" in node.op, on_the_left(graph, node, layer.weight)
    return Target(
        layer.name, layer.weight, _bias(graph, node, len(layer.labels), left), groups, turned, tuple(sorted(direct)),
        tuple(norms.values()), computed, None if turned else norm_read(graph, node, layer.weight),
        input_read(graph, node, layer.weight), left,
    )  # fmt: skip


def _behind(graph: Graph, norm: Node, units: Mapping[int, int]) -> Behind:
    scale, shift = (parameter_behind(graph, arg) or "" for arg in norm.args[1:3])
    return Behind(scale, shift, prod(norm.shape[2:]), units)


def _bias(graph: Graph, node: Node, units: int, left: bool) -> str | None:
    """The parameter added to a layer's result, by the layer itself or by the sum that reads it."""
    if node.op.startswith(("aten.linear", "aten.conv")):
        return parameter_behind(graph, node.arg(2, "bias"))
    if node.op == "aten.addmm.default":
        return parameter_behind(graph, node.args[0])
    readers = [graph.by_name[name] for name in graph.readers.get(node.name, ())]
    if len(readers) != 1 or readers[0].op != "aten.add.Tensor":
        return None
    for arg in readers[0].args[:2]:
        name = parameter_behind(graph, arg)
        shape = () if name is None else (1, *graph.by_name[arg.name].shape)
        if name is not None and prod(shape) == units == shape[-2 if left else -1]:
            return name
    return None
