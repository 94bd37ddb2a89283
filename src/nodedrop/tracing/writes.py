"""Operators that write to a tensor they were given: which of them are plain values after all."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind
from torch.fx import Graph, GraphModule, Node

WRITTEN = (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION)
_ATEN: Any = torch.ops.aten
_VALUES = {
    _ATEN.relu_.default: _ATEN.relu.default,
    _ATEN.hardtanh_.default: _ATEN.hardtanh.default,
    _ATEN.relu6_.default: _ATEN.relu6.default,
    _ATEN.hardswish_.default: _ATEN.hardswish.default,
    _ATEN.hardsigmoid_.default: _ATEN.hardsigmoid.default,
    _ATEN.leaky_relu_.default: _ATEN.leaky_relu.default,
    _ATEN.elu_.default: _ATEN.elu.default,
    _ATEN.silu_.default: _ATEN.silu.default,
    _ATEN.sigmoid_.default: _ATEN.sigmoid.default,
    _ATEN.tanh_.default: _ATEN.tanh.default,
    _ATEN.add_.Tensor: _ATEN.add.Tensor,
    _ATEN.sub_.Tensor: _ATEN.sub.Tensor,
    _ATEN.mul_.Tensor: _ATEN.mul.Tensor,
    _ATEN.div_.Tensor: _ATEN.div.Tensor,
}
# Composed of others, which could return what they were given, but always make a new tensor.
_COMPOSED = {
    _ATEN.linear.default, _ATEN.matmul.default, _ATEN.batch_norm.default, _ATEN.layer_norm.default,
    _ATEN.group_norm.default, _ATEN.instance_norm.default, _ATEN.max_pool2d.default, _ATEN.relu6.default,
    _ATEN.conv1d.default, _ATEN.conv1d.padding, _ATEN.conv2d.default, _ATEN.conv2d.padding,
    _ATEN.conv3d.default, _ATEN.conv3d.padding, _ATEN.conv_transpose1d.default, _ATEN.conv_transpose2d.input,
    _ATEN.conv_transpose3d.input,
}  # fmt: skip


_DROPOUTS = {
    getattr(_ATEN, name + ending).default
    for name in ("dropout", "alpha_dropout", "feature_dropout", "feature_alpha_dropout")
    for ending in ("", "_")
}


def without_idle_dropout(program: ExportedProgram) -> None:
    """Take out dropout that drops nothing. It returns the very tensor it was given, while torch's own passes take the
    result for a copy, which tells in what is written to either of them later."""
    for module in [module for module in program.graph_module.modules() if isinstance(module, GraphModule)]:
        for node in list(module.graph.nodes):
            if node.target not in _DROPOUTS or (node.args[1] != 0 and node.args[2]):
                continue
            given = node.args[0]
            node.replace_all_uses_with(given)
            for spec in program.graph_signature.output_specs if module is program.graph_module else ():
                if getattr(spec.arg, "name", None) == node.name:
                    spec.arg.name = given.name
            module.graph.erase_node(node)
        module.recompile()


def disturbs(node: Node) -> bool:
    """Whether a node writes what another may read. A batch norm that trains only keeps its statistics up to date."""
    if _trains(node):
        stats = [stat for stat in node.args[3:5] if isinstance(stat, Node)]
        return not all(_trains(user) and user.args[3:5] == node.args[3:5] for stat in stats for user in stat.users)
    if node.target is torch.amp.autocast_mode._enter_autocast:  # what follows is cast, and no cast is seen
        return True
    return any(map(_writes, _within(node))) or (_is_mutable(node) and not counts(node))


def _writes(node: Node) -> bool:
    return _is_mutable(node) or _trains(node)


def hidden_write(graph: Graph) -> Node | None:
    """An operator that writes from within a region of the forward that is a graph of its own, if there is one."""
    return next((inner for node in graph.nodes for inner in _within(node) if _is_mutable(inner)), None)


def _within(node: Node) -> Iterator[Node]:
    """Every node of the bodies that an operator is given: a region that casts, both sides of a `torch.cond`."""
    if node.op != "call_function":
        return
    for name in node.all_input_nodes:
        body = attrgetter(str(name.target))(node.graph.owning_module) if name.op == "get_attr" else None
        if isinstance(body, GraphModule):
            for inner in body.graph.nodes:
                yield inner
                yield from _within(inner)


def _is_mutable(node: Node) -> bool:
    return isinstance(node.target, OpOverload) and node.target._schema.is_mutable


def _trains(node: Node) -> bool:
    return node.target in (_ATEN.batch_norm.default, _ATEN.instance_norm.default) and bool(node.args[5])


def written(program: ExportedProgram) -> set[str]:
    """Names of the parameters and buffers that a trace shows to be written."""
    signature = program.graph_signature
    leaves = {spec.arg.name: str(spec.target) for spec in signature.input_specs if hasattr(spec.arg, "name")}
    inplace = {leaves[node.name] for node in program.graph.nodes if node.name in leaves and _is_written(node)}
    return inplace | {str(spec.target) for spec in signature.output_specs if spec.kind in WRITTEN}


def _is_written(leaf: Node) -> bool:
    """Whether an operator writes right into a leaf: a norm that trains into its statistics."""
    return any(
        leaf in user.args[3:5] if _trains(user) else _is_mutable(user) and leaf is user.args[0] for user in leaf.users
    )


def counts(node: Node) -> bool:
    """Whether a node does no more than add to a counter that nothing else reads (batch norm's number of batches)."""
    counter = node
    while counter.target is _ATEN.add_.Tensor and isinstance(counter.args[0], Node):
        counter = counter.args[0]
    value = counter.meta.get("val")
    is_number = isinstance(value, Tensor) and not value.is_floating_point()
    return counter is not node and counter.op == "placeholder" and is_number and _only_counted(counter)


def _only_counted(node: Node) -> bool:
    adding = [user.target is _ATEN.add_.Tensor and user.args[0] is node for user in node.users]
    return all(adding) and all(map(_only_counted, node.users))


def as_values(graph: Graph) -> dict[Node, OpOverload] | None:
    """For every operator that writes, the one that makes a new value instead, which is meant from there on.

    None if there is a write for which that does not hold: another tensor shares the memory, or may do so.
    """
    found: dict[Node, OpOverload] = {}
    shared: dict[Node, list[Node]] = {}
    seen: set[Node] = set()
    for node in graph.nodes:
        if node.target in _VALUES and not counts(node):
            written = node.args[0]
            names = shared.get(written) or ([written] if _makes_new(written) else [])
            readers = [user for name in names for user in name.users if user in seen]
            if not names or not _one_type(node) or not all(user in found or _makes_new(user) for user in readers):
                return None
            found[node] = _VALUES[node.target]
            names.append(node)
            shared[written] = shared[node] = names
        elif disturbs(node):
            return None
        seen.add(node)
    return found


def _one_type(node: Node) -> bool:
    """Whether an operator's result has the type of what it is written to, written there or not."""
    values = (item.meta.get("val") for item in node.all_input_nodes)
    return len({value.dtype for value in values if isinstance(value, Tensor)}) == 1


def _makes_new(node: Node) -> bool:
    """Whether the result of an operator is sure to have memory of its own."""
    target = node.target
    if not isinstance(target, OpOverload) or target._schema.is_mutable:
        return False
    if target in _COMPOSED:
        return True
    composed = torch._C._dispatch_has_kernel_for_dispatch_key(target.name(), "CompositeImplicitAutograd")
    returned = target._schema.returns
    return not composed and len(returned) == 1 and returned[0].alias_info is None and str(returned[0].type) == "Tensor"
