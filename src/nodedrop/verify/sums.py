"""Operators that sum or pick along axes, on intervals: layers, norms, pools, attention."""

from __future__ import annotations

from dataclasses import replace
from math import prod, sqrt

import numpy as np

from .calls import Args, Call, axes_of, is_by_rows, is_padded, is_transposed, rule
from .interval import INF, Array, Ball, Value, between, gamma, times, unbounded

ROUNDINGS = 64  # of the mean of a row, which kernels add up in blocks
LEAST = 2.0**-100  # of what is added to a variance: beside less, squares that underflow would count


def rows_of(x: Value) -> tuple[int, ...]:
    """All axes of a value's ends but the last."""
    return np.broadcast_shapes(x.lo.shape, x.hi.shape)[:-1]


def _spread(call: Call, w: Value, x: Value, bias: Value | None, groups: int = 1) -> tuple[Array, Array]:
    """Ends per unit of a weighted sum of weights [units, inputs / groups, positions] over inputs [.., inputs].

    Adding 0 is exact, so the terms that are rounded are those with weights other than 0.
    """
    if w.rows is not None:
        few = Value(w.lo, w.lo, w.lo.shape)
        some = None if bias is None else bias.full(0).lo[w.rows]
        ends = _spread(call, few, x, None if some is None else Value(some, some, some.shape)) if len(w.lo) else ()
        wide = [np.full((*rows_of(x), w.shape[0]), sign * INF) for sign in (-1, 1)]
        for target, end in zip(wide, ends, strict=False):
            target[..., w.rows] = end
        return wide[0], wide[1]
    middle, radius = (
        part.reshape(groups, w.shape[0] // groups, w.shape[1], -1) for part in w.full(*range(len(w.shape))).centre
    )
    halves = (np.maximum(middle, 0), np.minimum(middle, 0), radius)
    up, down, away = (half.sum(-1).swapaxes(-1, -2) for half in halves)
    terms = int(np.count_nonzero((middle != 0) | (radius != 0), (-1, -2)).max(initial=0))
    offset = None if bias is None else bias.full(0).lo
    if groups == 1:
        lower, upper, size = call.arithmetic.weighted((up[0], down[0], away[0]), x, offset, terms, call.cast)
    else:
        rows = Value(x.lo.reshape(groups, 1, -1), x.hi.reshape(groups, 1, -1), ())
        offset = None if offset is None else offset.reshape(groups, 1, -1)
        found = call.arithmetic.weighted((up, down, away), rows, offset, terms, call.cast)
        lower, upper, size = (end.reshape(1, -1) for end in found)
    opened = call.arithmetic.open(lower, upper, lower.shape, size)
    return opened.lo, opened.hi


@rule("linear.default", "matmul.default", "mm.default", "bmm.default", "addmm.default")
def _linear(call: Call, a: Args) -> Value:
    if call.op == "linear.default":
        x, w, bias = a["input"], a["weight"], a["bias"]
    elif call.op == "addmm.default":
        x, w, bias = a["mat1"], a["mat2"], a["self"]
    else:
        x, w, bias = a["self"], a.get("other", a.get("mat2")), None
    if call.op != "linear.default" and w.exact and 2 <= len(w.shape) <= len(x.shape) and prod(w.shape[:-2]) == 1:
        turned = w.full(*range(len(w.shape))).lo.reshape(w.shape[-2:]).T
        w = Value(turned, turned, turned.shape)
    scaled = call.op == "addmm.default" and (a["alpha"] != 1 or a["beta"] != 1)
    vector = bias is None or (bias.exact and len(bias.shape) == 1)
    if len(x.shape) < 2 or len(w.shape) < 2 or scaled or not vector:
        return unbounded(call.shape)
    plain = call.op != "linear.default" and bias is None and len(x.shape) == 2
    if plain and x.exact and x.rows is None and not w.exact:  # weights on the left
        columns = _turned(w)
        lo, hi = _spread(call, x, columns.full(len(columns.shape) - 1), None)
        return Value(lo.swapaxes(-1, -2), hi.swapaxes(-1, -2), call.shape)
    rows = x.full(len(x.shape) - 1)
    layer = len(w.shape) == 2 and (w.exact or (call.op == "linear.default" and w.finite))
    if not layer or (bias is None and not w.exact and x.mix is not None):
        turned = _turned(w) if call.op == "linear.default" else w
        return _by_size(call, rows, turned, x.mix) if bias is None else unbounded(call.shape)
    lo, hi = _spread(call, w, rows, bias)
    if x.ball is not None:
        known, weights = (slice(None), w.full(0, 1).centre) if w.rows is None else (w.rows, w.centre)
        low, high = _in_ball(call, x.ball, weights, 0.0 if bias is None else bias.full(0).lo[known])
        lo[..., known], hi[..., known] = np.fmax(lo[..., known], low), np.fmin(hi[..., known], high)
    if bias is None and not w.exact:
        size = _by_size(call, rows, _turned(w), None)
        lo, hi = np.maximum(lo, size.lo), np.minimum(hi, size.hi)
    return Value(lo, hi, call.shape)


def _turned(w: Value) -> Value:
    lo = w.lo.swapaxes(-1, -2)
    return replace(w, lo=lo, hi=lo if w.exact else w.hi.swapaxes(-1, -2), shape=(*w.shape[:-2], *w.shape[:-3:-1]))


def _by_size(call: Call, x: Value, w: Value, mix: float | None) -> Value:
    """A product of two values: a mix of rows if one sums to 1, else |Σ xᵢwᵢ| ≤ Σ max|xᵢ|·max|wᵢ|."""
    columns = w.full(len(w.shape) - 2)
    if mix is not None:
        lo, hi = np.minimum(columns.lo.min(-2, keepdims=True), 0), np.maximum(columns.hi.max(-2, keepdims=True), 0)
        return call.ends(lo * mix, hi * mix, x.shape[-1] + 4)
    if not (np.isfinite(x.size).all() and np.isfinite(columns.size).all()):
        return unbounded(call.shape)
    size = x.size @ columns.size
    size = size + call.arithmetic.margin(size, x.shape[-1])
    low = np.zeros_like(size) if (x.lo >= 0).all() and (columns.lo >= 0).all() else -size
    return call.arithmetic.open(low, size, call.shape, size)


def _in_ball(call: Call, ball: Ball, weights: tuple[Array, Array], bias: Array | float) -> tuple[Array, Array]:
    """|w·(g∘x̂)| ≤ √d·‖P(w∘g)‖₂ for normalised rows, P removing the mean if they are centred; plus rounding, of the rows
    and of this sum. Weights within a radius of those given add its norm."""
    w, radius = weights
    inputs, scaled, most = w.shape[1], w * ball.scale, np.abs(w) + radius
    size = most @ np.abs(ball.scale)
    scaled = scaled - scaled.mean(1, keepdims=True) if ball.centred else scaled
    norm = np.sqrt(np.square(scaled).sum(1)) + np.sqrt(np.square(radius * ball.scale).sum(1))
    reach = np.sqrt(inputs * np.square(norm) + np.square(times(ball.slack, size))) + radius @ np.abs(ball.shift)
    middle = w @ ball.shift + bias
    total = most @ ball.size + np.abs(bias)
    margin = call.arithmetic.margin(total, inputs + 8) + most @ ball.error
    margin = np.maximum(margin, total * gamma(inputs + 2 * ROUNDINGS, call.arithmetic.u))  # what ledgers allow at least
    margin = np.where(total <= call.arithmetic.most, margin, INF)
    return middle - reach - margin, middle + reach + margin


@rule(*(f"conv{n}d.{form}" for n in (1, 2, 3) for form in ("default", "padding")), "convolution.default",
      "conv_transpose1d.default", "conv_transpose2d.input", "conv_transpose3d.input")  # fmt: skip
def _conv(call: Call, a: Args) -> Value:
    """Bounds per channel, the hull over all positions, with 0 where windows reach over the border."""
    x, w, bias, groups, rank = a["input"], a["weight"], a["bias"], int(a["groups"]), len(call.shape)
    if not (w.exact or w.finite) or len(w.shape) != rank or (bias is not None and not bias.exact):
        return unbounded(call.shape)
    flat = x.hull((0, *range(2, rank)), zero=is_padded(call, a)).full(1)
    rows = Value(flat.lo.reshape(1, -1), flat.hi.reshape(1, -1), ())
    if w.rows is not None and not is_by_rows(call, a, w.shape):
        return unbounded(call.shape)
    if w.rows is not None and groups > 1:  # the rows that are known, written out over the inputs of all groups
        wide = np.zeros((len(w.rows), groups, *w.shape[1:]))
        wide[np.arange(len(w.rows)), w.rows // (w.shape[0] // groups)] = w.lo
        wide = wide.reshape(len(w.rows), -1, *w.shape[2:])
        w, groups = replace(w, lo=wide, hi=wide, shape=(w.shape[0], *wide.shape[1:])), 1
    elif is_transposed(call, a):
        wide = w.full(*range(rank))
        low, high = (units_first(end, groups) for end in (wide.lo, wide.hi))
        w = Value(low, low if w.exact else high, low.shape)
    ends = _spread(call, w, rows, bias, groups)
    shape = (1, -1, *(1,) * (rank - 2))
    return Value(ends[0].reshape(shape), ends[1].reshape(shape), call.shape)


def units_first(kernel: Array, groups: int) -> Array:
    """The kernel of a transposed convolution as that of a plain one."""
    grouped = kernel.reshape(groups, kernel.shape[0] // groups, *kernel.shape[1:]).swapaxes(1, 2)
    found: Array = grouped.reshape(-1, *grouped.shape[2:])
    return found


def _underflow(call: Call, size: Array, w: Array, inverse: Array | float) -> Array:
    """What it can cost that w/σ, or a product with w or 1/σ, is rounded below the least normal number: w/σ meets
    values up to `size`, such a product 1/σ or w."""
    return 4 * call.arithmetic.tiny * ((1 + np.abs(w)) * (1 + inverse) + size)


def _affine(
    call: Call, half: Array | float, weight: Value | None, bias: Value | None, shape: tuple[int, ...],
    size: Array | None = None, epsilon: float = 0.0,
) -> Value:  # fmt: skip
    """Ends of w·x̂ + b for |x̂| ≤ half; a weight of 0 leaves the bias, unrounded. With the `size` of what was normalised
    where kernels form w/σ."""
    if any(v is not None and not v.exact for v in (weight, bias)):
        return unbounded(call.shape)
    w = np.ones(()) if weight is None else weight.full(*range(len(weight.shape))).lo.reshape(shape)
    b = np.zeros(()) if bias is None else bias.full(*range(len(bias.shape))).lo.reshape(shape)
    reach = times(np.abs(w), half)
    lost = 0.0 if size is None else _underflow(call, 2 * size, w, 1 / sqrt(epsilon) if epsilon >= LEAST else INF)
    margin = (reach + np.abs(b)) * gamma(8, call.arithmetic.u) + call.arithmetic.tiny + lost
    margin = np.where(reach == 0, 0.0, margin)
    lo, hi = b - reach - margin, b + reach + margin
    lead = (1,) * (len(call.shape) - lo.ndim)
    return Value(lo.reshape(lead + lo.shape), hi.reshape(lead + hi.shape), call.shape)


def _added_up(call: Call, count: float) -> float:
    """Relative error of a sum of so many values in single precision, or double."""
    return gamma(count + 8, min(call.arithmetic.u, 2.0**-24))


def _noise(
    call: Call, x: Value, epsilon: float, axes: tuple[int, ...] | None = None, count: float | None = None
) -> Array:
    """The largest error of one x̂ by rounding the mean, where the variance is least: δμ/√ε."""
    size = x.size.max() if axes is None else x.size.max(axes, keepdims=True)
    step = ROUNDINGS * call.arithmetic.u + (0.0 if count is None else _added_up(call, count))
    with np.errstate(invalid="ignore"):
        found = step * size / sqrt(epsilon) if epsilon >= LEAST else np.full_like(size, INF)
    return np.asarray(np.where(np.isnan(found), INF, found))


@rule("batch_norm.default", "_native_batch_norm_legit_functional.default", "_native_batch_norm_legit.default",
      "_native_batch_norm_legit_no_training.default", "instance_norm.default")  # fmt: skip
def _batch_norm(call: Call, a: Args) -> Value:
    """By running statistics an affine map. By those of m values, |x̂| ≤ √(m−1) (Samuelson) and ≤ (hi−lo)/√ε."""
    x, rank, epsilon = a["input"], len(call.shape), float(a["eps"])
    shape, growth = (1, -1, *(1,) * (rank - 2)), 1 + gamma(ROUNDINGS, call.arithmetic.u)
    if call.op == "instance_norm.default":
        count: float = prod(call.shape[2:])
        noise = _noise(call, x, epsilon, (0, *range(2, rank)), count)
        half = np.sqrt(max(count - 1, 0) + noise**2) * growth
        if not a["use_input_stats"]:
            return unbounded(call.shape)
        size = x.size.max((0, *range(2, rank)), keepdims=True)
        return _affine(call, half, a["weight"], a["bias"], shape, size, epsilon)
    if a.get("training", False):
        axes = (0, *range(2, rank))
        here = prod(call.shape) / call.shape[1]
        values = here * call.growth
        count = values if values < INF else max(here, 2.0**20)  # without a declared batch size
        flat, noise = x.hull(axes), _noise(call, x, epsilon, axes, count)
        growth += _added_up(call, count)
        with np.errstate(invalid="ignore"):
            reach = (flat.hi - flat.lo) / sqrt(epsilon) + noise if epsilon >= LEAST else np.full_like(noise, INF)
        half = np.minimum(reach, np.sqrt(noise**2 + max(values - 1, 0))) * growth
        return _affine(call, half, a["weight"], a["bias"], shape, flat.size, epsilon)
    given = [a[name] for name in ("weight", "bias", "running_mean", "running_var")]
    if any(v is not None and not v.exact for v in given) or (epsilon < LEAST and epsilon != 0):
        return unbounded(call.shape)
    parts = [np.full(1, d) if v is None else v.full(0).lo for v, d in zip(given, (1.0, 0.0, 0.0, 1.0), strict=True)]
    weight, bias, mean, variance = (part.reshape(shape) for part in parts)
    deviation = np.sqrt(variance + epsilon)
    factor = weight / deviation
    ends = times(factor, x.lo), times(factor, x.hi)
    size = np.maximum(np.abs(ends[0]), np.abs(ends[1])) + np.abs(bias) + np.abs(mean * factor)
    lost = _underflow(call, x.size + np.abs(mean), weight, 1 / deviation)
    margin = np.where(factor == 0, 0.0, size * gamma(12, call.arithmetic.u) + lost)
    shift = bias - mean * factor
    lo, hi = np.minimum(*ends) + shift - margin, np.maximum(*ends) + shift + margin
    return call.arithmetic.open(lo, hi, call.shape)


@rule("layer_norm.default", "native_layer_norm.default", "rms_norm.default", "_fused_rms_norm.default")
def _layer_norm(call: Call, a: Args) -> Value:
    x, rms, row = a["input"], "rms" in call.op, tuple(a["normalized_shape"])
    epsilon = call.epsilon if a["eps"] is None else float(a["eps"])
    slack = (0.0 if epsilon >= LEAST else INF) if rms else float(_noise(call, x, epsilon))
    half = np.sqrt(max(prod(row) - (not rms), 0) + np.square(slack)) * (1 + gamma(ROUNDINGS, call.arithmetic.u))
    weight, bias = a["weight"], a.get("bias")
    found = _affine(call, half, weight, bias, row)
    if len(row) > 1 or any(v is not None and not v.exact for v in (weight, bias)):
        return found
    scale = np.ones(row) if weight is None else weight.full(0).lo
    shift = np.zeros(row) if bias is None else bias.full(0).lo
    lost = 2 * call.arithmetic.tiny * np.abs(scale)  # by x̂, before it is scaled
    return replace(found, ball=call.rounded(Ball(scale, shift, not rms, slack, lost), ROUNDINGS))


@rule("group_norm.default", "native_group_norm.default")
def _group_norm(call: Call, a: Args) -> Value:
    x, epsilon = a["input"], float(a["eps"])
    count = prod(call.shape[1:]) // int(a["num_groups"] if "num_groups" in a else a["group"])
    half = np.sqrt(max(count - 1, 0) + _noise(call, x, epsilon, count=count) ** 2)
    half = half * (1 + gamma(ROUNDINGS, call.arithmetic.u))
    if call.last:  # E[x²] − μ² may cancel to 0
        gone = 4 * _added_up(call, count) * x.size.max() ** 2 / epsilon if epsilon >= LEAST else INF
        half = half * sqrt(max(gone, 1.0))
    shape = (1, -1, *(1,) * (len(call.shape) - 2))
    return _affine(call, half, a["weight"], a["bias"], shape, x.size.max(), epsilon)


def _windows(call: Call) -> tuple[int, ...]:
    count = next(int(c) for c in call.op if c.isdigit())
    return tuple(range(len(call.shape) - count, len(call.shape)))


@rule(*(f"{kind}_pool{n}d.default" for kind in ("max", "adaptive_max", "avg", "adaptive_avg") for n in (1, 2, 3)),
      "max_pool2d_with_indices.default", "_adaptive_avg_pool2d.default",
      *(f"upsample_{kind}d.{form}" for kind in ("nearest1", "nearest2", "nearest3", "bilinear2")
        for form in ("vec", "default")))  # fmt: skip
def _pool(call: Call, a: Args) -> Value:
    """The hull over positions; padding adds −∞ to a maximum (which a window may see alone) and 0 to an average."""
    x: Value = a["self"] if "self" in a else a["input"]
    padded, spread = any(np.atleast_1d(a.get("padding", 0))), any(np.atleast_1d(a.get("dilation", 1)) > 1)
    flat = x.hull(_windows(call), zero=padded and "avg" in call.op)
    if "avg" not in call.op and "bilinear" not in call.op:
        return Value(np.full_like(flat.lo, -INF) if padded and spread else flat.lo, flat.hi, call.shape)
    if a.get("divisor_override") is not None:
        return unbounded(call.shape)
    sizes = [x.shape[d] for d in _windows(call)]
    window = prod(np.broadcast_to(a["kernel_size"], len(sizes)).tolist()) if "kernel_size" in a else prod(sizes)
    return call.ends(flat.lo, flat.hi, 16 if "bilinear" in call.op else window + 4)


@rule("mean.dim", "mean.default", "sum.dim_IntList", "sum.default")
def _total(call: Call, a: Args) -> Value:
    x = a["self"]
    axes = axes_of(a, len(x.shape))
    count, wide = prod(x.shape[d] for d in axes), x.full(*axes)
    keep = bool(a.get("keepdim"))
    lo, hi, size = (end.sum(axes, keepdims=keep) for end in (wide.lo, wide.hi, wide.size))
    least, most = wide.lo.min(axes, keepdims=keep), wide.hi.max(axes, keepdims=keep)
    margin, divisor = call.arithmetic.margin(size, count + 2), count if "mean" in call.op else 1
    lo, hi = (lo - margin) / divisor, (hi + margin) / divisor
    lo, hi = np.where(least >= 0, np.maximum(lo, 0), lo), np.where(most <= 0, np.minimum(hi, 0), hi)
    return call.arithmetic.open(lo, hi, call.shape, size)


@rule("pad.default", "constant_pad_nd.default")
def _pad(call: Call, a: Args) -> Value:
    """What is there, and the constant; other ways of padding repeat what is there."""
    x: Value = a["self"]
    axes, fill = axes_of(a, len(call.shape)), call.value(a["value"] or 0.0)
    flat = x.hull(axes)
    if not axes or a.get("mode", "constant") != "constant":
        return replace(flat, shape=call.shape)
    return Value(np.minimum(flat.lo, fill.lo), np.maximum(flat.hi, fill.hi), call.shape)


@rule("amax.default", "amin.default")
def _extreme(call: Call, a: Args) -> Value:
    axes, keep = axes_of(a, len(a["self"].shape)), bool(a["keepdim"])
    if "max" in call.op:
        return Value(a["self"].lo.max(axes, keepdims=keep), a["self"].hi.max(axes, keepdims=keep), call.shape)
    return Value(a["self"].lo.min(axes, keepdims=keep), a["self"].hi.min(axes, keepdims=keep), call.shape)


@rule("softmax.int", "_softmax.default", "_safe_softmax.default")
def _softmax(call: Call, a: Args) -> Value:
    axis, u = int(a["dim"]) % len(call.shape), call.arithmetic.u
    mix = 1 + 8 * u * (call.shape[axis] + 8)
    return replace(between(0.0, 1 + 16 * u, call.shape), mix=mix if axis == len(call.shape) - 1 else None)


@rule("scaled_dot_product_attention.default")
def _attention(call: Call, a: Args) -> Value:
    """A mix of the rows of v, with 0 among them where rows may be masked or dropped."""
    v, p = a["value"], float(a["dropout_p"])
    loose = a["attn_mask"] is not None or a["is_causal"] or p > 0
    flat = v.hull((len(v.shape) - 2,), zero=loose)
    scale = 1.0 if p == 0 else (1 / (1 - p) if p < 1 else 0.0)
    if a["enable_gqa"] or len(v.shape) != len(call.shape):
        return unbounded(call.shape)
    return call.ends(times(flat.lo, scale), times(flat.hi, scale), 4 * v.shape[-2] + 64)


@rule("lstm.input", "gru.input", "rnn_tanh.input")
def _recurrent(call: Call, a: Args) -> Value:
    """o·tanh(c) lies in [−1, 1]; other states in the hull of that and the first one, up to some roundings each step."""
    count = (4 if a["has_biases"] else 2) * (2 if a["bidirectional"] else 1) * int(a["num_layers"])
    if len(a["params"]) != count:  # it is projected
        return unbounded(call.shape)
    if call.op == "lstm.input":
        limit = 1 + 8 * call.arithmetic.u
    else:
        limit = max(1.0, float(a["hx"].size.max())) * (1 + gamma(16 * max(call.shape[:-1]), call.arithmetic.u))
    return between(-limit, limit, call.shape)


@rule("embedding.default")
def _embedding(call: Call, a: Args) -> Value:
    """Some row of the table."""
    flat = a["weight"].full(1).hull((0,))
    lead = (1,) * (len(call.shape) - 1)
    return Value(flat.lo.reshape(*lead, -1), flat.hi.reshape(*lead, -1), call.shape)


@rule("index.Tensor", "index_select.default", "gather.default")
def _picked(call: Call, a: Args) -> Value:
    """Some elements of the first operand."""
    return between(float(a["self"].lo.min()), float(a["self"].hi.max()), call.shape)


@rule("where.self", "masked_fill.Scalar")
def _either(call: Call, a: Args) -> Value:
    x, y = a["self"], call.value(a.get("other", a.get("value")))
    lo, hi = np.minimum(x.lo, y.lo), np.maximum(x.hi, y.hi)
    lead = (1,) * (len(call.shape) - lo.ndim)
    return Value(lo.reshape(lead + lo.shape), hi.reshape(lead + hi.shape), call.shape)
