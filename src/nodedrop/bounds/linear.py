"""Tighter bounds by linear relaxation, in the manner of CROWN.

Intervals forget that two units read the same inputs. Here a value is bounded by a linear function of the values before
it, which is followed backwards through sums and activations to the inputs. What cannot be followed is replaced by its
interval. All that rounds is counted: the program's sums, by the margins of the interval rules, and this arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch
from torch import Tensor

from ..tracing.execute import resolve
from ..tracing.graph import GETITEM, Graph, Node, Ref
from .interval import INF, Interval
from .lines import LINES, ROUNDED
from .registry import Context
from .rounding import DOUBLE, gamma

ROOM = 2**24  # numbers in one block of coefficients
MOST = 2**15  # elements of a value that are worth it

MOVES = frozenset(
    f"aten.{name}"
    for name in (
        "view.default", "reshape.default", "_unsafe_view.default", "flatten.using_ints", "permute.default",
        "transpose.int", "t.default", "squeeze.dim", "squeeze.default", "unsqueeze.default", "expand.default",
        "cat.default", "slice.Tensor", "select.int", "clone.default", "contiguous.default", "alias.default",
        "detach.default", "neg.default", "unflatten.int",
    )
)  # fmt: skip
SUMS = frozenset(
    f"aten.{name}"
    for name in (
        "linear.default", "conv1d.default", "conv2d.default", "conv3d.default", "convolution.default",
        "conv1d.padding", "conv2d.padding", "conv3d.padding", "conv_transpose1d.default", "conv_transpose2d.input",
        "conv_transpose3d.input", "batch_norm.default", "_native_batch_norm_legit_no_training.default",
    )
)  # fmt: skip
PAIRS = frozenset(("aten.add.Tensor", "aten.sub.Tensor"))


def tightened(context: Context, node: Node, found: Interval) -> Interval:
    """The interval of a value that an activation reads, cut down where its sign is open."""
    readers = (context.graph.by_name[name].op for name in context.graph.readers.get(node.name, ()))
    followed = node.op in MOVES | SUMS | PAIRS | {GETITEM}
    if not followed or not any(op in LINES for op in readers) or prod(node.shape) > MOST or found.exact:
        return found
    known = found.double()
    open_ = ((known.lo < 0) & (known.hi > 0)).expand(node.shape).reshape(-1).nonzero().reshape(-1)
    if not len(open_):
        return found
    lo, hi = (end.expand(node.shape).reshape(-1).clone() for end in (known.lo, known.hi))
    for rows in _blocks(context.graph, node, open_):
        unit = torch.zeros(len(rows), prod(node.shape), dtype=torch.float64)
        unit[torch.arange(len(rows)), rows] = 1.0
        unit = unit.reshape(-1, *node.shape)
        hi[rows] = torch.minimum(hi[rows], _largest(context, node, unit))
        lo[rows] = torch.maximum(lo[rows], -_largest(context, node, -unit))
    uniform = [d for d, n in enumerate(known.lo.shape) if n == 1]
    lo, hi = lo.reshape(node.shape), hi.reshape(node.shape)
    return replace(
        found,
        lo=torch.maximum(known.lo, lo.amin(uniform, keepdim=True) if uniform else lo),
        hi=torch.minimum(known.hi, hi.amax(uniform, keepdim=True) if uniform else hi),
    )


def _blocks(graph: Graph, node: Node, rows: Tensor) -> Iterator[Tensor]:
    before = graph.nodes[: graph.nodes.index(node) + 1]
    widest = max(prod(item.shape) for item in before if item.is_tensor)
    yield from rows.split(max(ROOM // max(widest, 1), 1))


def _largest(context: Context, node: Node, coefficients: Tensor) -> Tensor:
    """The largest value that each row of coefficients makes of a node's value."""
    search = _Search(context, torch.zeros(len(coefficients), dtype=torch.float64))
    waiting = {node.name: coefficients}
    nodes = context.graph.nodes
    for item in reversed(nodes[: nodes.index(node) + 1]):
        rows = waiting.pop(item.name, None)
        if rows is None:
            continue
        passed = search.followed(item, rows)
        if passed is None:
            search.concretise(rows, context.raw(Ref(item.name)).double())
            continue
        for name, more in passed.items():
            waiting[name] = waiting[name] + more if name in waiting else more
            if waiting[name] is not more:
                search.allow(waiting[name], context.raw(Ref(name)).double(), 1)
    return search.total + gamma(4 * len(nodes) + 8, DOUBLE) * search.size


