"""Does a cut module compute what was planned? Its trace is compared with the predicted program, node by node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..tracing.graph import CONSTANT, Graph, Node, Program, Ref

# Sizes among the arguments, by name: these are told by the shape of the result, which is compared.
_SIZES: dict[str, str] = {
    **dict.fromkeys(
        [
            "aten.view.default", "aten._unsafe_view.default", "aten.view_copy.default", "aten.expand.default",
            "aten.broadcast_to.default", "aten.full.default", "aten.zeros.default", "aten.ones.default",
            "aten.empty.memory_format", "aten.new_full.default", "aten.new_zeros.default", "aten.new_ones.default",
            "aten.new_empty.default",
        ],
        "size",
    ),
    "aten.reshape.default": "shape",
    "aten.unflatten.int": "sizes",
    "aten.repeat.default": "repeats",
    "aten.tile.default": "dims",
    "aten.split.Tensor": "split_size",
    "aten.split.sizes": "split_size",
    "aten.split_with_sizes.default": "split_sizes",
}  # fmt: skip
_SLICES = frozenset({"aten.slice.Tensor", "aten.slice_scatter.default"})


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
    if (planned.modes, planned.part) != (traced.modes, traced.part):
        return "the model can no longer be traced as before"
    if len(planned.nodes) != len(traced.nodes):
        return "it changes which operators run"
    for old, new in zip(planned.nodes, traced.nodes, strict=True):
        found = _change(planned, old, traced, new)
        if found is not None:
            return f"{found} (at {new.where})" if new.where else found
    if _ends(planned) != _ends(traced):
        return "it changes which values are returned or written"
    return None


def _change(planned: Graph, old: Node, traced: Graph, new: Node) -> str | None:
    if old.op != new.op:
        return f"it turns {old.op} into {new.op}"
    if old.shapes != new.shapes:
        return f"it gives the result of {new.op} the shape {new.shape} instead of {old.shape}"
    if old.dtypes != new.dtypes:
        return f"it gives the result of {new.op} the type {new.dtype} instead of {old.dtype}"
    if old.target != new.target:
        told = f" '{new.target}' instead of '{old.target}'" if "\n" not in new.target else ""
        return f"it uses another {new.op}{told}, depending on a size"
    if old.op == CONSTANT and not _equal(planned.constants.get(old.name), traced.constants.get(new.name)):
        return "it changes a constant, which depends on a size"
    if _arguments(planned, old) != _arguments(traced, new):
        return f"it changes a number that {new.op} works with, or which values it reads, which depends on a size"
    return None


def _ends(graph: Graph) -> Any:
    return _plain(graph, ([Ref(name) for name in graph.outputs], [(Ref(a), Ref(b)) for a, b in graph.mutations]))


def _arguments(graph: Graph, node: Node) -> dict[str, Any]:
    """Arguments by name, with those that the trace leaves out, such as one group.

    Units in front of a fixed position stay, so positions do, too, but for the end of an axis.
    """
    found = {str(place): value for place, value in enumerate(node.args)} | dict(node.kwargs)
    operator = _operator(node.op)
    if operator is not None:
        schema = operator._schema.arguments
        found = {item.name: item.default_value for item in schema if item.has_default_value()} | dict(node.kwargs)
        found |= {item.name: value for item, value in zip(schema, node.args, strict=False)}
    found.pop(_SIZES.get(node.op, ""), None)
    if node.op in _SLICES and not any(isinstance(found[name], Ref) for name in ("start", "end", "step")):
        size = graph.by_name[found["self"].name].shape[found["dim"]]
        found["start"] = slice(found["start"], found.pop("end"), found["step"]).indices(size)
    return {name: _plain(graph, value) for name, value in found.items()}


def _operator(op: str) -> torch._ops.OpOverload | None:
    space, _, name = op.partition(".")
    packet, _, overload = name.partition(".")
    found = getattr(getattr(getattr(torch.ops, space, None), packet, None), overload or "default", None)
    return found if isinstance(found, torch._ops.OpOverload) else None


def _plain(graph: Graph, value: Any) -> Any:
    """Values by their place in the graph, and numbers so that NaN is like itself."""
    if isinstance(value, Ref):
        return Ref(str(graph.places[value.name]))
    if isinstance(value, Mapping):
        return {key: _plain(graph, item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(graph, item) for item in value]
    return repr(value)


def _equal(old: Tensor | None, new: Tensor | None) -> bool:
    if old is None or new is None:
        return old is new
    return bool(((old == new) | ((old != old) & (new != new))).all())
