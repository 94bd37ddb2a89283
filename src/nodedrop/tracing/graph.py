"""The immutable graph between tracing and every later stage: ATen operators, tensors by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

Mode = Literal["train", "eval"]
Shape = tuple[int, ...]

INPUT, PARAMETER, BUFFER, CONSTANT, GETITEM = "input", "parameter", "buffer", "constant", "getitem"


@dataclass(frozen=True)
class Ref:
    """An argument that is the value of another node."""

    name: str


@dataclass(frozen=True)
class Node:
    """One operator application, or a leaf (input, parameter, buffer, constant).

    `last` tells that the values lie channels last in memory, where some kernels compute otherwise.
    """

    name: str
    op: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    shapes: tuple[Shape | None, ...] = ()
    dtypes: tuple[torch.dtype | None, ...] = ()
    target: str = ""
    where: str = ""
    module: str = ""
    last: bool = field(default=False, compare=False)

    @property
    def shape(self) -> Shape:
        """Shape of the first result."""
        shape = self.shapes[0] if self.shapes else None
        return shape if shape is not None else ()

    @property
    def dtype(self) -> torch.dtype | None:
        """Type of the first result."""
        return self.dtypes[0] if self.dtypes else None

    @property
    def is_tensor(self) -> bool:
        """Whether the node has exactly one result, and that is a tensor."""
        return len(self.shapes) == 1 and self.shapes[0] is not None

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """Names of all nodes this one reads, in order of appearance."""
        return tuple(_refs((self.args, dict(self.kwargs))))

    def arg(self, position: int, name: str, default: Any = None) -> Any:
        """An argument by position or by name."""
        if position < len(self.args):
            return self.args[position]
        return self.kwargs.get(name, default)


@dataclass(frozen=True)
class Graph:
    """What one forward pass of a module (or of one part of it) computes, in one mode or in `both` alike.

    `mutations` pairs each buffer or parameter that the pass writes with the value it writes, both by node name.
    """

    mode: Mode
    nodes: tuple[Node, ...]
    outputs: tuple[str, ...]
    constants: Mapping[str, Tensor] = field(default_factory=dict)
    mutations: tuple[tuple[str, str], ...] = ()
    part: str = ""
    both: bool = False

    @property
    def modes(self) -> tuple[Mode, ...]:
        """The modes in which this is computed."""
        return ("eval", "train") if self.both else (self.mode,)

    def computes_as(self, other: Graph) -> bool:
        """Whether the same operators run on the same values, whatever the modes."""
        mine, theirs = self.constants, other.constants
        return (
            (self.nodes, self.outputs, self.mutations, self.part)
            == (other.nodes, other.outputs, other.mutations, other.part)
            and mine.keys() == theirs.keys()
            and all(torch.equal(mine[name], theirs[name]) for name in mine)
        )

    @cached_property
    def shapeless(self) -> frozenset[str]:
        """Nodes that have, or read, a tensor whose shape depends on the data."""
        loose = {node.name for node in self.nodes if any(s is None and d is not None for s, d in _results(node))}
        return frozenset(node.name for node in self.nodes if loose & {node.name, *node.inputs})

    @cached_property
    def by_name(self) -> Mapping[str, Node]:
        """Nodes by name."""
        return {node.name: node for node in self.nodes}

    @cached_property
    def places(self) -> Mapping[str, int]:
        """Where in the graph each node is."""
        return {node.name: place for place, node in enumerate(self.nodes)}

    @cached_property
    def readers(self) -> Mapping[str, tuple[str, ...]]:
        """Names of the nodes that read each node."""
        found: dict[str, list[str]] = {}
        for node in self.nodes:
            for name in dict.fromkeys(node.inputs):
                found.setdefault(name, []).append(node.name)
        return {name: tuple(names) for name, names in found.items()}

    @cached_property
    def inputs(self) -> tuple[Node, ...]:
        """The input nodes, in call order."""
        return tuple(node for node in self.nodes if node.op == INPUT)

    def __str__(self) -> str:
        head = f"graph ({self.mode}{', ' + self.part if self.part else ''}), {len(self.nodes)} nodes"
        return "\n".join([head, *(f"  {n.name}: {n.op} {n.shape} {n.inputs}" for n in self.nodes)])


@dataclass(frozen=True)
class Program:
    """All graphs of a module. Parts of it that could not be traced are named in `notes`."""

    graphs: tuple[Graph, ...]
    notes: tuple[str, ...] = ()

    def in_mode(self, mode: Mode) -> tuple[Graph, ...]:
        """The graphs of one mode."""
        return tuple(graph for graph in self.graphs if mode in graph.modes)


def tensors_of(module: torch.nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers under their canonical name: the first under which each is registered."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def canonical_names(module: torch.nn.Module) -> dict[str, str]:
    """Every registered name of a tensor, mapped to the canonical one (tied tensors share it)."""
    first: dict[int, str] = {}
    names: dict[str, str] = {}
    for named in (module.named_parameters(remove_duplicate=False), module.named_buffers(remove_duplicate=False)):
        for name, tensor in named:
            names[name] = first.setdefault(id(tensor), name)
    return names


def _results(node: Node) -> Iterator[tuple[Shape | None, torch.dtype | None]]:
    yield from zip(node.shapes, node.dtypes, strict=True)


def _refs(value: Any) -> Iterator[str]:
    if isinstance(value, Ref):
        yield value.name
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _refs(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _refs(item)
