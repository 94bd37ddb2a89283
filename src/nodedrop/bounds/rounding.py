"""Floating-point error terms, so that a bound holds for the program that runs, not only for real numbers."""

from __future__ import annotations

import torch
from torch import Tensor

DOUBLE = 2.0**-53
EXACT = 2.0**50  # sums and products of whole numbers up to here are exact in double

_ROUNDOFF = {
    torch.float64: 2.0**-53,
    torch.float32: 2.0**-24,
    torch.float16: 2.0**-11,
    torch.bfloat16: 2.0**-8,
    torch.float8_e4m3fn: 2.0**-4,
    torch.float8_e4m3fnuz: 2.0**-4,
    torch.float8_e5m2: 2.0**-3,
    torch.float8_e5m2fnuz: 2.0**-3,
}


def unit_roundoff(dtype: torch.dtype | None) -> float:
    """Half the spacing of floats at 1 in round-to-nearest; 0 for integers, which do not round.

    >>> unit_roundoff(torch.float32) == 2.0**-24
    True
    """
    if dtype is None or not dtype.is_floating_point:
        return 0.0
    return _ROUNDOFF.get(dtype, 1.0)


def rounds_as_known(dtype: torch.dtype) -> bool:
    """Whether a type of floats is one of those whose rounding is counted; there are others, of powers of 2 alone.

    >>> rounds_as_known(torch.float16), rounds_as_known(torch.float8_e8m0fnu)
    (True, False)
    """
    return dtype in _ROUNDOFF


def gamma(terms: int, u: float) -> float:
    """γ_k = k·u / (1 − k·u): relative error of a sum of k rounded terms in any order (Higham, lemma 3.1).

    >>> gamma(10**9, 2.0**-8)
    inf
    """
    return terms * u / (1 - terms * u) if terms * u < 1 else float("inf")


def sum_margin(magnitude: Tensor, terms: int, u: float, tiny: float) -> Tensor:
    """How far a rounded sum can lie from the real one: Σ|terms| = `magnitude`.

    Covers the model's own arithmetic (u), this analysis' arithmetic in double, and underflow. Where every term is
    zero the sum is exact, and so is one of whole numbers, for which u is 0.
    """
    factor = gamma(terms + 2, u) + gamma(terms + 8, DOUBLE)
    margin = magnitude * factor + terms * tiny
    exact = magnitude <= (EXACT if u == 0 else 0)
    return torch.where(exact, torch.zeros_like(magnitude), margin.nan_to_num(nan=float("inf")))


def widen(lo: Tensor, hi: Tensor, u: float, tiny: float, ulps: float = 1.0) -> tuple[Tensor, Tensor]:
    """Move the ends outward by `ulps` roundings; a rounded result never crosses zero, so neither do the ends.

    Whole numbers, for which u is 0, stay.
    """
    step = 2 * ulps * u + 4 * DOUBLE
    low = torch.where(_stays(lo, u), lo, lo - lo.abs() * step - tiny)
    high = torch.where(_stays(hi, u), hi, hi + hi.abs() * step + tiny)
    zero = torch.zeros_like(lo)
    return torch.where(lo >= 0, torch.maximum(low, zero), low), torch.where(hi <= 0, torch.minimum(high, zero), high)


def _stays(end: Tensor, u: float) -> Tensor:
    return end.isinf() | (end == end.round()) & (end.abs() <= EXACT) if u == 0 else end.isinf()
