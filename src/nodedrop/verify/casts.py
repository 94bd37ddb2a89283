"""What an operator meets of operands whose type is not that of its result: they are converted before anything else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from .interval import INF, Arithmetic, Array, Value, unbounded

WHOLE = frozenset(
    {torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.int8, torch.int16, torch.int32, torch.int64}
)
# Types with a sign, a zero and a spacing that halves as numbers do; there are others, of powers of 2 alone.
FLOATS = frozenset(
    {torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e4m3fnuz,
     torch.float8_e5m2, torch.float8_e5m2fnuz}
)  # fmt: skip


def holds(wide: torch.dtype, narrow: torch.dtype) -> bool:
    """Whether every number of one type is a number of the other, which is a type of floats."""
    if narrow == wide or narrow is torch.bool:
        return True
    if wide not in FLOATS or narrow not in FLOATS | WHOLE:
        return False
    kind = torch.finfo(wide)
    if narrow in WHOLE:
        return torch.iinfo(narrow).max <= min(2 / kind.eps, kind.max)
    other = torch.finfo(narrow)
    return kind.eps <= other.eps and kind.max >= other.max and kind.tiny <= other.tiny


def met(value: Value, source: torch.dtype, target: torch.dtype, lowest: torch.dtype | None) -> Value:
    """A value of one type as an operator whose result is of another meets it.

    Where a lower precision may be used, results can be of that type, to which tensors without axes and whole numbers
    give way.
    """
    yields = lowest is not None and source is not torch.bool and not (value.shape and source.is_floating_point)
    for kind in (target, lowest if yields else None):
        if kind is not None and not holds(kind, source):
            value = _rounded(value, kind)
    return value


def _rounded(value: Value, dtype: torch.dtype) -> Value:
    """Ends that are numbers of the type stay: rounding keeps the order of numbers."""
    if value.rows is not None or dtype not in FLOATS:
        return replace(unbounded(value.shape), tags=value.tags)
    kind = torch.finfo(dtype)
    still = [_in_type(end, dtype) for end in (value.lo, value.hi)]
    if value.exact and still[0].all():
        return value
    wide = Arithmetic(kind.eps / 2, kind.tiny, kind.max).widened(value.lo, value.hi, value.shape)
    lo, hi = np.where(still[0], value.lo, wide.lo), np.where(still[1], value.hi, wide.hi)
    return Value(lo, hi, value.shape, tags=value.tags)


def _in_type(numbers: Array, dtype: torch.dtype) -> Array:
    """Which numbers the type has: those below its least normal one may be lost."""
    there = torch.from_numpy(np.array(numbers, float)).to(dtype).double().numpy()
    size = np.abs(numbers)
    found: Array = (there == numbers) & ((size == 0) | (size >= torch.finfo(dtype).tiny) & (size < INF))
    return found
