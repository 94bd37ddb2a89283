"""One rule per operator: a function from the bounds of its inputs to the bounds of its results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..tracing.graph import Graph, Node, Ref
from .interval import INF, Interval, constant, unbounded
from .rounding import unit_roundoff, widen

Result = Interval | tuple[Interval, ...]
Rule = Callable[["Context", Node], "Result | None"]

RULES: dict[str, Rule] = {}


def rule(*ops: str) -> Callable[[Rule], Rule]:
    """Register a rule for some operators."""

    def register(function: Rule) -> Rule:
        for op in ops:
            RULES[op] = function
        return function

    return register


@dataclass
class Context:
    """What rules may ask while one graph is being walked. `memo` is shared by the graphs of one module."""

    graph: Graph
    tensors: Mapping[str, Tensor]
    batch_limit: float
    dtype: torch.dtype | None
    values: dict[str, Result] = field(default_factory=dict)
    margins: dict[str, Tensor] = field(default_factory=dict)
    memo: dict[Any, Any] = field(default_factory=dict)

    def raw(self, value: Ref) -> Interval:
        """The interval of a reference, known tensors in their own precision."""
        found = self.values[value.name]
        return found if isinstance(found, Interval) else found[0]

    def __call__(self, value: Any) -> Interval:
        """The interval of an argument in double: a reference, or a plain number."""
        if isinstance(value, Ref):
            return self.raw(value).double()
        if isinstance(value, bool | int | float):
            return constant(float(value), ())
        return unbounded(())

    def u(self, node: Node) -> float:
        """The unit round-off of the arithmetic that computes a node."""
        return max(unit_roundoff(node.dtype), unit_roundoff(self.dtype))

    def tiny(self, node: Node) -> float:
        """The largest error of an underflow (flush to zero included)."""
        dtypes = [d for d in (node.dtype, self.dtype) if d is not None and d.is_floating_point]
        return max((float(torch.finfo(d).tiny) for d in dtypes), default=0.0)

    def rounded(self, node: Node, lo: Tensor, hi: Tensor, ulps: float = 1.0) -> Interval:
        """An interval of real results, made to hold for rounded ones."""
        lo, hi = widen(lo, hi, self.u(node), self.tiny(node), ulps)
        limit = self.largest(node)
        lo, hi = lo.masked_fill(lo < -limit, -INF), hi.masked_fill(hi > limit, INF)
        return Interval(lo, hi, node.shape)

    def largest(self, node: Node) -> float:
        """The largest finite number of the arithmetic; a bound beyond it may overflow."""
        dtypes = [d for d in (node.dtype, self.dtype) if d is not None and d.is_floating_point]
        return min((float(torch.finfo(d).max) for d in dtypes), default=INF)
