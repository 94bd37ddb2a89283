"""Operators that make values: constants, ranges, masks, noise, table look-ups."""

from __future__ import annotations

from dataclasses import replace

from ...tracing.graph import Node, Ref
from ..interval import INF, Interval, between, constant, unbounded
from ..registry import Context, Result, rule


@rule("aten.full.default", "aten.full_like.default", "aten.new_full.default")
def _full(ctx: Context, node: Node) -> Result:
    value = node.arg(2 if node.op == "aten.new_full.default" else 1, "fill_value")
    return _everywhere(ctx(value), node) if isinstance(value, bool | int | float) else unbounded(node.shape)


def _everywhere(number: Interval, node: Node) -> Interval:
    ones = (1,) * len(node.shape)
    lo = number.lo.reshape(ones)
    return Interval(lo, lo if number.exact else number.hi.reshape(ones), node.shape)


@rule("aten.zeros.default", "aten.zeros_like.default", "aten.new_zeros.default", "aten.zero.default")
def _zeros(ctx: Context, node: Node) -> Result:
    return constant(0.0, node.shape)


@rule("aten.ones.default", "aten.ones_like.default", "aten.new_ones.default")
def _ones(ctx: Context, node: Node) -> Result:
    return constant(1.0, node.shape)


@rule("aten.scalar_tensor.default")
def _scalar(ctx: Context, node: Node) -> Result:
    return _everywhere(ctx(node.args[0]), node)


@rule("aten.arange.default", "aten.arange.start", "aten.arange.start_step")
def _arange(ctx: Context, node: Node) -> Result:
    numbers = [float(a) for a in node.args if isinstance(a, int | float)]
    first, last = (0.0, numbers[0]) if len(numbers) == 1 else (numbers[0], numbers[1])
    span = between(min(first, last), max(first, last), node.shape)
    # what is added up may go beyond the end, and across 0, by roundings of the largest number
    beyond = 0.0 if all(number == int(number) for number in numbers) else 64 * ctx.u(node) * sum(map(abs, numbers))
    return ctx.rounded(node, span.lo - beyond, span.hi + beyond, 4)


@rule("aten.fill.Scalar", "aten.fill.Tensor")
def _fill(ctx: Context, node: Node) -> Result:
    return _everywhere(ctx(node.args[1]), node)


@rule("aten.rand.default", "aten.rand_like.default", "aten.bernoulli.default", "aten.bernoulli.p",
      "aten.eq.Scalar", "aten.eq.Tensor", "aten.ne.Scalar", "aten.ne.Tensor", "aten.lt.Scalar", "aten.lt.Tensor",
      "aten.le.Scalar", "aten.le.Tensor", "aten.gt.Scalar", "aten.gt.Tensor", "aten.ge.Scalar", "aten.ge.Tensor",
      "aten.logical_not.default", "aten.logical_and.default", "aten.logical_or.default", "aten.isnan.default",
      "aten.isinf.default", "aten.any.dim", "aten.any.default", "aten.any.dims", "aten.all.default", "aten.all.dim",
      "aten.logical_xor.default")
def _unit_range(ctx: Context, node: Node) -> Result:
    return between(0.0, 1.0, node.shape)


@rule("aten.bitwise_and.Tensor", "aten.bitwise_or.Tensor", "aten.bitwise_not.default", "aten.bitwise_xor.Tensor")
def _bits(ctx: Context, node: Node) -> Result:
    boolean = str(node.dtype) == "torch.bool"
    return between(0.0, 1.0, node.shape) if boolean else unbounded(node.shape)


@rule("aten.randn.default", "aten.randn_like.default", "aten.empty.memory_format", "aten.argmax.default",
      "aten.empty_like.default", "aten.new_empty.default",
      "aten.cumsum.default", "aten.randint.low", "aten.argsort.default")
def _anything(ctx: Context, node: Node) -> Result:
    return unbounded(node.shape)


