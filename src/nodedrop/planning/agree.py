"""Does a cut module compute what was planned? Its trace is compared with the predicted program, node by node."""

from __future__ import annotations

from typing import Any

import torch

from ..tracing.compact import MOVES
from ..tracing.graph import Graph, Node, Program

# Operators whose numeric arguments are sizes: these are told by the shape of their result.
_SIZED = frozenset(MOVES) | {
    "aten.full.default",
    "aten.zeros.default",
    "aten.ones.default",
    "aten.empty.memory_format",
    "aten.new_zeros.default",
    "aten.new_ones.default",
    "aten.new_full.default",
    "aten.new_empty.default",
}


def disagreement(predicted: Program, actual: Program) -> str | None:
    """Where a program differs from the predicted one, or None. Catches code that reads its own sizes."""
    if len(predicted.graphs) != len(actual.graphs):
        return "the model can no longer be traced as before"
    for planned, traced in zip(predicted.graphs, actual.graphs, strict=True):
        found = _differs(planned, traced)
        if found is not None:
            return found
    return None


def _differs(planned: Graph, traced: Graph) -> str | None:
    if len(planned.nodes) != len(traced.nodes):
        return "it changes which operators run"
    for old, new in zip(planned.nodes, traced.nodes, strict=True):
        where = f" (at {new.where})" if new.where else ""
        if old.op != new.op:
            return f"it turns {old.op} into {new.op}{where}"
        if old.shapes != new.shapes:
            return f"it gives the result of {new.op} the shape {new.shape} instead of {old.shape}{where}"
        if old.op not in _SIZED and _numbers(old) != _numbers(new):
            return f"it changes a number that {new.op} works with, which depends on a size{where}"
    return None


def _numbers(node: Node) -> list[Any]:
    found: list[Any] = []

    def walk(value: Any) -> None:
        if isinstance(value, list | tuple):
            for item in value:
                walk(item)
        elif isinstance(value, bool | int | float | str):
            found.append(value)

    walk((*node.args, *_left_out(node)))
    for key in sorted(node.kwargs):
        walk(node.kwargs[key])
    return found


def _left_out(node: Node) -> list[Any]:
    """Defaults of the arguments at the end that the trace does not spell out, such as one group."""
    space, _, name = node.op.partition(".")
    packet, _, overload = name.partition(".")
    operator = getattr(getattr(getattr(torch.ops, space, None), packet, None), overload or "default", None)
    if not isinstance(operator, torch._ops.OpOverload):
        return []
    rest = operator._schema.arguments[len(node.args) :]
    return [item.default_value for item in rest if item.has_default_value() and item.name not in node.kwargs]
