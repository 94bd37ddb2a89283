"""Intervals in double precision, every end moved outward by the most that rounding can have cost."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
from math import hypot, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
INF = float("inf")
DOUBLE = 2.0**-53


@dataclass(frozen=True)
class Ball:
    """Rows `scale ∘ x̂ + shift` with ‖x̂‖₂ ≤ √d, Σx̂ = 0 if centred; `slack` is the error of one x̂ᵢ by rounding the mean.

    Each element may lie off that by `error`, which all other roundings so far add up to.
    """

    scale: Array
    shift: Array
    centred: bool
    slack: float
    error: Array

    @property
    def size(self) -> Array:
        """max |x| per element."""
        found: Array = np.abs(self.scale) * hypot(sqrt(len(self.scale)), self.slack) + np.abs(self.shift) + self.error
        return found


@dataclass(frozen=True)
class Value:
    """lo ≤ x ≤ hi for all elements of a tensor. The arrays have size 1 along an axis where all positions agree.

    `mix` bounds the sum along the last axis of a value that is nowhere negative. `tags` are arrays that tell which
    unit an element belongs to, by (tensor, axis, whether no activation has been met yet). Of a tensor of which only
    some `rows` are known, the arrays hold just these; of one with a single axis, NaN stands for what is not known.
    Only layers can read such a tensor; for all others there is `sure`.
    """

    lo: Array
    hi: Array
    shape: tuple[int, ...]
    ball: Ball | None = None
    mix: float | None = None
    tags: tuple[tuple[tuple[str, int, bool], Array], ...] = ()
    rows: Array | None = None

    @property
    def exact(self) -> bool:
        """Whether the numbers are known."""
        return self.lo is self.hi

    @property
    def sure(self) -> Value:
        """The same, with no bounds for what is not known."""
        if self.rows is not None:
            return replace(unbounded(self.shape), tags=self.tags)
        if self.exact and np.isnan(self.lo).any():
            ends = (np.where(np.isnan(self.lo), end, self.lo) for end in (-INF, INF))
            return replace(self, lo=next(ends), hi=next(ends))
        return self

    @property
    def size(self) -> Array:
        """max |x|."""
        self._require_all()
        return np.maximum(np.abs(self.lo), np.abs(self.hi))

    def full(self, *axes: int) -> Value:
        """Written out along some axes."""
        self._require_all()
        sizes = [n if d in axes else self.lo.shape[d] for d, n in enumerate(self.shape)]
        lo = np.broadcast_to(self.lo, sizes)
        return replace(self, lo=lo, hi=lo if self.exact else np.broadcast_to(self.hi, sizes))

    def hull(self, axes: tuple[int, ...], zero: bool = False) -> Value:
        """One interval for all positions along some axes, with 0 in it if asked for."""
        self._require_all()
        lo, hi = self.lo.min(axes, keepdims=True), self.hi.max(axes, keepdims=True)
        return Value(np.minimum(lo, 0), np.maximum(hi, 0), self.shape) if zero else Value(lo, hi, self.shape)

    @property
    def zero(self) -> Array:
        """Where the value is 0."""
        self._require_all()
        found: Array = (self.lo == 0) & (self.hi == 0)
        return found

    @property
    def finite(self) -> bool:
        """Whether every element has two ends."""
        return self.rows is None and bool(np.isfinite(self.lo).all() and np.isfinite(self.hi).all())

    @property
    def centre(self) -> tuple[Array, Array]:
        """Numbers, and how far the elements may lie from them."""
        if self.exact:
            return self.lo, np.zeros_like(self.lo)
        radius = (self.hi - self.lo) / 2 + 4 * DOUBLE * (np.abs(self.lo) + np.abs(self.hi))
        return (self.lo + self.hi) / 2, np.where(self.lo == self.hi, 0.0, radius)

    def _require_all(self) -> None:
        if self.rows is not None:
            raise ValueError("of a tensor, only some rows are known")


def known(array: Array, tags: Any = ()) -> Value:
    """Numbers that are known."""
    return Value(array, array, array.shape, tags=tags)


def between(lo: float, hi: float, shape: tuple[int, ...]) -> Value:
    """One interval for all elements."""
    return Value(np.full((1,) * len(shape), lo), np.full((1,) * len(shape), hi), tuple(shape))


def unbounded(shape: tuple[int, ...]) -> Value:
    """Nothing is known."""
    return between(-INF, INF, shape)


def gamma(terms: float, u: float) -> float:
    """γ_k = k·u/(1 − k·u), the relative error of k roundings in any order (Higham, lemma 3.1)."""
    return terms * u / (1 - terms * u) if terms * u < 1 else INF


def times(x: Array | float, y: Array | float) -> Array:
    """The product, with 0·∞ = 0, since every value is finite; NaN, a number that nobody knows, stays NaN."""
    with np.errstate(invalid="ignore", over="ignore"):
        product = np.asarray(np.multiply(x, y))
    return np.where(np.isnan(product) & ~np.isnan(x) & ~np.isnan(y), 0.0, product)


def product(x: Value, y: Value) -> tuple[Array, Array]:
    """Ends of x·y."""
    corners = [times(a, b) for a in (x.lo, x.hi) for b in (y.lo, y.hi)]
    return reduce(np.minimum, corners), reduce(np.maximum, corners)


@dataclass(frozen=True)
class Arithmetic:
    """What computes a value: unit round-off, least normal and largest number of its type."""

    u: float
    tiny: float
    most: float

    def widened(self, lo: Array, hi: Array, shape: tuple[int, ...], ulps: float = 1.0) -> Value:
        """Ends of a real result, moved out by some roundings, which never cross 0; open where it may overflow."""
        step = 2 * ulps * self.u + 4 * DOUBLE
        with np.errstate(invalid="ignore", over="ignore"):
            low = np.where(np.isinf(lo), lo, lo - np.abs(lo) * step - self.tiny)
            high = np.where(np.isinf(hi), hi, hi + np.abs(hi) * step + self.tiny)
        low, high = np.where(lo >= 0, np.maximum(low, 0), low), np.where(hi <= 0, np.minimum(high, 0), high)
        return self.open(low, high, shape)

    def open(self, lo: Array, hi: Array, shape: tuple[int, ...], size: Array | None = None) -> Value:
        """Ends, infinite where a result, or a partial sum up to `size`, may overflow or is no number."""
        risky = np.isnan(lo) | np.isnan(hi) | (False if size is None else ~(size <= self.most))
        lo, hi = np.where(risky | (lo < -self.most), -INF, lo), np.where(risky | (hi > self.most), INF, hi)
        lead = (1,) * (len(shape) - lo.ndim)
        return Value(lo.reshape(lead + lo.shape), hi.reshape(lead + hi.shape), shape)

    def margin(self, size: Array, terms: int) -> Array:
        """How far a rounded sum of `terms` terms with Σ|terms| = size lies from the real one, and ours from both."""
        factor = gamma(terms + 2, self.u) + gamma(terms + 8, DOUBLE)
        return np.where(size == 0, 0.0, times(size, factor) + terms * self.tiny)

    def weighted(
        self, parts: tuple[Array, Array, Array], x: Value, bias: Array | None, terms: int, cast: bool = False
    ) -> tuple[Array, Array, Array]:
        """Ends of Σ wᵢxᵢ + b and Σ|wᵢ|max|xᵢ| + |b|, for positive and negative parts of w [.., inputs, units], how far
        w may lie from them, and x [.., inputs].

        The upper end is Σ max(wᵢ·loᵢ, wᵢ·hiᵢ) + b and the margin. A sum of which no term can be positive is not
        positive, however it is rounded; a bias to which only zeros are added is not rounded at all.
        """
        up, down, radius = parts
        b = np.zeros(up.shape[-1]) if bias is None else bias
        top, bottom = x.hi == INF, x.lo == -INF
        lo, hi = np.where(bottom, 0.0, x.lo), np.where(top, 0.0, x.hi)
        size = np.maximum(np.abs(lo), np.abs(hi))
        away = size @ radius
        products = size @ (up - down) + away
        margin = self.margin(products + np.abs(b), terms + (bias is not None))
        margin = margin if cast else np.where(products == 0, 0.0, margin)
        upper, lower = hi @ up + lo @ down + b + away + margin, lo @ up + hi @ down + b - away - margin
        above = np.maximum(hi, 0) @ up + np.minimum(lo, 0) @ down + np.maximum(b, 0) + away
        below = np.minimum(lo, 0) @ up + np.maximum(hi, 0) @ down + np.minimum(b, 0) - away
        upper = np.where(above == 0, np.minimum(upper, 0), upper)
        lower = np.where(below == 0, np.maximum(lower, 0), lower)
        if top.any() or bottom.any():
            rises, falls = ((half | (radius > 0)).astype(float) for half in (up > 0, down < 0))
            upper = np.where(top.astype(float) @ rises + bottom.astype(float) @ falls > 0, INF, upper)
            lower = np.where(bottom.astype(float) @ rises + top.astype(float) @ falls > 0, -INF, lower)
        return lower, upper, products + np.abs(b)
