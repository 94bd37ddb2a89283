"""Run a Graph on concrete tensors, value by value: what samples are measured with and rules are tested by."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor

from .graph import BUFFER, CONSTANT, GETITEM, INPUT, PARAMETER, Graph, Node, Ref


def execute(graph: Graph, tensors: Mapping[str, Tensor], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Every value of the graph, for the given parameters and inputs (by input node name)."""
    values: dict[str, Any] = {}
    for node in graph.nodes:
        values[node.name] = _value(graph, node, tensors, inputs, values)
    return values


def _value(
    graph: Graph, node: Node, tensors: Mapping[str, Tensor], inputs: Mapping[str, Any], values: Mapping[str, Any]
) -> Any:
    if node.op == INPUT:
        return inputs.get(node.name)
    if node.op in (PARAMETER, BUFFER):
        return tensors[node.target]
    if node.op == CONSTANT:
        return graph.constants[node.name]
    if node.op == GETITEM:
        return values[node.args[0].name][node.args[1]]
    return resolve(node.op)(*_fill(node.args, values), **_fill(dict(node.kwargs), values))


@cache
def resolve(op: str) -> Callable[..., Any]:
    """The callable of an operator name such as `aten.conv2d.default`."""
    if op.startswith("python."):
        found: Callable[..., Any] = getattr(operator, op.removeprefix("python."))
        return found
    namespace, name, overload = op.split(".")
    packet = getattr(getattr(torch.ops, namespace), name)
    return getattr(packet, overload)  # type: ignore[no-any-return]


def _fill(value: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(value, Ref):
        return values[value.name]
    if isinstance(value, Mapping):
        return {key: _fill(item, values) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_fill(item, values) for item in value] if not isinstance(value, torch.Size) else value
    return value
