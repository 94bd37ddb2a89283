"""The program of a module after a cut, derived from the one before it, which a new trace is held against."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor

from ..tracing.graph import Graph, Node, Program, Ref, Shape
from .labels import Factors
from .plan import Plan
from .walk import Outcome, Structure

_CONVOLUTIONS = {"aten.convolution.default": 8}


def shrink(structure: Structure, plan: Plan) -> Program:
    """Every value's shape without the elements that went; groups of convolutions updated."""
    gone = plan.removed[structure.representative]
    graphs = tuple(
        _shrunk(graph, structure.values[index], gone, plan) for index, graph in enumerate(structure.program.graphs)
    )
    return replace(structure.program, graphs=graphs)


def _shrunk(graph: Graph, values: Any, gone: Tensor, plan: Plan) -> Graph:
    nodes = []
    for node in graph.nodes:
        outcome: Outcome = values.get(node.name, ())
        several = outcome if isinstance(outcome, list) else [outcome] * len(node.shapes)
        shapes = tuple(
            None if shape is None else _smaller(shape, factors, gone)
            for shape, factors in zip(node.shapes, several, strict=True)
        )
        nodes.append(_regrouped(replace(node, shapes=shapes), graph, plan))
    return replace(graph, nodes=tuple(_sized(node, plan) for node in nodes))


def _smaller(shape: Shape, factors: Factors, gone: Tensor) -> Shape:
    sizes = list(shape)
    for factor in factors:
        dead = gone[factor]
        for axis in (d for d, n in enumerate(factor.shape) if n > 1):
            others = [d for d in range(factor.dim()) if d != axis]
            sizes[axis] -= int((dead.all(dim=others) if others else dead).sum())
    return tuple(sizes)


def _sized(node: Node, plan: Plan) -> Node:
    """A parameter's shape is what its cuts leave of it (a grouped kernel's inner axis has no label of its own)."""
    if node.op not in ("parameter", "buffer"):
        return node
    sizes = list(node.shape)
    for cut in plan.cuts:
        if cut.tensor == node.target:
            sizes[cut.axis] = cut.keep.shape[-1]
    return replace(node, shapes=(tuple(sizes),))


def _regrouped(node: Node, graph: Graph, plan: Plan) -> Node:
    """A convolution of a tensor whose groups changed."""
    if not node.op.startswith("aten.conv") or len(node.args) < 2 or not isinstance(node.args[1], Ref):
        return node
    groups = plan.groups.get(graph.by_name[node.args[1].name].target)
    if groups is None:
        return node
    position = _CONVOLUTIONS.get(node.op, 6)
    if len(node.args) > position:
        args = (*node.args[:position], groups, *node.args[position + 1 :])
        return replace(node, args=args)
    return replace(node, kwargs={**node.kwargs, "groups": groups})
