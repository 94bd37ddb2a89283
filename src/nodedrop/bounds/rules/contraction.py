"""Weighted sums: dense layers, convolutions, matrix products. The NodeDrop condition is the upper end found here."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from ...tracing.graph import BUFFER, PARAMETER, Node, Ref
from ..interval import INF, Ball, Interval, unbounded
from ..registry import Context, Result, rule
from ..rounding import DOUBLE, gamma, sum_margin

# How many roundings the mean of a row can suffer: kernels add in blocks, so this does not grow with the row.
MEAN_ROUNDINGS = 64

# Numbers of a kernel that are summed at a time: what is made of them stays in the cache of a core.
BLOCK = 2**17

Parts = tuple[Tensor, Tensor, Tensor | None]


def weighted_sum(
    ctx: Context, node: Node, weight: Parts, value: Interval, bias: Tensor | None, terms: int
) -> tuple[Tensor, Tensor]:
    """Ends of Σ wᵢxᵢ + b for x in a box (§2.1), rounding included.

    `weight` holds the positive and the negative parts, [units, inputs], and how far the weights may lie from them, if
    they are not known; `value` rows of inputs, [..., inputs].
    """
    positive, negative = (part.transpose(-1, -2) for part in weight[:2])
    radius = None if weight[2] is None else weight[2].transpose(-1, -2)
    lo, hi = value.lo, value.hi
    inf_hi, inf_lo = hi == INF, lo == -INF
    open_ends = bool(inf_hi.any()) or bool(inf_lo.any())
    if open_ends:
        lo, hi = lo.masked_fill(inf_lo, 0.0), hi.masked_fill(inf_hi, 0.0)
    offset = torch.zeros((), dtype=torch.float64) if bias is None else bias.double()
    size = torch.maximum(lo.abs(), hi.abs())
    ends = (lo, hi, size, lo.clamp(max=0), hi.clamp(min=0))
    lo_up, hi_up, size_up, least_up, most_up = _times(ends, positive)
    lo_down, hi_down, size_down, least_down, most_down = _times(ends, negative)
    reach = torch.zeros((), dtype=torch.float64) if radius is None else size @ radius
    upper, lower = hi_up + lo_down + offset, lo_up + hi_down + offset
    products = size_up - size_down + reach
    margin = sum_margin(products + offset.abs(), terms + (bias is not None), ctx.u(node), ctx.tiny(node))
    if ctx.dtype is None:
        margin = torch.where(products == 0, 0.0, margin)  # the bias alone is not rounded
    ctx.margins[node.name] = margin
    # a sum of terms that are all ≤ 0 is ≤ 0 however it is rounded
    above = most_up + least_down + offset.clamp(min=0) + reach
    below = least_up + most_down + offset.clamp(max=0) - reach
    upper, lower = upper + reach + margin, lower - reach - margin
    upper = torch.where(above == 0, upper.clamp(max=0), upper)
    lower = torch.where(below == 0, lower.clamp(min=0), lower)
    if open_ends:
        loose = torch.zeros((), dtype=torch.bool) if radius is None else radius > 0
        rises, falls = ((positive > 0) | loose).double(), ((negative < 0) | loose).double()
        top, bottom = inf_hi.double(), inf_lo.double()
        upper = upper.masked_fill(top @ rises + bottom @ falls > 0, INF)
        lower = lower.masked_fill(bottom @ rises + top @ falls > 0, -INF)
    risky = ~(products + offset.abs() <= ctx.largest(node))
    return lower.masked_fill(risky, -INF), upper.masked_fill(risky, INF)


def _times(rows: Sequence[Tensor], weight: Tensor) -> tuple[Tensor, ...]:
    """Products with each of these in one pass over the weights, whose reading takes the time."""
    same = torch.broadcast_tensors(*rows)
    if same[0].dim() == 1:
        return (torch.stack(same) @ weight).unbind()
    return (torch.cat(same, -2) @ weight).chunk(len(same), -2)


def parts(weight: Tensor, radius: Tensor | None = None) -> Parts:
    """Positive and negative parts in double."""
    exact = weight.double()
    positive = exact.clamp(min=0)
    return positive, exact - positive, radius


def centred(weight: Interval) -> tuple[Tensor, Tensor | None] | None:
    """Known weights, or the middle of those of which only intervals are known, and how far they may lie from it; None
    if some have no bound."""
    if weight.exact:
        return weight.lo, None
    lo, hi = weight.lo.double(), weight.hi.double()
    radius = (hi - lo) / 2 + 4 * DOUBLE * (lo.abs() + hi.abs())
    if not bool(radius.isfinite().all()):
        return None
    return (lo + hi) / 2, radius.masked_fill_(lo == hi, 0.0)


def kernel_parts(ctx: Context, weight: Ref, groups: int = 1, *, transposed: bool = False) -> Parts | None:
    """Positive and negative parts of a kernel as [groups, units, inputs], summed over its positions; None if it has no
    bounds.

    Summed in the weight's own precision (at least single), which `weighted_sum` allows for. Graphs share the result.
    """
    node = ctx.graph.by_name[weight.name]
    shared = node.op in (PARAMETER, BUFFER) and node.name not in ctx.rewritten  # others may differ from graph to graph
    key = (node.target if shared else (id(ctx.graph), node.name), groups, transposed)
    if key not in ctx.memo:
        kernel = ctx.written(weight)
        summed = _over_positions(kernel)
        if summed is None:
            return None
        shape = (groups, kernel.lo.shape[0] // groups, kernel.lo.shape[1])
        summed = [part.double().cpu().reshape(shape) for part in summed]
        summed = [part.transpose(1, 2) if transposed else part for part in summed]
        ctx.memo[key] = (summed[0], summed[1], None if kernel.exact else summed[2])
    memorised: Parts = ctx.memo[key]
    return memorised


def _over_positions(kernel: Interval) -> list[Tensor] | None:
    """Sums of the parts of a kernel over its positions, and of how far it may lie from them, block by block, so that
    all that is made of a block stays in the cache; None if it has no bounds. Channels may lie last in memory."""
    lo, hi = kernel.lo.flatten(2), kernel.lo.flatten(2) if kernel.exact else kernel.hi.flatten(2)
    rows = max(BLOCK // max(lo.shape[1] * lo.shape[2], 1), 1)
    blocks: list[tuple[Tensor, ...]] = []
    for low, high in zip(lo.split(rows), hi.split(rows), strict=True):
        found = centred(Interval(low, low if kernel.exact else high, tuple(low.shape)))
        if found is None:
            return None
        block, radius = found
        if block.dtype not in (torch.float32, torch.float64):
            block = block.float() if block.dtype.is_floating_point else block.double()
        made = (block.clamp(min=0), block.clamp(max=0), *(() if radius is None else (radius,)))
        ones = torch.ones(block.shape[2], dtype=block.dtype, device=block.device)
        blocks.append(tuple(part @ ones if part.is_contiguous() else part.sum(2) for part in made))
    return [torch.cat(parts) for parts in zip(*blocks, strict=True)]


@rule("aten.linear.default")
def _linear(ctx: Context, node: Node) -> Result:
    value, weight = ctx(node.args[0]), ctx.written(node.args[1])
    bias = node.arg(2, "bias")
    offset = ctx.written(bias).double() if isinstance(bias, Ref) else None
    mixed = value.mix is not None and bias is None and not weight.exact  # of which `_product` knows more
    found = None if mixed else centred(weight)
    if found is None or (offset is not None and not offset.exact):
        return _product(ctx, node, value, _turned(weight.double()), offset)
    rows = value.written_out((len(value.shape) - 1,))
    lo, hi = weighted_sum(ctx, node, parts(*found), rows, None if offset is None else offset.lo, value.shape[-1])
    if value.ball is not None:
        low, high = _in_ball(ctx, node, value.ball, found, None if offset is None else offset.lo)
        lo, hi = torch.maximum(lo, low), torch.minimum(hi, high)
    return Interval(lo, hi, node.shape)


def _in_ball(
    ctx: Context, node: Node, ball: Ball, found: tuple[Tensor, Tensor | None], bias: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Layer norm's own bound (§2.5): |w·(g∘x̂)| ≤ √d·‖P(w∘g)‖₂, plus what rounding can add, before this sum and in it;
    weights that lie within a radius of those given add at most its norm."""
    weight, radius = found[0].double(), found[1]
    inputs, u = weight.shape[1], ctx.u(node)
    away = torch.zeros_like(weight) if radius is None else radius
    scaled, most = weight * ball.scale, weight.abs() + away
    size = (most * ball.scale).abs().sum(1)
    if ball.centred:
        scaled = scaled - scaled.mean(1, keepdim=True)
    slack = (ball.slack * size).nan_to_num(nan=0.0, posinf=INF)
    norm = scaled.square().sum(1).sqrt() + (away * ball.scale).square().sum(1).sqrt()
    shifted = away @ ball.shift.abs()
    reach = (inputs * norm.square() + slack.square()).sqrt() + shifted
    middle = weight @ ball.shift + (0 if bias is None else bias)
    magnitude = most @ ball.magnitude + (0 if bias is None else bias.abs())
    margin = most @ ball.error + sum_margin(magnitude, inputs + 8, u, ctx.tiny(node))
    margin = margin.maximum(magnitude * gamma(inputs + 2 * MEAN_ROUNDINGS, u))  # which the checker allows for
    margin = margin.masked_fill(~(magnitude <= ctx.largest(node)), INF)
    return middle - reach - margin, middle + reach + margin