@dataclass
class _Search:
    """Constants gathered on the way back, and the sum of their sizes."""

    context: Context
    total: Tensor
    size: Tensor = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        self.size = torch.zeros_like(self.total)

    def add(self, rows: Tensor, values: Tensor, shape: tuple[int, ...]) -> None:
        """Σ rows·values, rounded up; a coefficient of zero makes nothing of infinity."""
        flat, ends = rows.flatten(1), values.expand(shape).reshape(-1)
        endless = ends.isinf()
        if bool(endless.any()):
            reached = flat[:, endless] * ends[endless]
            reached = torch.where(flat[:, endless] == 0, 0.0, reached).sum(1)
            ends = ends.masked_fill(endless, 0.0)
            self.total = self.total + reached.nan_to_num(nan=INF)
        part, size = flat @ ends, flat.abs() @ ends.abs()
        part = part + gamma(flat.shape[1] + 8, DOUBLE) * size
        self.total, self.size = self.total + part, self.size + size

    def concretise(self, rows: Tensor, value: Interval) -> None:
        self.add(rows.clamp(min=0), value.hi, value.shape)
        self.add(rows.clamp(max=0), value.lo, value.shape)

    def allow(self, rows: Tensor, value: Interval, roundings: float) -> None:
        """What rounding the coefficients themselves can make of a value."""
        self.add(rows.abs() * (4 * roundings * DOUBLE), value.magnitude, value.shape)

    def followed(self, node: Node, rows: Tensor) -> dict[str, Tensor] | None:
        """Coefficients of what a node reads, or None if it cannot be followed."""
        context = self.context
        if node.op == GETITEM:
            source = context.graph.by_name[node.args[0].name]
            return {source.name: rows} if node.args[1] == 0 and source.op in SUMS else None
        if node.op in LINES:
            return self._activation(node, rows)
        values = {name: context.raw(Ref(name)) for name in dict.fromkeys(node.inputs)}
        free = [name for name, value in values.items() if not value.exact]
        if not free:
            return None
        error = self._error(node, {name: values[name].double() for name in free})
        return None if error is None else self._affine(node, rows, free, *error)

    def _error(self, node: Node, free: Mapping[str, Interval]) -> tuple[Tensor, Tensor] | None:
        """Per element: what the program rounds, and the sum of the sizes of its terms; None if it is not affine."""
        context = self.context
        largest = context.raw(Ref(node.name)).double().magnitude
        if node.op in MOVES or (node.op == "aten.dropout.default" and not node.args[2]):
            return torch.zeros_like(largest), largest
        u = context.u(node)
        if node.op in SUMS and node.name in context.margins and len(free) == 1 and u > 0:
            margin = context.margins[node.name]
            return margin, margin / (2 * u)
        if node.op in PAIRS and node.kwargs.get("alpha", 1) == 1:
            known = [context(argument) for argument in node.args[:2]]
            size = known[0].magnitude + known[1].magnitude
            return 4 * u * size + context.tiny(node), size
        return None

    def _affine(self, node: Node, rows: Tensor, free: list[str], margin: Tensor, size: Tensor) -> dict[str, Tensor]:
        context = self.context
        zeros = [
            torch.zeros(context.graph.by_name[name].shape, dtype=torch.float64, requires_grad=True) for name in free
        ]
        filled = dict(zip(free, zeros, strict=True))
        with torch.enable_grad():
            result = resolve(node.op)(*self._filled(node.args, filled), **self._filled(dict(node.kwargs), filled))
            result = result if isinstance(result, Tensor) else result[0]
            grads = torch.autograd.grad(result, zeros, rows, is_grads_batched=True)
        self.add(rows, result.detach(), tuple(result.shape))
        self.add(rows.abs(), margin + gamma(prod(node.shape) + 8, DOUBLE) * size, tuple(result.shape))
        return dict(zip(free, (grad.detach() for grad in grads), strict=True))

    def _filled(self, value: Any, filled: Mapping[str, Tensor]) -> Any:
        if isinstance(value, Ref):
            return filled[value.name] if value.name in filled else self.context.known(value)
        if isinstance(value, Mapping):
            return {key: self._filled(item, filled) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._filled(item, filled) for item in value]
        return value

    def _activation(self, node: Node, rows: Tensor) -> dict[str, Tensor]:
        context, source = self.context, node.args[0]
        value = context(source)
        lo, hi = (end.expand(node.shape) for end in (value.lo, value.hi))
        lines = LINES[node.op](lo, hi, node)
        own = context.raw(Ref(node.name)).double()
        slack = ROUNDED.get(node.op, 0.0) * context.u(node) * own.magnitude
        up, down = rows.clamp(min=0), rows.clamp(max=0)
        self.add(up, lines.over + slack, node.shape)
        self.add(down, lines.under - slack, node.shape)
        passed = up * lines.above + down * lines.below
        self.allow(passed, value, 1)
        return {source.name: passed}
