"""One rule per operator: a function from the bounds of its inputs to the bounds of its results."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ..tracing.graph import Graph, Node, Ref
from .conversion import WHOLE, converted
from .interval import INF, Ball, Interval, constant, point, unbounded
from .rounding import DOUBLE, gamma, unit_roundoff, widen

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
    """What rules may ask while one graph is being walked; `node` is the one whose rule runs.

    `memo` is shared by the graphs of one module.
    """

    graph: Graph
    tensors: Mapping[str, Tensor | Interval]
    batch_limit: float
    dtype: torch.dtype | None
    values: dict[str, Result] = field(default_factory=dict)
    margins: dict[str, Tensor] = field(default_factory=dict)
    memo: dict[Any, Any] = field(default_factory=dict)
    node: Node | None = None

    def raw(self, value: Ref) -> Interval:
        """The interval of a reference, known tensors in their own precision."""
        found = self.values[value.name]
        return found if isinstance(found, Interval) else found[0]

    def __call__(self, value: Any) -> Interval:
        """The interval of an argument in double, as the operator meets it: a reference, or a plain number."""
        if isinstance(value, Ref):
            return self._met(self.raw(value).double(), self.graph.by_name[value.name].dtype)
        if isinstance(value, bool | int | float):
            number = self.scalar(value)
            return converted(number, None, self.node.dtype) if self.node and _is_whole(self.node) else number
        return unbounded(())

    def _met(self, value: Interval, source: torch.dtype | None) -> Interval:
        """An operand of another type is converted to that of the result before anything is computed.

        Under autocast results may be of a lower type than was traced, and so may operands: code asks others for their
        type, and tensors are written into them.
        """
        target = None if self.node is None else self.node.dtype
        found = converted(value, source, target)
        if self.dtype is not None and target is not None and target.is_floating_point:
            found = converted(found, source, self.dtype)
        return found

    def scalar(self, number: float) -> Interval:
        """A number in the program's text, which kernels may round to their own precision before use."""
        value = float(number)
        near = [] if value == number else [math.nextafter(value, end) for end in (-INF, INF)]
        rounded = near + [float(torch.tensor(value, dtype=d)) for d in self.dtypes]
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
    def rewritten(self) -> frozenset[str]:
        """Buffers and parameters that the pass writes: the next one will find other values."""
        return frozenset(name for name, _ in self.graph.mutations)

    @cached_property
    def batch_growth(self) -> float:
        """How many times larger than the example's a batch may be; the limit is one of training batches alone."""
        if "eval" in self.graph.modes:
            return INF
        sizes = [node.shape[0] for node in self.graph.inputs if node.is_tensor and node.shape]
        return self.batch_limit / max(min(sizes), 1) if sizes else INF  # whichever of them has the batch first

    def u(self, node: Node) -> float:
        """The unit round-off of the arithmetic that computes a node; 0 for whole numbers."""
        return max(map(unit_roundoff, self._floats(node)), default=0.0)

    def tiny(self, node: Node) -> float:
        """The largest error of an underflow (flush to zero included)."""
        return max((float(torch.finfo(d).tiny) for d in self._floats(node)), default=0.0)

    def rounded(self, node: Node, lo: Tensor, hi: Tensor, ulps: float = 1.0) -> Interval:
        """An interval of real results, made to hold for rounded ones."""
        lo, hi = widen(lo, hi, self.u(node), self.tiny(node), ulps)
        return self.limited(node, lo, hi)

    def lost(self, node: Node, value: Tensor) -> Tensor:
        """How far a known value may be from what is written of it, in the type of a result or a lower one."""
        known = point(value)
        near = [converted(known, None, dtype) for dtype in self._floats(node)]
        away = [torch.maximum(value - item.lo, item.hi - value) for item in near]
        return torch.stack([torch.zeros_like(value), *away]).amax(0)

    def rounded_ball(self, node: Node, ball: Ball, terms: int = 1) -> Ball | None:
        """Normalised rows, made to hold for rounded ones; None where they may overflow."""
        size = ball.magnitude
        if bool((size > self.largest(node)).any()) and math.isfinite(ball.slack):
            return None
        error = ball.error + size * (gamma(2 * terms, self.u(node)) + 8 * DOUBLE) + 2 * self.tiny(node)
        return replace(ball, error=error.nan_to_num(nan=INF))

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
        return min((float(torch.finfo(d).max) for d in self._floats(node)), default=INF)

    def _floats(self, node: Node) -> list[torch.dtype]:
        """The types that a node may be computed in, if they are types of floats."""
        found = (node.dtype, None if _is_whole(node) else self.dtype)
        return [dtype for dtype in found if dtype is not None and dtype.is_floating_point]


def _is_whole(node: Node) -> bool:
    return node.dtype in WHOLE or node.dtype is torch.bool
