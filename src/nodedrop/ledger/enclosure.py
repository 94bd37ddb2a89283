"""Weights kept as intervals: row by row, a middle, a few bits a weight for steps away from it, and a radius.

Every weight of a row lies within the row's radius of middle + steps · scale. Where a proof can spare the difference,
that takes an eighth of the weights' size with 4 bits, and next to nothing with none. A weight of 0 stays known as 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ..bounds import Interval

BITS = (0, 4, 8, 16)
WHOLE = 64
BLOCK = 2**16  # numbers at a time


@dataclass(frozen=True)
class Enclosure:
    """`rows` has middle, scale and radius of each row, [3, rows]; `steps` is None where no bits are spent."""

    bits: int
    rows: Tensor
    steps: Tensor | None
    shape: tuple[int, ...]

    def tensors(self, name: str) -> Iterator[tuple[str, Tensor]]:
        """As they are kept; two steps of 4 bits share a byte."""
        yield f"rows/{name}", self.rows
        if self.steps is not None and self.bits > 4:
            yield f"steps/{name}", self.steps.to(torch.int8 if self.bits == 8 else torch.int16)
        elif self.steps is not None:
            halves = torch.nn.functional.pad(self.steps.reshape(-1) + 8, (0, self.steps.numel() % 2)).to(torch.uint8)
            yield f"steps/{name}", halves[::2] * 16 + halves[1::2]

    def interval(self) -> Interval:
        """What is known of the weights."""
        middle, scale, radius = self.rows.double().reshape(3, -1, *(1,) * (len(self.shape) - 1))
        if self.steps is None:
            return Interval((middle - radius).expand(self.shape), (middle + radius).expand(self.shape), self.shape)
        values, zero = middle + self.steps * scale, self.steps == -(2 ** (self.bits - 1))
        lo, hi = (torch.where(zero, 0.0, values + side * radius) for side in (-1, 1))
        return Interval(lo, hi, self.shape)


def enclose(weight: Tensor, bits: int) -> Enclosure | None:
    """The weights with so many bits for each; None where that saves nothing, or cannot say what is 0."""
    weight = weight.detach().cpu()
    few = weight.dim() < 2 or weight.numel() == 0 or bits >= 8 * weight.element_size()
    if few or not weight.is_floating_point() or (bits == 0 and bool((weight == 0).any())):
        return None
    size = max(BLOCK // (weight.numel() // len(weight)), 1)  # rows whose numbers stay in the cache
    parts = [_rows(part.flatten(1), bits) for part in weight.split(size)]
    rows = torch.cat([rows for rows, _ in parts], 1)
    if not bool(rows.isfinite().all()):
        return None
    steps = torch.cat([steps for _, steps in parts]).reshape(weight.shape) if bits else None
    return Enclosure(bits, rows, steps, tuple(weight.shape))


def _rows(weight: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Middle, scale and radius of some rows, and the steps, of which the lowest stands for 0."""
    flat, zero, most = weight.double(), weight == 0, 2 ** (bits - 1) - 1 if bits else 0
    lo, hi = flat.amin(1, keepdim=True), flat.amax(1, keepdim=True)
    middle = ((lo + hi) / 2).float()
    scale = ((hi - lo) / (2 * most)).float() if bits else torch.zeros_like(middle)
    away = (flat - middle.double()) / torch.where(scale == 0, 1.0, scale.double())
    steps = away.round().clamp(-most, most)
    values = middle.double() + steps * scale.double()
    error = torch.where(zero, 0.0, (flat - values).abs()).amax(1, keepdim=True)
    # more than rounding it to single, and computing with it in double, can cost
    radius = (error * (1 + 2.0**-20) + values.abs().amax(1, keepdim=True) * 2.0**-48).float() * (1 + 2.0**-20)
    held = steps.to(torch.int16).masked_fill_(zero, -most - 1)
    return torch.cat([middle, scale, radius], 1).T, held
