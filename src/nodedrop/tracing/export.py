"""Module and example in, Program out, by `torch.export`; the module itself is left as it was."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import replace
from io import StringIO
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind

from ..errors import InputError, TraceError
from .graph import (
    BUFFER,
    CONSTANT,
    GETITEM,
    INPUT,
    PARAMETER,
    Graph,
    Mode,
    Node,
    Program,
    Ref,
    canonical_names,
)
from .regions import contents, inline_
from .undisturbed import Kept, draws, fresh, undisturbed
from .writes import WRITTEN, as_values, counts, hidden_write, without_idle_dropout, written

_KINDS = {
    InputKind.PARAMETER: PARAMETER,
    InputKind.BUFFER: BUFFER,
    InputKind.CONSTANT_TENSOR: CONSTANT,
    InputKind.USER_INPUT: INPUT,
}
_ASSERTIONS = {"aten._assert_tensor_metadata.default", "aten._assert_async.msg", "aten._assert_scalar.default"}
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')


def split_inputs(example_inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword inputs from a tensor, a tuple or list, or a dict."""
    if isinstance(example_inputs, Tensor):
        return (example_inputs,), {}
    if isinstance(example_inputs, Mapping):
        return (), dict(example_inputs)
    if isinstance(example_inputs, list | tuple):
        return tuple(example_inputs), {}
    raise InputError(
        f"example_inputs must be a tensor, a tuple or a dict of keyword inputs, not {type(example_inputs).__name__}"
    )


def trace(module: nn.Module, example_inputs: Any) -> Program:
    """Trace a module in eval and in train mode; where the whole cannot be traced, its largest parts."""
    args, kwargs = split_inputs(example_inputs)
    notes: list[str] = []
    graphs: list[Graph] = []
    for mode in ("eval", "train"):
        try:
            graphs.append(trace_mode(module, args, kwargs, mode))
        except TraceError as error:
            parts = _trace_parts(module, args, kwargs, mode)
            if not parts:
                raise
            names = ", ".join(f"'{graph.part.rstrip('.')}'" for graph in parts)
            notes.append(f"in {mode} mode only the parts {names} could be traced: {error}")
            graphs.extend(parts)
    if len(graphs) == 2 and not any(graph.part for graph in graphs) and graphs[0].computes_as(graphs[1]):
        graphs = [replace(graphs[0], both=True)]
    return Program(tuple(graphs), tuple(notes))


def trace_mode(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], mode: Mode) -> Graph:
    """Trace a module in one mode."""
    name = type(module).__name__
    with _quiet(), undisturbed(module) as kept:
        changed, before = _changed(module, args, kwargs, mode, kept), draws()
        _switch(module, mode)
        try:
            program = torch.export.export(module, args, kwargs, strict=False)
            inline_(program)
            without_idle_dropout(program)
            replaced = as_values(program.graph)
            if replaced is None:
                program = program.run_decompositions({})  # gives writes through views their data edges, but takes long
        except Exception as error:
            raise TraceError(_explain(module, mode, error)) from error
        names = canonical_names(module)
        unseen = {names[path] for path in changed} - {names.get(path, path) for path in written(program)}
        refusal = _unseen(program, unseen, drawn=draws() != before)
    if refusal:
        raise TraceError(f"{name} cannot be traced in {mode} mode: {refusal}")
    graph = _convert(program, canonical_names(module), mode, replaced or {})
    loose = next((graph.by_name[n] for n in graph.by_name if n in graph.shapeless), None)
    if loose is not None:
        place = f" at {loose.where}" if loose.where else ""
        raise TraceError(
            f"{name} cannot be traced in {mode} mode: the shape of {loose.op}{place} depends on the data "
            "(move the selection out of the model, or multiply by a mask instead)"
        )
    return graph


def _unseen(program: ExportedProgram, changed: set[str], *, drawn: bool) -> str:
    """What the forward does that its trace does not show, or nothing."""
    if drawn:
        return (
            "its forward draws from Python's or NumPy's `random`, so one trace does not tell what the next pass "
            "computes (use torch's random numbers, which are in the graph)"
        )
    if changed:
        return (
            f"its forward changes '{min(changed)}', or puts another tensor in its place, which the trace does not show "
            "(write into it, with copy_() or +=)"
        )
    if hidden := hidden_write(program.graph):
        place = _where(hidden.meta.get("stack_trace"))
        return (
            f"{hidden.target}{f' at {place}' if place else ''} writes to a tensor from within a region that the trace "
            "does not look into (make a new tensor there instead)"
        )
    return ""


