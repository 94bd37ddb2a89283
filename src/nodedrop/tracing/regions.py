"""Regions of a forward that only say whether gradients are kept: their operators are plain ones after all."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

_HIGHER: Any = torch.ops.higher_order


def inline_(program: ExportedProgram) -> None:
    """Put the operators of every `torch.no_grad()` and of every autocast that casts nothing among the others."""
    graph = program.graph
    while regions := [node for node in graph.nodes if _body_place(node) is not None]:
        for region in regions:
            _inline_one(program, region)
    program.graph_module.recompile()


def _body_place(node: Node) -> int | None:
    """Which argument of a region is its body; None if the node is no such region."""
    if node.target is _HIGHER.wrap_with_set_grad_enabled:
        return 1
    if node.target is _HIGHER.wrap_with_autocast:
        kind, _, enabled, _ = node.args[:4]
        return None if enabled or torch.is_autocast_enabled(str(kind)) else 4
    return None


def _inline_one(program: ExportedProgram, region: Node) -> None:
    graph, place = program.graph, _body_place(region)
    assert place is not None
    name, *given = region.args[place:]
    assert isinstance(name, Node)
    body: GraphModule = getattr(program.graph_module, str(name.target))
    own = [inner for inner in body.graph.nodes if inner.op == "placeholder"]
    values: dict[Node, Any] = dict(zip(own, given, strict=True))
    with graph.inserting_before(region):
        for inner in body.graph.nodes:
            if inner.op == "get_attr":
                path = f"{region.name}_{inner.target}"
                setattr(program.graph_module, path, getattr(body, str(inner.target)))
                values[inner] = graph.get_attr(path)
                values[inner].meta = dict(inner.meta)
            elif inner.op == "call_function":
                values[inner] = graph.node_copy(inner, values.__getitem__)
            elif inner.op == "output":
                found = inner.args[0]
    for user in list(region.users):  # every output is taken by its place
        result = values[found[user.args[1]]]
        user.replace_all_uses_with(result)
        for spec in program.graph_signature.output_specs:
            if getattr(spec.arg, "name", None) == user.name:
                spec.arg.name = result.name
        graph.erase_node(user)
    graph.erase_node(region)
    if not name.users:
        graph.erase_node(name)


def contents(held: Any) -> str:
    """What a program holds besides operators, as text: a region's body with all within it, or a tensor's values."""
    if isinstance(held, Tensor):
        return str(held.tolist())
    if not isinstance(held, GraphModule):
        return str(held)
    inner = (getattr(held, str(node.target)) for node in held.graph.nodes if node.op == "get_attr")
    return "\n".join([str(held.graph), *map(contents, inner)])
