"""The abstract value: an interval for every element, held compactly, and what is known beyond it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..tracing.compact import expand_axes
from ..tracing.graph import Shape

INF = float("inf")


@dataclass(frozen=True)
class Ball:
    """Rows of a normalised value: `x = scale ∘ x̂ + shift` with ‖x̂‖₂ ≤ √d, and Σx̂ = 0 up to rounding if centred.

    `slack` bounds the error of one x̂ᵢ that rounding the mean can cause, for rows with the least variance; it enters
    the bound in quadrature, and is infinite where the input is unbounded. `error` bounds what all other rounding up to
    here has added to each element.
    """

    scale: Tensor
    shift: Tensor
    centred: bool
    slack: float
    error: Tensor

    @property
    def magnitude(self) -> Tensor:
        """max |x| per element."""
        largest = math.hypot(math.sqrt(len(self.scale)), self.slack)
        return (self.scale.abs() * largest).nan_to_num(nan=0.0, posinf=INF) + self.shift.abs() + self.error


@dataclass(frozen=True)
class Interval:
    """lo ≤ x ≤ hi for every element of a value, both compact tensors in double precision.

    `mix` says that the elements along the last axis are non-negative and sum to at most this number (softmax).
    """

    lo: Tensor
    hi: Tensor
    shape: Shape
    ball: Ball | None = None
    mix: float | None = None

    @property
    def exact(self) -> bool:
        """Whether every element is known: lo and hi are one tensor."""
        return self.lo is self.hi

    @property
    def magnitude(self) -> Tensor:
        """max |x| per element."""
        return self.lo.abs() if self.exact else torch.maximum(self.lo.abs(), self.hi.abs())

    def double(self) -> Interval:
        """The same interval in the precision that rules compute in."""
        if self.lo.dtype == torch.float64:
            return self
        lo = self.lo.double()
        hi = lo if self.exact else self.hi.double()
        if not self.lo.dtype.is_floating_point and bool((lo.abs().maximum(hi.abs()) >= 2.0**53).any()):
            return Interval(_next(lo, -INF), _next(hi, INF), self.shape)  # not every whole number is a double there
        return replace(self, lo=lo, hi=hi)

    def with_zero(self) -> Interval:
        """The hull with zero, as padding and dropout need it."""
        return Interval(self.lo.clamp(max=0.0), self.hi.clamp(min=0.0), self.shape)

    def scaled(self, factor: float) -> Interval:
        """The interval times a non-negative number."""
        return Interval(self.lo * factor, self.hi * factor, self.shape)

    def uniform(self, axes: tuple[int, ...]) -> Interval:
        """The hull over some axes, which become uniform."""
        if all(self.lo.size(d) == 1 and self.hi.size(d) == 1 for d in axes):
            return self
        return Interval(self.lo.amin(axes, keepdim=True), self.hi.amax(axes, keepdim=True), self.shape)

    def written_out(self, axes: tuple[int, ...]) -> Interval:
        """The same interval, not compact along some axes."""
        lo = expand_axes(self.lo, self.shape, axes)
        return replace(self, lo=lo, hi=lo if self.exact else expand_axes(self.hi, self.shape, axes))


def _next(end: Tensor, towards: float) -> Tensor:
    return torch.nextafter(end, torch.full_like(end, towards))


def point(values: Tensor, shape: Shape | None = None) -> Interval:
    """The interval of known values; kept in their own precision until a rule computes with them."""
    exact = values.detach()
    return Interval(exact, exact, tuple(values.shape) if shape is None else shape)


def constant(value: float, shape: Shape) -> Interval:
    """The interval of a value that is one number everywhere."""
    return point(torch.full((1,) * len(shape), float(value), dtype=torch.float64), shape)


def between(lo: float, hi: float, shape: Shape) -> Interval:
    """One interval for all elements."""
    ones = torch.ones((1,) * len(shape), dtype=torch.float64)
    return Interval(ones * lo, ones * hi, shape)


def unbounded(shape: Shape) -> Interval:
    """Nothing is known."""
    return between(-INF, INF, shape)


def hull(first: Interval, second: Interval, shape: Shape) -> Interval:
    """The smallest interval around two (broadcast) intervals."""
    return Interval(torch.minimum(first.lo, second.lo), torch.maximum(first.hi, second.hi), shape)