def _changed(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], mode: Mode, kept: Kept) -> set[str]:
    """Parameters and buffers that have other values after a pass, which are given theirs again."""
    try:
        with torch.no_grad():
            _switch(module, mode)
            args, kwargs = fresh((args, kwargs))
            module(*args, **kwargs)
    except Exception:
        kept.put_back()
        return set()  # the exporter has more to say
    return kept.put_back()


def _switch(module: nn.Module, mode: Mode) -> None:
    if module.training != (mode == "train"):
        module.train(mode == "train")


def _convert(
    program: ExportedProgram, canonical: Mapping[str, str], mode: Mode, replaced: Mapping[torch.fx.Node, Any]
) -> Graph:
    leaves = {spec.arg.name: (spec.kind, spec.target) for spec in program.graph_signature.input_specs}
    constants: dict[str, Tensor] = {}
    nodes: list[Node] = []
    owners: dict[str, str] = {}
    known: dict[str, str] = {}
    for fx_node in program.graph.nodes:
        if fx_node.op == "output" or str(fx_node.target) in _ASSERTIONS or counts(fx_node):
            continue
        values = fx_node.meta.get("val")
        shapes, dtypes = _signature(values)
        if fx_node.op == "placeholder":
            kind, target = leaves.get(fx_node.name, (InputKind.USER_INPUT, None))
            op = _KINDS.get(kind, INPUT)
            if op in (PARAMETER, BUFFER):
                target = canonical.get(target, target)
                if target in owners:  # a tied tensor: one node for all its names
                    known[fx_node.name] = owners[target]
                    continue
                owners[target] = fx_node.name
            elif op == CONSTANT:
                value = program.constants.get(target)
                if isinstance(value, Tensor):
                    constants[fx_node.name] = value.detach()
            node = Node(fx_node.name, op, (), {}, shapes, dtypes, target or fx_node.name, last=_is_last(values))
        else:
            resolve = _Resolver(known)
            op = str(replaced[fx_node]) if fx_node in replaced else _op_name(fx_node)
            node = Node(
                fx_node.name, op, resolve(fx_node.args), resolve(fx_node.kwargs), shapes, dtypes,
                target=_held(program, fx_node), where=_where(fx_node.meta.get("stack_trace")), module=_module(fx_node),
                last=_is_last(values),
            )
            if fx_node in replaced:  # from here on, every name of what it was written to means the new value
                old = node.args[0].name
                known |= dict.fromkeys([old, *(name for name, value in known.items() if value == old)], node.name)
        nodes.append(node)
    outputs = tuple(
        known.get(spec.arg.name, spec.arg.name)
        for spec in program.graph_signature.output_specs
        if spec.kind in (OutputKind.USER_OUTPUT, OutputKind.USER_INPUT_MUTATION) and hasattr(spec.arg, "name")
    )
    present = {node.name for node in nodes}
    mutations = tuple(
        (owners[canonical.get(spec.target, spec.target)], spec.arg.name)
        for spec in program.graph_signature.output_specs
        if spec.kind in WRITTEN and canonical.get(spec.target, spec.target) in owners
    )
    return Graph(mode, tuple(nodes), tuple(name for name in outputs if name in present), constants, mutations)


