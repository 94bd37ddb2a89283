"""The layers a penalty acts on, found from the graph: those whose units meet an activation with a zero region."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import prod

from torch import Tensor

from ..errors import InputError
from ..planning import Structure, reach
from ..planning.walk import Layer
from ..tracing.graph import PARAMETER, Graph, Node, Ref
from .norms import Norm, input_read, norm_read

_TURNS = ("aten.t.default", "aten.transpose.int", "aten.permute.default", "aten.numpy_T.default")


@dataclass(frozen=True)
class Target:
    """One layer's parameters by name. With batch norm in between, its scale and shift are what counts.

    `reads` is a norm right before the layer, which bounds its inputs, `source` the network's input, if it reads that,
    whose domain does. A `computed` weight is not a parameter itself,
    but made of one by a parametrization or a mask.
    """

    layer: str
    weight: str
    bias: str | None
    groups: int = 1
    transposed: bool = False
    scale: str | None = None
    shift: str | None = None
    positions: int = 1
    computed: bool = False
    reads: Norm | None = None
    source: str | None = None

    def units(self, weight: Tensor) -> int:
        """How many units a weight of this layer has."""
        return weight.shape[1] * self.groups if self.transposed else weight.shape[0]

    @property
    def normalised(self) -> bool:
        """Whether the units pass a batch norm before their activation."""
        return self.scale is not None and self.shift is not None


def find_targets(
    structure: Structure, include: Sequence[str] | None = None, exclude: Sequence[str] = ()
) -> tuple[Target, ...]:
    """Targets in forward order. `include` and `exclude` are layer names, `*` matching anything."""
    names = {layer.name for layer in structure.layers}
    for pattern in (*(include or ()), *exclude):
        if not any(fnmatchcase(name, pattern) for name in names):
            raise InputError(f"no layer is called '{pattern}'; there are {', '.join(sorted(names))}")
    found: dict[str, Target] = {}
    for layer in structure.layers:
        chosen = include is None or any(fnmatchcase(layer.name, pattern) for pattern in include)
        if layer.weight in found or not chosen or any(fnmatchcase(layer.name, p) for p in exclude):
            continue
        if (target := _target(structure, layer)) is not None:
            found[layer.weight] = target
    return tuple(found.values())


def _target(structure: Structure, layer: Layer) -> Target | None:
    met = reach(structure, layer)
    graph = structure.program.graphs[layer.graph]
    node = graph.by_name[layer.node]
    if not met.zero or node.op == "aten.embedding.default":
        return None
    convolution = node.op.startswith("aten.conv")
    groups = int(node.arg(8 if node.op == "aten.convolution.default" else 6, "groups", 1)) if convolution else 1
    scale = shift = None
    positions = 1
    if met.norms:
        norm = graph.by_name[met.norms[-1]]
        scale, shift = parameter_behind(graph, norm.args[1]), parameter_behind(graph, norm.args[2])
        positions = prod(norm.shape[2:])
    bias = _bias(graph, node, len(layer.labels))
    computed = layer.weight not in {parameter_behind(graph, arg) for arg in node.args}
    turned = layer.axis == 1 or "transpose" in node.op
    reads = None if scale is not None or turned else norm_read(graph, node, layer.weight)
    source = input_read(graph, node, layer.weight)
    return Target(layer.name, layer.weight, bias, groups, turned, scale, shift, positions, computed, reads, source)


def _bias(graph: Graph, node: Node, units: int) -> str | None:
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
        if name is not None and prod(graph.by_name[arg.name].shape) == units:
            return name
    return None


def parameter_behind(graph: Graph, ref: object) -> str | None:
    """The parameter behind an argument, through transpositions; None if it is something else."""
    node: Node | None = graph.by_name.get(ref.name) if isinstance(ref, Ref) else None
    while node is not None and node.op in _TURNS and isinstance(node.args[0], Ref):
        node = graph.by_name.get(node.args[0].name)
    return node.target if node is not None and node.op == PARAMETER else None
