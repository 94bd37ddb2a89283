"""The table of cases: for every operator with a rule, small graphs that use it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from tests.oracle import INF, PRECISIONS, Tape

from nodedrop.tracing import Graph

Write = Callable[..., Any]


@dataclass(frozen=True)
class Case:
    """One graph, as a function that writes it onto a tape."""

    op: str
    name: str
    write: Callable[[Tape], Any]
    dtypes: tuple[torch.dtype, ...] = PRECISIONS
    options: dict[str, Any] = field(default_factory=dict)

    def graph(self, tape: Tape) -> Graph:
        """What was written; a limit on batches is one in train mode."""
        return tape.graph("train" if "batch_limit" in self.options else "eval")


CASES: dict[str, list[Case]] = {}

PER_UNIT = (torch.tensor([[-2.0, 0.0, -0.001]]), torch.tensor([[-1.0, 0.0, 6.0]]))
BOXES: dict[str, tuple[Any, Any]] = {
    "both signs": (-3.0, 3.0),
    "negative": (-4.0, -0.5),
    "one side": (0.0, 6.5),
    "a point": (0.25, 0.25),
    "zero": (0.0, 0.0),
    "huge": (-1e4, 1e4),
    "tiny": (-1e-3, 1e-4),
    "per unit": PER_UNIT,
    "open": (-INF, INF),
    "open above": (-1.0, INF),
}


def case(*ops: str, dtypes: tuple[torch.dtype, ...] = PRECISIONS, **options: Any) -> Callable[[Write], Write]:
    """Register a graph for some operators; the function gets the tape and the operator's name."""

    def register(write: Write) -> Write:
        for op in ops:
            _add(op, write.__name__, lambda tape, op=op: write(tape, op), dtypes, options)
        return write

    return register


def elementwise(*ops: str, boxes: tuple[str, ...] = tuple(BOXES), args: tuple[Any, ...] = (), **kwargs: Any) -> None:
    """Register an operator of one value on boxes of every kind."""

    def write(tape: Tape, op: str) -> None:
        for name in boxes:
            lo, hi = BOXES[name]
            tape(op, tape.input(4, 3, lo=lo, hi=hi), *args, **kwargs)

    label = ", ".join(["boxes", *map(str, args), *(f"{k}={v}" for k, v in kwargs.items())])
    for op in ops:
        _add(op, label, lambda tape, op=op: write(tape, op), PRECISIONS, {})


def _add(op: str, name: str, write: Callable[[Tape], Any], dtypes: Any, options: dict[str, Any]) -> None:
    CASES.setdefault(op, []).append(Case(op, name, write, dtypes, options))