def _turned(value: Interval) -> Interval:
    lo = value.lo.transpose(-1, -2)
    shape = (*value.shape[:-2], value.shape[-1], value.shape[-2])
    return Interval(lo, lo if value.exact else value.hi.transpose(-1, -2), shape)


@rule("aten.matmul.default", "aten.mm.default", "aten.bmm.default")
def _matmul(ctx: Context, node: Node) -> Result:
    return _product(ctx, node, ctx(node.args[0]), ctx(node.args[1]), None)


@rule("aten.addmm.default", "aten.baddbmm.default")
def _addmm(ctx: Context, node: Node) -> Result:
    if node.kwargs.get("alpha", 1) != 1 or node.kwargs.get("beta", 1) != 1:
        return unbounded(node.shape)
    return _product(ctx, node, ctx(node.args[1]), ctx(node.args[2]), ctx(node.args[0]))


def _product(ctx: Context, node: Node, first: Interval, second: Interval, offset: Interval | None) -> Interval:
    """Interval matrix product: exact where one side is known, a convex mix of rows after a softmax, else by size."""
    if len(first.shape) < 2 or len(second.shape) < 2:
        return unbounded(node.shape)
    inner = first.shape[-1]
    rows = first.written_out((len(first.shape) - 1,))
    columns = second.written_out((len(second.shape) - 2,))
    if first.mix is not None and not second.exact:
        lo = columns.lo.amin(-2, keepdim=True).clamp(max=0) * first.mix
        hi = columns.hi.amax(-2, keepdim=True).clamp(min=0) * first.mix
        result = ctx.rounded(node, lo, hi, ulps=inner + 4)
    elif second.exact:
        lo, hi = weighted_sum(ctx, node, parts(columns.lo.transpose(-1, -2)), rows, None, inner)
        if first.ball is not None and len(second.shape) == 2:
            low, high = _in_ball(ctx, node, first.ball, (columns.lo.T, None), None)
            lo, hi = torch.maximum(lo, low), torch.minimum(hi, high)
        result = Interval(lo, hi, node.shape)
    elif first.exact:
        flipped = Interval(columns.lo.transpose(-1, -2), columns.hi.transpose(-1, -2), ())
        lo, hi = weighted_sum(ctx, node, parts(rows.lo), flipped, None, inner)
        ctx.margins[node.name] = ctx.margins[node.name].transpose(-1, -2)
        result = Interval(lo.transpose(-1, -2), hi.transpose(-1, -2), node.shape)
    else:
        size = (rows.magnitude @ columns.magnitude).nan_to_num(nan=INF)
        size = size + sum_margin(size, inner, ctx.u(node), ctx.tiny(node))
        low = torch.zeros_like(size) if bool((rows.lo >= 0).all() and (columns.lo >= 0).all()) else -size
        result = Interval(low, size, node.shape)
    lo, hi = result.lo, result.hi
    if offset is not None:
        margin = sum_margin(result.magnitude + offset.magnitude, 4, ctx.u(node), ctx.tiny(node))
        lo, hi = lo + offset.lo - margin, hi + offset.hi + margin
        lo = torch.where((result.lo >= 0) & (offset.lo >= 0), lo.clamp(min=0), lo)
        hi = torch.where((result.hi <= 0) & (offset.hi <= 0), hi.clamp(max=0), hi)
    return ctx.limited(node, lo.nan_to_num(nan=-INF, neginf=-INF), hi.nan_to_num(nan=INF, posinf=INF))


