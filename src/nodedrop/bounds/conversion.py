"""What conversion to another type makes of values: floats are rounded, whole numbers cut off, truths told from zero."""

from __future__ import annotations

import torch

from .interval import INF, Interval, between, unbounded
from .rounding import rounds_as_known, unit_roundoff, widen

WHOLE = frozenset(
    {torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.int8, torch.int16, torch.int32, torch.int64}
)


def holds(wide: torch.dtype, narrow: torch.dtype) -> bool:
    """Whether every number of one type is a number of the other.

    >>> holds(torch.float32, torch.bfloat16), holds(torch.float32, torch.int64), holds(torch.int64, torch.int8)
    (True, False, True)
    >>> holds(torch.float8_e5m2, torch.float8_e4m3fn), holds(torch.float8_e4m3fn, torch.float8_e5m2)
    (False, False)
    """
    if wide == narrow or narrow is torch.bool:
        return True
    if narrow in WHOLE:
        least, most = _ends(narrow)
        if wide in WHOLE:
            return _ends(wide)[0] <= least and most <= _ends(wide)[1]
        return wide.is_floating_point and max(-least, most) * unit_roundoff(wide) <= 1
    if not (wide.is_floating_point and narrow.is_floating_point and rounds_as_known(wide) and rounds_as_known(narrow)):
        return False
    ours, theirs = torch.finfo(wide), torch.finfo(narrow)
    return unit_roundoff(wide) <= unit_roundoff(narrow) and ours.max >= theirs.max and ours.tiny <= theirs.tiny


def converted(value: Interval, source: torch.dtype | None, target: torch.dtype | None) -> Interval:
    """The interval of values of one type (None: of real numbers) after conversion to another (None: there is none)."""
    if target is None or (source is not None and holds(target, source)):
        return value
    value = value.double()
    if target.is_floating_point:
        return _rounded(value, target) if rounds_as_known(target) else unbounded(value.shape)
    if target is torch.bool:
        return _told_from_zero(value)
    return _cut_off(value, target) if target in WHOLE else unbounded(value.shape)


def _ends(dtype: torch.dtype) -> tuple[int, int]:
    kind = torch.iinfo(dtype)
    return kind.min, kind.max


def _rounded(value: Interval, dtype: torch.dtype) -> Interval:
    """Ends that are numbers of the type stay, as rounding is monotone; what is beyond its largest may be infinite."""
    tiny, most = float(torch.finfo(dtype).tiny), float(torch.finfo(dtype).max)
    still = [(end.to(dtype).double() == end) & ((end == 0) | (end.abs() >= tiny)) for end in (value.lo, value.hi)]
    if value.exact and bool(still[0].all()):
        return value
    lo, hi = widen(value.lo, value.hi, unit_roundoff(dtype), tiny)
    lo, hi = torch.where(still[0], value.lo, lo), torch.where(still[1], value.hi, hi)
    return Interval(lo.masked_fill(lo < -most, -INF), hi.masked_fill(hi > most, INF), value.shape)


def _told_from_zero(value: Interval) -> Interval:
    truth, lie = (value.lo > 0) | (value.hi < 0), (value.lo == 0) & (value.hi == 0)
    lo, hi = truth.double(), 1 - lie.double()
    return Interval(lo, lo if value.exact else hi, value.shape)


def _cut_off(value: Interval, dtype: torch.dtype) -> Interval:
    """Towards zero; numbers that leave the range of the type come back at its other end."""
    least, most = map(float, _ends(dtype))
    lo, hi = value.lo.trunc(), value.hi.trunc()
    if bool((lo > least - 1).all()) and bool((hi < most + 1).all()):
        return Interval(lo, lo if value.exact else hi, value.shape)
    return between(least, most, value.shape)
