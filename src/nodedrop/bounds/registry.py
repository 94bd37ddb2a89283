"""One rule per operator: a function from the bounds of its inputs to the bounds of its results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ..tracing.graph import Graph, Node, Ref
from .interval import INF, Interval, constant, unbounded
from .rounding import unit_roundoff, widen

Result = Interval | tuple[Interval, ...]
Rule = Callable[["Context", Node], "Result | None"]

RULES: dict[str, Rule] = {}
_MOST = float(torch.finfo(torch.float64).max)


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
    tensors: Mapping[str, Tensor | Interval]
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
            return self.scalar(float(value))
        return unbounded(())

    def scalar(self, value: float) -> Interval:
        """A number in the program's text, which kernels may round to their own precision before use."""
        rounded = [float(torch.tensor(value, dtype=d)) for d in self.dtypes]
        lo, hi = min(value, *rounded), max(value, *rounded)
        if lo == hi:
            return constant(value, ())
        return Interval(torch.tensor(lo, dtype=torch.float64), torch.tensor(hi, dtype=torch.float64), ())

    def written(self, value: Ref) -> Interval:
        """The interval of a reference, written out along all axes."""
        found = self.raw(value)
        return found.written_out(tuple(range(len(found.shape))))

    def known(self, value: Any) -> Tensor | None:
        """The values of an argument that is known exactly, written out in double."""
        if not isinstance(value, Ref) or not self.raw(value).exact:
            return None
        return self.written(value).lo.double()

    @cached_property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        """The precisions that may occur in the program."""
        found = {node.dtype for node in self.graph.nodes} | {self.dtype, torch.float32}
        return tuple(d for d in found if d is not None and d.is_floating_point)

    @cached_property
    def batch_growth(self) -> float:
        """How many times larger than the example's a training batch may be."""
        sizes = [node.shape[0] for node in self.graph.inputs if node.is_tensor and node.shape]
        return self.batch_limit / max(sizes[0], 1) if sizes else INF

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
        return self.limited(node, lo, hi)

    def limited(self, node: Node, lo: Tensor, hi: Tensor, size: Tensor | None = None) -> Interval:
        """An interval that is open where a result, or a partial sum up to `size`, may overflow."""
        limit = self.largest(node)
        if size is not None:
            risky = ~(size <= limit)
            lo, hi = lo.masked_fill(risky, -INF), hi.masked_fill(risky, INF)
        lo, hi = lo.masked_fill(lo < -limit, -INF), hi.masked_fill(hi > limit, INF)
        lo, hi = lo.masked_fill(lo == INF, _MOST), hi.masked_fill(hi == -INF, -_MOST)
        missing = (1,) * (len(node.shape) - lo.dim())
        return Interval(lo.reshape(missing + tuple(lo.shape)), hi.reshape(missing + tuple(hi.shape)), node.shape)

    def largest(self, node: Node) -> float:
        """The largest finite number of the arithmetic; a bound beyond it may overflow."""
        dtypes = [d for d in (node.dtype, self.dtype) if d is not None and d.is_floating_point]
        return min((float(torch.finfo(d).max) for d in dtypes), default=INF)
