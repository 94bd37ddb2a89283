"""Which of a layer's units the penalty leaves alone: those with the largest penalties of their own."""

from __future__ import annotations

import math
from numbers import Integral

from torch import Tensor

from ..errors import InputError


def sum_units(penalties: Tensor, spare: float, multiple: int) -> Tensor:
    """The penalties of single units, of those that are not spared."""
    units = len(penalties)
    count = pressed(units, spare, multiple)
    if count == units:
        return penalties.sum()
    blocks = math.ceil(units / multiple) * multiple - (units - count)  # as the hardware counts units
    return penalties.topk(count, largest=False, sorted=False).values.sum() * (blocks / max(count, 1))


def pressed(units: int, spare: float, multiple: int) -> int:
    """How many of a layer's units are not spared.

    >>> [pressed(units, 0.7, 8) for units in (64, 48, 24, 20, 5)]
    [16, 8, 0, 4, 0]
    >>> [pressed(units, 32, 8) for units in (64, 48, 35, 32, 16)]
    [32, 16, 3, 0, 0]
    """
    check_spare(spare, multiple)
    wanted = spare if spare > 1 else spare * units
    spared = math.ceil(math.ceil(wanted - 1e-9) / multiple) * multiple  # 0.28 · 25 is a little more than 7
    if spared >= units:
        spared = units // multiple * multiple or units
    return units - spared


def is_spare(spare: float) -> bool:
    """Whether it is a share, or a number of units, of which schedules pass parts."""
    return 0 <= spare < math.inf


def check_spare(spare: float, multiple: int) -> None:
    """Refuse what `penalty` cannot take."""
    if not is_spare(spare):
        raise InputError(f"spare must be from 0 to 1, or a number of units above 1, got {spare}.")
    check_multiple(multiple)
    if spare == 0 < multiple - 1:
        raise InputError(
            f"multiple={multiple} rounds the number of units that are spared, so it needs spare above 0; a schedule of "
            "spare that is to end the pressure ends at 1.0, which spares all."
        )


def check_multiple(multiple: int) -> None:
    """Refuse what no number of units is a multiple of."""
    value: object = multiple
    if not isinstance(value, Integral) or value < 1:
        raise InputError(f"multiple must be at least 1, and a whole number, got {multiple!r}.")
