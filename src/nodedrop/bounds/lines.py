"""Straight lines above and below activations, for values between two ends."""

from __future__ import annotations

from collections.abc import Callable
from math import exp, log1p
from typing import NamedTuple

import torch
from torch import Tensor

from ..functional import soft_clamped_relu
from ..tracing.graph import Node
from .interval import INF
from .rounding import DOUBLE


class Lines(NamedTuple):
    """y ≤ above·x + over and y ≥ below·x + under, wherever x lies between its ends."""

    above: Tensor
    over: Tensor
    below: Tensor
    under: Tensor


def clipped(lo: Tensor, hi: Tensor, bottom: Tensor | float, top: Tensor | float) -> Lines:
    """Of y = min(max(x, bottom), top). From below it is the same function, turned by half a turn."""
    low, high = (torch.as_tensor(end, dtype=torch.float64).expand_as(lo) for end in (bottom, top))
    above, over = _over_clipped(lo, hi, low, high)
    below, under = _over_clipped(-hi, -lo, -high, -low)
    return Lines(above, over, below, -under)


def _over_clipped(lo: Tensor, hi: Tensor, bottom: Tensor, top: Tensor) -> tuple[Tensor, Tensor]:
    """The chord from the left end to where the function turns flat, or flat at the highest value, if that is nearer."""
    right = torch.minimum(hi, top).maximum(lo)
    left_value, right_value = lo.clamp(bottom, top), right.clamp(bottom, top)
    flat = ~((right - lo >= hi - right) & (right > lo) & lo.isfinite() & right.isfinite())
    slope = torch.where(flat, 0.0, (right_value - left_value) / (right - lo))
    shift = torch.maximum(left_value - slope * lo, right_value - slope * right)
    size = left_value.abs() + right_value.abs() + (slope * lo).abs() + (slope * right).abs()
    return slope, torch.where(flat, hi.clamp(bottom, top), shift + 8 * DOUBLE * size)


def softly_clamped(lo: Tensor, hi: Tensor, beta: float) -> Lines:
    """Of SoftClampedReLU: zero up to v₀, then concave, nowhere above ReLU nor above its value at the right end."""
    first, last = soft_clamped_relu(lo, beta), soft_clamped_relu(hi, beta)
    above, over, *_ = clipped(lo, hi, 0.0, last * (1 + 64 * DOUBLE))
    zero = -log1p(-exp(-beta)) / beta * (1 + 2.0**-30) if beta < 700 else 2.0**-1000
    left = lo.clamp(min=zero)
    chord = (lo.isfinite() & hi.isfinite() & (hi > left) & ((lo >= zero) | (hi >= -lo))).bool()
    left_value = torch.where(lo >= zero, first * (1 - 64 * DOUBLE), 0.0)
    slope = torch.where(chord, (last - left_value) / (hi - left), 0.0).clamp(min=0)
    shift = torch.minimum(left_value - slope * left, last * (1 - 64 * DOUBLE) - slope * hi)
    size = last + (slope * left).abs() + (slope * hi).abs()
    return Lines(above, over, slope, torch.where(chord, shift - 8 * DOUBLE * size, left_value))


def _number(value: object, other: float) -> float:
    return other if value is None else float(value)  # type: ignore[arg-type]


LINES: dict[str, Callable[[Tensor, Tensor, Node], Lines]] = {
    "aten.relu.default": lambda lo, hi, n: clipped(lo, hi, 0.0, INF),
    "aten.relu_.default": lambda lo, hi, n: clipped(lo, hi, 0.0, INF),
    "aten.relu6.default": lambda lo, hi, n: clipped(lo, hi, 0.0, 6.0),
    "aten.hardtanh.default": lambda lo, hi, n: clipped(
        lo, hi, float(n.arg(1, "min_val", -1.0)), float(n.arg(2, "max_val", 1.0))
    ),
    "aten.clamp.default": lambda lo, hi, n: clipped(
        lo, hi, _number(n.arg(1, "min"), -INF), _number(n.arg(2, "max"), INF)
    ),
    "aten.clamp_min.default": lambda lo, hi, n: clipped(lo, hi, float(n.args[1]), INF),
    "nodedrop.soft_clamped_relu.default": lambda lo, hi, n: softly_clamped(lo, hi, float(n.arg(1, "beta", 10.0))),
}
ROUNDED = {"nodedrop.soft_clamped_relu.default": 32.0}  # in units of round-off; the others select
