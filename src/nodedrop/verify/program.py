"""A module's forward pass as a list of operator calls, read by `torch.export`."""

from __future__ import annotations

import copy
import logging
import re
import warnings
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export.graph_signature import InputKind, OutputKind

LEAVES = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
SPELLED_OUT = {torch.ops.aten.einsum.default}  # read as the products that they consist of
TORCH = Path(torch.__file__).parent
CHECKS = ("_assert_tensor_metadata", "_assert_async", "_assert_scalar")


class CannotRead(Exception):
    """The module cannot be turned into a list of calls."""


@dataclass(frozen=True)
class Ref:
    """The result of a call, or a leaf, by its place in the program."""

    place: int


@dataclass(frozen=True)
class Step:
    """One call. `args` are by the names of the operator's schema; `results` shape and type of each result; `last`
    tells that its channels lie last in memory."""

    op: str
    args: Mapping[str, Any]
    results: tuple[tuple[tuple[int, ...], torch.dtype] | None, ...]
    run: Any = None
    where: str = ""
    last: bool = False


@dataclass(frozen=True)
class Program:
    """Leaves are steps whose op is "tensor", "changing" (a buffer that the pass overwrites) or "input".

    `outputs` are the places of tensors that are returned, `returned` tells in which form, these and whatever else
    is; `written` are those that become the next pass's buffers. `counts` are what is added to counters that the pass
    does not read, and for which it has no steps.
    """

    steps: tuple[Step, ...]
    outputs: tuple[int, ...]
    tensors: Mapping[str, Tensor]
    returned: tuple[str, ...] = ()
    written: Mapping[str, int] = field(default_factory=dict)
    counts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def inputs(self) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Shape and type of every tensor that goes in, by name."""
        return {s.args["name"]: s.results[0] for s in self.steps if s.op == "input" and s.results[0] is not None}


def split(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword inputs."""
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return (tuple(inputs) if isinstance(inputs, list | tuple) else (inputs,)), {}


def read(module: nn.Module, inputs: Any, mode: str) -> Program:
    """The calls of one forward pass in eval or train mode."""
    module = copy.deepcopy(module).train(mode == "train")
    args, kwargs = split(inputs)
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stderr(StringIO()), redirect_stdout(StringIO()):
            warnings.simplefilter("ignore")
            exported = torch.export.export(module, args, kwargs, strict=False)
            writes = any(_writes(node) for node in exported.graph.nodes) or _has_regions(exported)
            used = {node.target for node in exported.graph.nodes} & SPELLED_OUT
            parts = {op: torch.export.default_decompositions()[op] for op in used}
            if writes:
                _join_same_tensors(exported)
            if writes or parts:
                exported = exported.run_decompositions(parts)  # writes become values, and regions part of the rest
    except Exception as error:
        what = str(error).strip().partition("\n")[0]
        raise CannotRead(f"{type(module).__name__} in {mode} mode: {type(error).__name__}: {what}"[:400]) from error
    finally:
        logging.disable(before)
    return _converted(exported, module)


def _writes(node: torch.fx.Node) -> bool:
    """Whether a node writes into a tensor that another may read; no result of a norm in training reads statistics."""
    if _trains(node):
        users = {user for item in node.args[3:5] if isinstance(item, torch.fx.Node) for user in item.users}
        return not all(_trains(user) and user.args[3:5] == node.args[3:5] for user in users)
    target: Any = node.target
    return isinstance(target, torch._ops.OpOverload) and target._schema.is_mutable and not _counts(node)


def _has_regions(exported: Any) -> bool:
    """Whether some calls are set apart, since gradients are off there, or numbers are cast."""
    parts = [child for child in exported.graph_module.children() if isinstance(child, torch.fx.GraphModule)]
    return bool(parts) or any("autocast" in str(node.target) for node in exported.graph.nodes)


def _trains(node: torch.fx.Node) -> bool:
    return node.target is torch.ops.aten.batch_norm.default and bool(node.args[5])


def _is_idle(node: torch.fx.Node) -> bool:
    dropout = re.fullmatch(r"aten\.(feature_)?(alpha_)?dropout_?\.default", str(node.target))
    return dropout is not None and bool(node.args[1] == 0 or not node.args[2])


def _join_same_tensors(exported: Any) -> None:
    """Dropout that drops nothing returns what it got, no copy of it as the exporter believes: a write shows in both."""
    whole = exported.graph_module
    for module in [module for module in whole.modules() if isinstance(module, torch.fx.GraphModule)]:
        for node in [n for n in module.graph.nodes if _is_idle(n)]:
            node.replace_all_uses_with(node.args[0])
            for spec in exported.graph_signature.output_specs if module is whole else ():
                if getattr(spec.arg, "name", "") == node.name:
                    spec.arg.name = node.args[0].name
            module.graph.erase_node(node)
        module.recompile()