class _Resolver:
    """fx arguments with nodes replaced by references."""

    def __init__(self, known: Mapping[str, str]) -> None:
        self.known = known

    def __call__(self, value: Any) -> Any:
        if isinstance(value, torch.fx.Node):
            return Ref(self.known.get(value.name, value.name))
        if isinstance(value, Mapping):
            return {key: self(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return tuple(self(item) for item in value)
        return value


def _is_last(value: object) -> bool:
    """Whether channels lie last in memory, which strides tell also of a single position."""
    if not isinstance(value, Tensor) or value.dim() not in (4, 5):
        return False
    return value.stride(1) == 1 and max(value.stride()[2:]) > 1


def _op_name(fx_node: torch.fx.Node) -> str:
    target = fx_node.target
    if fx_node.op == "get_attr":
        return f"attribute.{target}"
    if isinstance(target, torch._ops.OpOverload):
        return str(target)
    name = getattr(target, "__name__", str(target))
    return GETITEM if name == "getitem" else f"python.{name}"


def _held(program: ExportedProgram, fx_node: torch.fx.Node) -> str:
    """For what is taken from the program itself, its contents."""
    return contents(attrgetter(str(fx_node.target))(program.graph_module)) if fx_node.op == "get_attr" else ""


def _signature(values: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    items = values if isinstance(values, list | tuple) else (values,)
    shapes, dtypes = [], []
    for item in items:
        static = isinstance(item, Tensor) and all(isinstance(size, int) for size in item.shape)
        shapes.append(tuple(item.shape) if static else None)
        dtypes.append(item.dtype if isinstance(item, Tensor) else None)
    return tuple(shapes), tuple(dtypes)


def _module(fx_node: torch.fx.Node) -> str:
    """Path of the innermost module that ran the operator."""
    stack = fx_node.meta.get("nn_module_stack") or {}
    return str(list(stack.values())[-1][0]) if stack else ""


def _where(stack: str | None) -> str:
    """The innermost frame of the user's own code: `file.py:12`."""
    frames = _FRAME.findall(stack or "")
    own = [frame for frame in frames if "/torch/" not in frame[0].replace("\\", "/")]
    for path, line in reversed(own or frames):
        return f"{path.replace(chr(92), '/').rsplit('/', 1)[-1]}:{line}"
    return ""


def _explain(module: nn.Module, mode: Mode, error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason = (lines[0] if lines else "no message")[:300]
    place = ""
    stack = error.__traceback__
    while stack is not None:
        path = stack.tb_frame.f_code.co_filename.replace("\\", "/")
        if "/torch/" not in path and "/nodedrop/tracing/" not in path and "importlib" not in path:
            place = f" at {path.rsplit('/', 1)[-1]}:{stack.tb_lineno}"
        stack = stack.tb_next
    advice = "check that the example inputs fit the model's forward, and move data-dependent Python branches out of it"
    averaging = [path for path, child in module.named_modules() if getattr(child, "momentum", 0.0) is None]
    if mode == "train" and averaging and type(error).__name__ == "GuardOnDataDependentSymNode":
        advice = f"'{averaging[0]}' has momentum=None and averages by its count of batches; give it one, such as 0.1"
    name = type(module).__name__
    return f"{name} cannot be traced in {mode} mode{place}: {type(error).__name__}: {reason} ({advice})"


def _trace_parts(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], mode: Mode) -> list[Graph]:
    """Graphs of the largest submodules that can be traced by themselves, with whatever inputs they were called."""
    calls: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {}
    hooks = [
        child.register_forward_pre_hook(
            lambda _m, a, k, name=name: calls.setdefault(name, (a, k)), with_kwargs=True, prepend=True
        )
        for name, child in module.named_modules()
        if name
    ]
    try:
        with undisturbed(module), torch.no_grad():
            module.train(mode == "train")
            args, kwargs = fresh((args, kwargs))
            module(*args, **kwargs)
    except Exception:
        return []
    finally:
        for hook in hooks:
            hook.remove()
    return list(_largest_parts(module, "", calls, mode, canonical_names(module)))


def _largest_parts(
    module: nn.Module, prefix: str, calls: Mapping[str, Any], mode: Mode, canonical: Mapping[str, str]
) -> Iterator[Graph]:
    for name, child in module.named_children():
        path = prefix + name
        if path not in calls or not any(True for _ in child.parameters()):
            yield from _largest_parts(child, path + ".", calls, mode, canonical)
            continue
        try:
            args, kwargs = calls[path]
            graph = trace_mode(child, args, kwargs, mode)
        except TraceError:
            yield from _largest_parts(child, path + ".", calls, mode, canonical)
            continue
        yield _as_part(graph, path + ".", canonical)


def _as_part(graph: Graph, prefix: str, canonical: Mapping[str, str]) -> Graph:
    nodes = []
    for node in graph.nodes:
        if node.op in (PARAMETER, BUFFER):
            full = prefix + node.target
            node = replace(node, target=canonical.get(full, full))
        nodes.append(node)
    return replace(graph, nodes=tuple(nodes), part=prefix)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the exporter's own warnings, log lines and graph dumps away from the user."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stderr(StringIO()), redirect_stdout(StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
