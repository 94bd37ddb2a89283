"""σ and its slope for GPUs: the arithmetic of soft_clamped_relu.c, operation by operation, one pass over memory each.

What the constants are and why the polynomials are accurate enough stands there. Operations are rounded as IEEE 754
says and fused where `tl.fma` asks for it; launch with enable_fp_fusion=False. Half precision is widened on the way in
and rounded once on the way out. Importing this file imports Triton, so `gpu` does it when it is needed.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _at_most(limit: tl.tensor, x: tl.tensor) -> tl.tensor:
    return tl.minimum(limit, x, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _at_least(limit: tl.tensor, x: tl.tensor) -> tl.tensor:
    return tl.maximum(limit, x, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _places(count: tl.tensor, BLOCK: tl.constexpr) -> tuple[tl.tensor, tl.tensor]:
    """Where the values of this block stand, beyond 2³¹ as well, and which of these places there are."""
    places = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    return places, places < count


@triton.jit
def _power(x: tl.tensor, scale: tl.tensor, base: tl.tensor) -> tl.tensor:
    """scale·2^x − base."""
    shifter = 12582912.0
    shifted = x + shifter
    f = x - (shifted - shifter)
    f2 = f * f
    bits = (shifted.to(tl.uint32, bitcast=True) << 23) + scale.to(tl.uint32, bitcast=True)
    whole = bits.to(tl.float32, bitcast=True)
    high = tl.fma(f2, tl.fma(f, 1.5398399e-4, 1.3387768e-3), tl.fma(f, 9.618248e-3, 5.5503666e-2))
    quotient = tl.fma(f2, high, tl.fma(f, 0.24022649, 0.6931472))
    return tl.fma(whole * f, quotient, whole - base)


@triton.jit
def forward(
    v: tl.tensor,
    y: tl.tensor,
    count: tl.tensor,
    zero: tl.tensor,
    rest: tl.tensor,
    cap: tl.tensor,
    mirror: tl.tensor,
    steep: tl.tensor,
    offset: tl.tensor,
    low: tl.tensor,
    scale: tl.tensor,
    base: tl.tensor,
    factor: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """σ(v)."""
    places, inside = _places(count, BLOCK)
    u = (tl.load(v + places, mask=inside).to(tl.float32) - zero) - rest
    w = _power(_at_least(low, tl.fma(_at_most(u, mirror - u), steep, offset)), scale, base)
    s = tl.div_rn(w, 2.0 + w)
    z = s * s
    quotient = tl.fma(z, tl.fma(z, tl.fma(z, 0.16991782, 0.19817984), 0.3333674), 1.0)
    value = tl.fma(s * factor, quotient, _at_most(cap, u))
    tl.store(y + places, _at_most(1.0, _at_least(0.0, value)).to(y.dtype.element_ty), mask=inside)


@triton.jit
def backward(
    grad: tl.tensor, y: tl.tensor, out: tl.tensor, count: tl.tensor, steep: tl.tensor, BLOCK: tl.constexpr
) -> None:
    """grad·(1 − e^{−β(1−y)}), 0 where y is."""
    places, inside = _places(count, BLOCK)
    value = tl.load(y + places, mask=inside).to(tl.float32)
    one = tl.full((), 1.0, tl.float32)
    slope = -_power(_at_least(-30.0, steep * (value - 1.0)), one, one)
    product = tl.load(grad + places, mask=inside).to(tl.float32) * slope
    tl.store(out + places, tl.where(value <= 0, 0.0, product).to(out.dtype.element_ty), mask=inside)