def _counter(node: torch.fx.Node) -> torch.fx.Node:
    """What a chain of additions in place adds to."""
    while node.target is torch.ops.aten.add_.Tensor:
        node = node.args[0]  # type: ignore[assignment]
    return node


def _counts(node: torch.fx.Node) -> bool:
    """Whether a node only counts batches, in an integer that nothing else reads."""
    counter = _counter(node)
    if counter is node or counter.op != "placeholder" or counter.meta["val"].is_floating_point():
        return False
    waiting = list(counter.users)
    while waiting:  # whoever reads the count must do so to count on
        user = waiting.pop()
        if user.target is not torch.ops.aten.add_.Tensor or len(user.all_input_nodes) != 1:
            return False
        waiting += user.users
    return True


def _converted(exported: Any, module: nn.Module) -> Program:
    signature = exported.graph_signature
    specs = {spec.arg.name: spec for spec in signature.input_specs}
    changing = {spec.target for spec in signature.output_specs if spec.kind is OutputKind.BUFFER_MUTATION}
    own = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    first = {id(tensor): name for name, tensor in tensors.items()}
    names = {name: first[id(tensor)] for name, tensor in own}  # a tensor that is used twice has one name here
    constants = {name: tensor for name, tensor in exported.constants.items() if name not in names}
    steps: list[Step] = []
    places: dict[str, int] = {}
    counts: dict[str, tuple[str, ...]] = {}

    def resolved(value: Any) -> Any:
        if isinstance(value, torch.fx.Node):
            return Ref(places[value.name])
        if isinstance(value, Mapping):
            return {key: resolved(item) for key, item in value.items()}
        return [resolved(item) for item in value] if isinstance(value, list | tuple) else value

    for node in exported.graph.nodes:
        if _counts(node):
            target = specs[_counter(node).name].target
            name = names.get(target, target)
            counts[name] = (*counts.get(name, ()), repr((node.args[1:], node.kwargs)))
            continue
        if node.op == "output" or any(word in str(node.target) for word in CHECKS):
            continue
        values = node.meta.get("val")
        listed = values if isinstance(values, list | tuple) else (values,)
        results = tuple((tuple(map(int, v.shape)), v.dtype) if isinstance(v, Tensor) else None for v in listed)
        if node.op == "placeholder":
            spec = specs[node.name]
            leaf = "tensor" if spec.kind in LEAVES else "input"
            leaf = "changing" if leaf == "tensor" and spec.target in changing else leaf
            name = names.get(spec.target, spec.target) if leaf != "input" else node.name
            step = Step(leaf, {"name": name}, results, last=_is_last(values))
        else:
            op, args = _named(node)
            step = Step(op, resolved(args), results, node.target, _place(node), _is_last(values))
        places[node.name] = len(steps)
        steps.append(step)
    kinds = (OutputKind.USER_OUTPUT, OutputKind.USER_INPUT_MUTATION)
    outputs = [spec.arg for spec in signature.output_specs if spec.kind in kinds]
    found = [places[arg.name] if arg.name in places else repr(arg) for arg in outputs]
    form = str(exported.call_spec.out_spec)
    tensorial = tuple(place for place in found if isinstance(place, int))
    ends = [s for s in signature.output_specs if s.kind is OutputKind.BUFFER_MUTATION and s.arg.name in places]
    written = {names.get(spec.target, spec.target): places[spec.arg.name] for spec in ends}
    return Program(tuple(steps), tensorial, tensors | constants, (form, *map(str, found)), written, counts)


def _is_last(value: object) -> bool:
    image = isinstance(value, Tensor) and value.dim() in (4, 5)
    return image and value.stride(1) == 1 and any(step > 1 for step in value.stride()[2:])  # type: ignore[attr-defined]


def _place(node: torch.fx.Node) -> str:
    """The last line of a user's code that led to a call; torch's own lines say nothing to anyone."""
    frames = re.findall(r'File "([^"]+)", line (\d+)', str(node.meta.get("stack_trace") or ""))
    own = [(Path(file).name, line) for file, line in frames if not Path(file).is_relative_to(TORCH)]
    return f" at {own[-1][0]}:{own[-1][1]}" if own else ""


def _named(node: torch.fx.Node) -> tuple[str, dict[str, Any]]:
    """The operator's name, and its arguments by the names of its schema, with defaults."""
    target: Any = node.target
    if not isinstance(target, torch._ops.OpOverload):
        name = getattr(target, "__name__", str(target))
        return name, {str(k): v for k, v in enumerate(node.args)} | dict(node.kwargs)
    args: dict[str, Any] = {}
    for k, argument in enumerate(target._schema.arguments):
        default = argument.default_value if argument.has_default_value() else None
        args[argument.name] = node.args[k] if k < len(node.args) else node.kwargs.get(argument.name, default)
    return str(target).removeprefix("aten."), args
