"""What bounds a layer's inputs, whatever the network before it does: a norm, or the domain of the network's inputs."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Literal

from ..planning.rules.elementwise import ZERO_REGION
from ..tracing.graph import INPUT, PARAMETER, Graph, Node, Ref

# Operators whose results are values of their first argument.
_PASSING = frozenset(
    f"aten.{name}"
    for name in (
        "view.default", "reshape.default", "_unsafe_view.default", "unsqueeze.default", "squeeze.dim", "clone.default",
        "contiguous.default", "alias.default", "detach.default", "_to_copy.default", "to.dtype", "max_pool2d.default",
    )
)  # fmt: skip
_FLATTENING = frozenset({"aten.flatten.using_ints", "aten.permute.default", "aten.transpose.int"})
_ROWS = frozenset(f"aten.{name}.default" for name in ("layer_norm", "native_layer_norm", "rms_norm", "_fused_rms_norm"))
_PRODUCTS = frozenset({"aten.matmul.default", "aten.mm.default", "aten.bmm.default", "aten.addmm.default"})
_TURNS = frozenset({"aten.t.default", "aten.transpose.int", "aten.permute.default", "aten.numpy_T.default"})
_GROUPS = frozenset(f"aten.{name}.default" for name in ("group_norm", "native_group_norm", "instance_norm"))


@dataclass(frozen=True)
class Norm:
    """A norm over one sample, by the names of its scale and shift; `rectified` if an activation lies in between.

    A row of a layer or RMS norm has a bounded length, each value of a group norm over `count` is bounded by itself.
    """

    kind: Literal["layer", "rms", "group"]
    scale: str | None
    shift: str | None
    count: int
    rectified: bool = False


def norm_read(graph: Graph, layer: Node, weight: str) -> Norm | None:
    """The norm whose values a layer's inputs are, if there is one right before it."""
    node, rectified = _data(graph, layer, weight), False
    if node is None or on_the_left(graph, layer, weight):
        return None
    axis = 1 if layer.op.startswith("aten.conv") else -1  # of the units that the layer reads
    units = node.shape[axis]
    while node is not None and node.shape[axis] == units:
        if node.op in _ROWS and axis == -1 and not rectified and len(node.args[1]) == 1:
            rms = "rms" in node.op
            scale, shift = _name(graph, node.arg(2, "weight")), None if rms else _name(graph, node.arg(3, "bias"))
            return Norm("rms" if rms else "layer", scale, shift, node.shape[-1])
        if node.op in _GROUPS and axis == 1:
            return _grouped(graph, node, rectified)
        if axis == -1 and not rectified and (scale := _by_hand(graph, node)) is not None:
            return Norm("rms", scale, None, node.shape[-1])
        active = node.op in ZERO_REGION and ZERO_REGION[node.op](node) is not None
        if not (node.op in _PASSING or active):
            return None
        rectified |= active
        node = _before(graph, node.args[0])
    return None


def input_read(graph: Graph, layer: Node, weight: str) -> str | None:
    """The network's input whose values a layer's inputs are."""
    node = _data(graph, layer, weight)
    while node is not None and node.op in _PASSING | _FLATTENING:
        node = _before(graph, node.args[0])
    return node.target if node is not None and node.op == INPUT else None


def on_the_left(graph: Graph, layer: Node, weight: str) -> bool:
    """Whether a product sums over rows of the data, `weight @ x`: then its inputs lie along the last axis but one."""
    return layer.op in _PRODUCTS and parameter_behind(graph, _factors(layer)[0]) == weight


def parameter_behind(graph: Graph, ref: object) -> str | None:
    """The parameter behind an argument, through transpositions; None if it is something else."""
    node = _before(graph, ref)
    while node is not None and node.op in _TURNS:
        node = _before(graph, node.args[0])
    return node.target if node is not None and node.op == PARAMETER else None


def _grouped(graph: Graph, node: Node, rectified: bool) -> Norm | None:
    """Group norm over the values of a group, instance norm over those of a channel of one sample."""
    if node.op == "aten.instance_norm.default":
        scale, shift, count = node.args[1], node.args[2], prod(node.shape[2:])
    else:
        plain = node.op == "aten.group_norm.default"
        scale, shift = (node.arg(2, "weight"), node.arg(3, "bias")) if plain else (node.args[1], node.args[2])
        count = prod(node.shape[1:]) // int(node.args[1] if plain else node.args[6])
    return Norm("group", _name(graph, scale), _name(graph, shift), count, rectified)


def _by_hand(graph: Graph, node: Node) -> str | None:
    """The scale of `scale * (x * rsqrt(mean(x²) + ε))`, as many transformers write their RMS norm."""
    if node.op != "aten.mul.Tensor":
        return None
    for scale, value in (node.args[:2], node.args[1::-1]):
        name, inner = _name(graph, scale), _before(graph, value)
        while inner is not None and inner.op in _PASSING:
            inner = _before(graph, inner.args[0])
        if name is None or inner is None or inner.op != "aten.mul.Tensor":
            continue
        factors = [_before(graph, arg) for arg in inner.args[:2]]
        if any(factor is not None and factor.op == "aten.rsqrt.default" for factor in factors):
            return name
    return None


def _data(graph: Graph, layer: Node, weight: str) -> Node | None:
    """What a layer reads that is not its weight."""
    return _before(graph, _factors(layer)[1 if on_the_left(graph, layer, weight) else 0])


def _factors(layer: Node) -> tuple[object, ...]:
    return layer.args[1:3] if layer.op == "aten.addmm.default" else layer.args[:2]


def _before(graph: Graph, ref: object) -> Node | None:
    return graph.by_name.get(ref.name) if isinstance(ref, Ref) else None


def _name(graph: Graph, ref: object) -> str | None:
    """The parameter an argument is."""
    node = _before(graph, ref)
    return node.target if node is not None and node.op == PARAMETER else None