@rule("aten.embedding.default")
def _embedding(ctx: Context, node: Node) -> Result:
    table = ctx.raw(node.args[0])
    lo, hi = table.lo.amin(0).double(), table.hi.amax(0).double()
    ones = (1,) * (len(node.shape) - 1)
    return Interval(lo.reshape(*ones, -1), hi.reshape(*ones, -1), node.shape)


@rule("aten.dropout.default", "aten.native_dropout.default", "aten.feature_dropout.default",
      "aten.dropout_.default")
def _dropout(ctx: Context, node: Node) -> Result:
    """In training mode a value is dropped or divided by 1 − p."""
    value, p, training = ctx(node.args[0]), float(node.arg(1, "p", 0.5)), node.arg(2, "train", True) is not False
    if training and p > 0:
        scale = 1 / (1 - p) if p < 1 else 0.0
        wide = value.with_zero().scaled(scale)
        mix = None if value.mix is None else value.mix * scale * (1 + 4 * ctx.u(node))
        rounded = ctx.rounded(node, wide.lo, wide.hi, ulps=2)
        value = Interval(rounded.lo, rounded.hi, node.shape, mix=mix)
    if len(node.shapes) == 2:
        return value, between(0.0, 1.0, node.shapes[1] or ())
    return value


@rule("aten.scaled_dot_product_attention.default")
def _attention(ctx: Context, node: Node) -> Result:
    """A convex mix of the rows of v; dropout scales some of the weights and drops others."""
    value = ctx(node.args[2])
    p = float(node.arg(4, "dropout_p", 0.0) or 0.0)
    mixed = value.uniform((len(value.shape) - 2,))
    if p > 0:
        mixed = mixed.with_zero().scaled(1 / (1 - p) if p < 1 else 0.0)
    mask = node.arg(3, "attn_mask")
    if isinstance(mask, Ref) or node.arg(5, "is_causal", False):
        mixed = Interval(mixed.lo.clamp(max=0.0), mixed.hi.clamp(min=0.0), mixed.shape)  # a fully masked row is zero
    rows = value.shape[-2]
    grown = ctx.rounded(node, mixed.lo, mixed.hi, ulps=4 * rows + 64)
    lead = len(node.shape) - len(value.shape)
    lo, hi = (end.reshape((1,) * lead + tuple(end.shape)) for end in (grown.lo, grown.hi))
    if any(end.size(d) not in (1, node.shape[d]) for end in (lo, hi) for d in range(len(node.shape))):
        flat = Interval(lo, hi, node.shape).uniform(tuple(range(len(node.shape) - 1)))
        lo, hi = flat.lo, flat.hi
    return Interval(lo, hi, node.shape)


@rule("aten.where.self", "aten.where.ScalarSelf", "aten.where.ScalarOther", "aten.where.Scalar",
      "aten.masked_fill.Scalar", "aten.masked_fill.Tensor")
def _either(ctx: Context, node: Node) -> Result:
    """One value or the other, whatever the mask says."""
    first, second = ctx(node.args[1 if "where" in node.op else 0]), ctx(node.args[2])
    lo, hi = first.lo.minimum(second.lo), first.hi.maximum(second.hi)
    lead = (1,) * (len(node.shape) - lo.dim())
    return Interval(lo.reshape(lead + tuple(lo.shape)), hi.reshape(lead + tuple(hi.shape)), node.shape)


@rule("aten.triu.default", "aten.tril.default")
def _triangle(ctx: Context, node: Node) -> Result:
    return ctx(node.args[0]).with_zero()


@rule("aten.log_softmax.int", "aten._log_softmax.default")
def _log_softmax(ctx: Context, node: Node) -> Result:
    return between(-INF, 0.0, node.shape)


@rule("aten.softmax.int", "aten._softmax.default", "aten._safe_softmax.default")
def _softmax(ctx: Context, node: Node) -> Result:
    axis = int(node.args[1]) % len(node.shape)
    u = ctx.u(node)
    total = 1 + 8 * u * (node.shape[axis] + 8)
    mix = total if axis == len(node.shape) - 1 else None
    return replace(between(0.0, 1 + 16 * u, node.shape), mix=mix)
