"""Recurrent layers: their states are bounded by their activations."""

from __future__ import annotations

from ...tracing.graph import Node
from ..interval import INF, Interval, between
from ..registry import Context, Result, rule
from ..rounding import gamma


@rule("aten.lstm.input")
def _lstm(ctx: Context, node: Node) -> Result:
    """h = o·tanh(c) lies in [−1, 1], unless it is projected; the cell state is unbounded."""
    projected = node.shapes[1] != node.shapes[2]
    limit = INF if projected else 1.0 + 8 * ctx.u(node)
    out, hidden, cell = (shape or () for shape in node.shapes)
    return between(-limit, limit, out), between(-limit, limit, hidden), between(-INF, INF, cell)


@rule("aten.gru.input", "aten.rnn_tanh.input")
def _gru(ctx: Context, node: Node) -> Result:
    """Each state mixes tanh and the state before it, so but for some roundings each step it never leaves the hull of
    [−1, 1] and the first state."""
    first = ctx(node.args[1])
    limit = max(1.0, float(first.magnitude.max())) * (1 + gamma(16 * max(node.shape[:-1]), ctx.u(node)))
    out, hidden = (shape or () for shape in node.shapes)
    return between(-limit, limit, out), between(-limit, limit, hidden)


@rule("aten.rnn_relu.input")
def _rnn_relu(ctx: Context, node: Node) -> Result:
    shapes: list[Interval] = [between(0.0, INF, shape or ()) for shape in node.shapes]
    return tuple(shapes)
