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
MOST = 2**13  # elements of a value that are worth it

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
POOLS = frozenset(f"aten.max_pool{axes}d.default" for axes in (1, 2, 3))


def tightened(context: Context, node: Node, found: Interval) -> Interval:
    """The interval of a value that an activation reads, cut down where its sign is open."""
    if found.exact or prod(node.shape) > MOST or not _activated(context.graph, node) or not _worth(context, node):
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


def _activated(graph: Graph, node: Node) -> bool:
    """Whether an activation reads the value, or the largest of its windows."""
    readers = [graph.by_name[name] for name in graph.readers.get(node.name, ())]
    return any(item.op in LINES or (item.op in POOLS and _activated(graph, item)) for item in readers)


def _worth(context: Context, node: Node) -> bool:
    """Whether the value is more than one sum of what has intervals: for that, those are the best there are."""
    sums, waiting, seen = 0, [node.name], set[str]()
    while waiting:
        item = context.graph.by_name[waiting.pop()]
        if item.name in seen or item.op not in MOVES | SUMS | PAIRS | LINES.keys() | {GETITEM}:
            continue
        if item.op in LINES:
            return True
        seen.add(item.name)
        sums += item.op in SUMS | PAIRS
        waiting += item.inputs
    return sums > 1


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
        for name, more in search.followed(item, rows).items():
            waiting[name] = waiting[name] + more if name in waiting else more
    return search.total


@dataclass
class _Search:
    """The constant of each row's linear function, gathered on the way back, rounded up."""

    context: Context
    total: Tensor

    def add(self, rows: Tensor, middle: Tensor, reach: Tensor, shape: tuple[int, ...]) -> None:
        """What the rows make, at most, of values that lie within `reach` of `middle`."""
        flat, middle, reach = rows.reshape(len(rows), -1), *(_written(part, shape) for part in (middle, reach))
        endless = ~(middle.isfinite() & reach.isfinite())
        sizes = flat.abs()
        if bool(endless.any()):
            self.total = self.total + torch.where((sizes[:, endless] > 0).any(1), INF, 0.0)
            middle, reach = middle.masked_fill(endless, 0.0), reach.masked_fill(endless, 0.0)
        slack = gamma(len(middle) + 16, DOUBLE) * (middle.abs() + reach)
        more = flat @ middle + sizes @ (reach + 2 * slack)
        self.total = self.total + more + 4 * DOUBLE * (self.total.abs() + more.abs())

    def followed(self, node: Node, rows: Tensor) -> dict[str, Tensor]:
        """Coefficients of what a node reads; none where the search ends, and its interval is put in."""
        context = self.context
        if node.op == GETITEM:
            source = context.graph.by_name[node.args[0].name]
            if node.args[1] == 0 and source.op in SUMS:
                return {source.name: rows}
        elif node.op in LINES and not self._converts(node):
            return self._activation(node, rows)
        else:
            free = [name for name in dict.fromkeys(node.inputs) if not context.raw(Ref(name)).exact]
            error = self._error(node, free) if free and not self._converts(node) else None
            if error is not None:
                return self._affine(node, rows, free, *error)
        value = context.raw(Ref(node.name)).double()
        self.add(rows, (value.hi + value.lo) / 2, (value.hi - value.lo) / 2, node.shape)
        return {}

    def _converts(self, node: Node) -> bool:
        """Whether what the node reads is rounded first, to another type, or what it makes may wrap around."""
        types = {self.context.graph.by_name[name].dtype for name in node.inputs}
        return types != {node.dtype} or node.dtype is None or not node.dtype.is_floating_point

    def _error(self, node: Node, free: list[str]) -> tuple[Tensor, Tensor] | None:
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
        """Coefficients pass through an affine operator as gradients do; what it makes of zeros is its constant."""
        shapes = [self.context.graph.by_name[name].shape for name in free]
        starts = [_zeros(shape) for shape in shapes]
        result = self._applied(node, dict(zip(free, starts, strict=True)))
        reach = margin + gamma(prod(node.shape) + 16, DOUBLE) * size + self._joined(node)
        self.add(rows, result.detach(), reach, node.shape)
        if node.op in SUMS:  # these take samples one by one, so that rows can be samples
            samples = rows.flatten(0, 1) if len(node.shape) > 1 else rows
            starts = [_zeros((len(samples), *shape[1 - samples.dim() :])) for shape in shapes]
            result = self._applied(node, dict(zip(free, starts, strict=True)))
            grads = torch.autograd.grad(result, starts, samples)
            named = zip(free, grads, shapes, strict=True)
            return {name: grad.reshape(len(rows), *shape) for name, grad, shape in named}
        grads = torch.autograd.grad(result, starts, rows, is_grads_batched=True)
        return {name: grad.detach() for name, grad in zip(free, grads, strict=True)}

    def _joined(self, node: Node) -> Tensor:
        """What a value can make of the rounding of its coefficients, which were added up over its readers."""
        readers = len(self.context.graph.readers.get(node.name, ()))
        return gamma(readers + 4, DOUBLE) * self.context.raw(Ref(node.name)).double().magnitude

    def _applied(self, node: Node, filled: Mapping[str, Tensor]) -> Tensor:
        with torch.enable_grad():
            result = resolve(node.op)(*self._filled(node.args, filled), **self._filled(dict(node.kwargs), filled))
        return result if isinstance(result, Tensor) else result[0]

    def _filled(self, value: Any, filled: Mapping[str, Tensor]) -> Any:
        if isinstance(value, Ref):
            return filled[value.name] if value.name in filled else self.context.known(value)
        if isinstance(value, Mapping):
            return {key: self._filled(item, filled) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._filled(item, filled) for item in value]
        return value

    def _activation(self, node: Node, rows: Tensor) -> dict[str, Tensor]:
        """A positive coefficient takes the line above, a negative one that below."""
        context, source = self.context, node.args[0]
        value = context(source)
        lo, hi = (end.expand(node.shape) for end in (value.lo, value.hi))
        lines = LINES[node.op](lo, hi, node)
        own = context.raw(Ref(node.name)).double()
        numbers = [number for number in (*node.args, *node.kwargs.values()) if isinstance(number, int | float)]
        roundings = ROUNDED.get(node.op, 0.0 if all(context.scalar(number).exact for number in numbers) else 2.0)
        slack = roundings * context.u(node) * own.magnitude + self._joined(node)
        steepest = torch.maximum(lines.above, lines.below)
        slack = slack + 4 * DOUBLE * torch.where(steepest > 0, steepest * value.magnitude, 0.0)
        self.add(rows, (lines.over + lines.under) / 2, (lines.over - lines.under) / 2 + slack, node.shape)
        return {source.name: rows * torch.where(rows > 0, lines.above, lines.below)}


def _written(part: Tensor, shape: tuple[int, ...]) -> Tensor:
    return part.expand(shape).reshape(-1)


def _zeros(shape: tuple[int, ...]) -> Tensor:
    return torch.zeros(shape, dtype=torch.float64, requires_grad=True)