@rule("aten.conv1d.default", "aten.conv2d.default", "aten.conv3d.default", "aten.convolution.default",
      "aten.conv1d.padding", "aten.conv2d.padding", "aten.conv3d.padding")
def _conv(ctx: Context, node: Node) -> Result:
    padding = node.arg(4, "padding", 0)
    if node.op == "aten.convolution.default" and node.arg(6, "transposed", False):
        return _transposed(ctx, node, groups=int(node.args[8]))
    groups = int(node.arg(8 if node.op == "aten.convolution.default" else 6, "groups", 1))
    padded = padding == "same" or (not isinstance(padding, str) and any(_listed(padding)))
    weight = ctx.raw(node.args[1])
    split = kernel_parts(ctx, node.args[1], groups)
    return _convolved(ctx, node, split, padded=padded, terms=prod(weight.shape[1:]) + prod(weight.shape[2:]))


@rule("aten.conv_transpose1d.default", "aten.conv_transpose2d.input", "aten.conv_transpose3d.input")
def _conv_transpose(ctx: Context, node: Node) -> Result:
    return _transposed(ctx, node, groups=int(node.arg(6, "groups", 1)))


def _transposed(ctx: Context, node: Node, *, groups: int) -> Result:
    """Every output sums some kernel positions, others are missing: as if padded with zeros."""
    weight = ctx.raw(node.args[1])
    split = kernel_parts(ctx, node.args[1], groups, transposed=True)
    terms = (weight.shape[0] // groups + 1) * prod(weight.shape[2:])
    return _convolved(ctx, node, split, padded=True, terms=terms)


def _convolved(ctx: Context, node: Node, split: Parts | None, *, padded: bool, terms: int) -> Result:
    """A convolution sums over inputs and kernel positions; bounds are per channel, the hull over positions."""
    if split is None or len(ctx.raw(node.args[1]).shape) != len(node.shape):
        return unbounded(node.shape)
    value, rank, groups = ctx(node.args[0]), len(node.shape), len(split[0])
    if padded:
        value = value.with_zero()
    flat = value.uniform((0, *range(2, rank))).written_out((1,))
    rows = Interval(flat.lo.reshape(groups, 1, -1), flat.hi.reshape(groups, 1, -1), ())
    bias = node.arg(2, "bias")
    known = ctx.known(bias)
    if isinstance(bias, Ref) and known is None:
        return unbounded(node.shape)
    offset = None if known is None else known.reshape(groups, 1, -1)
    lo, hi = weighted_sum(ctx, node, split, rows, offset, terms)
    shape = (1, -1, *(1,) * (rank - 2))
    ctx.margins[node.name] = ctx.margins[node.name].reshape(shape)
    return Interval(lo.reshape(shape), hi.reshape(shape), node.shape)


def _listed(value: object) -> tuple[int, ...]:
    return tuple(value) if isinstance(value, list | tuple) else (int(value),)  # type: ignore[call-overload]


@rule("aten.einsum.default")
def _einsum(ctx: Context, node: Node) -> Result:
    """By size: |Σ ∏ xᵢ| ≤ Σ ∏ max|xᵢ|; zero where every product has a zero factor. Of two operands, one of them known,
    as a weighted sum."""
    equation, operands = node.args[0], [ctx(ref) for ref in node.args[1]]
    full = [op.magnitude.expand(op.shape) for op in operands]
    size = torch.einsum(equation, full).nan_to_num(nan=INF)
    terms = prod(prod(op.shape) for op in operands) // max(prod(node.shape), 1)
    margin = sum_margin(size, terms + len(operands), ctx.u(node), ctx.tiny(node))
    if len(operands) > 2:  # what underflows on the way meets the other operands
        reach = prod(max(1.0, float(part.max())) if part.numel() else 1.0 for part in full)
        margin = torch.where(size == 0, 0.0, margin + 2 * terms * ctx.tiny(node) * reach)
    low = torch.zeros_like(size) if all(bool((op.lo >= 0).all()) for op in operands) else -size - margin
    high = size + margin
    if len(operands) == 2 and any(op.exact for op in operands) and bool(size.isfinite().all()):
        lower, upper = _weighted(equation, operands)
        low, high = torch.maximum(low, lower - margin), torch.minimum(high, upper + margin)
    return ctx.limited(node, low, high, size)


def _weighted(equation: str, operands: list[Interval]) -> tuple[Tensor, Tensor]:
    """Ends of a sum of products with known numbers, without rounding."""
    place = next(k for k, op in enumerate(operands) if op.exact)
    numbers, x = operands[place].lo.expand(operands[place].shape), operands[1 - place]

    def total(up: Tensor, down: Tensor) -> Tensor:
        pairs = ((numbers.clamp(min=0), up.expand(x.shape)), (numbers.clamp(max=0), down.expand(x.shape)))
        one, two = (torch.einsum(equation, pair if place == 0 else pair[::-1]) for pair in pairs)
        return one + two

    return total(x.lo, x.hi), total(x.hi, x.lo)
