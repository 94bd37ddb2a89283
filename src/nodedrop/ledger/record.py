"""What the ledger is told: what proofs rest on, and every cut just before it is final."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ..analysis import Analysis
from ..bounds import Bounds, Box, Interval, Result, bound
from ..bounds.domain import boxes
from ..planning import Plan, Structure
from ..session import Outcome, Session
from ..tracing import Graph, Node, tensors_of


@dataclass(frozen=True)
class Declared:
    """What a session's certificates rest on."""

    module: str
    inputs: Mapping[str, tuple[Node, Interval]]
    outputs: tuple[tuple[int, ...], ...]
    modes: tuple[str, ...]
    evidence: str
    batch_size: int | None
    dtype: torch.dtype | None


@dataclass(frozen=True)
class CutRecord:
    """A cut that is about to be final: tensors before and after, and how each unit is tied to them.

    `origin` has the indices before any cut that the elements of each tensor axis had. `bounded` gives the bounds of a
    part of a graph, where inputs that are not the model's are unbounded, from tensors before the cut, or what is kept
    of them, and values that are known already.
    """

    analysis: Analysis
    plan: Plan
    structure: Structure
    origin: Mapping[tuple[str, int], list[int]]
    before: Mapping[str, Tensor]
    after: Mapping[str, Tensor]
    difference: float
    bounded: Callable[[Graph, Mapping[str, Tensor | Interval], Mapping[str, Result]], Bounds]


def declared(session: Session) -> Declared:
    """What the certificates of a session rest on."""
    graph, options = session.program.graphs[0], session.options
    nodes = {name: graph.by_name[name] for name in boxes(graph, options.domain)}
    named = {node.target: (node, session.domain[node.target]) for node in nodes.values()}
    outputs = tuple(graph.by_name[name].shape for name in graph.outputs)
    kind = type(session.module).__name__
    return Declared(kind, named, outputs, options.modes, options.evidence, session.batch_limit, options.dtype)


def recorded(session: Session, plan: Plan, outcome: Outcome, before: Mapping[str, Tensor]) -> CutRecord:
    """What a session says of a cut."""
    return CutRecord(
        outcome.analysis, plan, session.structure, session.origin, before, tensors_of(session.module),
        outcome.difference, partial(_bounded, session),
    )  # fmt: skip


def _bounded(
    session: Session, graph: Graph, tensors: Mapping[str, Tensor | Interval], known: Mapping[str, Result]
) -> Bounds:
    own = session.domain
    domain = {node.target: Box(own[node.target].lo, own[node.target].hi) for node in graph.inputs if node.target in own}
    limit = float(session.batch_limit or "inf")
    return bound(graph, tensors, domain, batch_limit=limit, dtype=session.options.dtype, known=known)
