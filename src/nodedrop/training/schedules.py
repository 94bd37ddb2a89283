"""λ over time, as functions from the number of penalties taken so far to λ.

They serve for `spare`, too, where 0 is not "no penalty" but "no unit is left alone": there `warm_up` and `after` press
all units first, and `until` needs `then=1.0`, which leaves all alone.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from ..errors import InputError

Schedule = Callable[[int], float]


def constant(lam: float) -> Schedule:
    """The same λ at every step.

    >>> constant(1e-5)(1000)
    1e-05
    """
    check_lam(lam)
    return lambda step: lam


def warm_up(lam: float, steps: int) -> Schedule:
    """No penalty for some steps, then λ: a deep network must find its signal first.

    >>> rate = warm_up(1e-5, steps=100)
    >>> rate(99), rate(100)
    (0.0, 1e-05)
    """
    check_lam(lam)
    return lambda step: 0.0 if step < steps else lam


def anneal(start: float, end: float, steps: int, *, after: int = 0, hold: int = 0) -> Schedule:
    """Geometric from `start` to `end` over some steps: `after` steps without penalty, then `hold` steps at `start`.

    Upwards it lets a network learn first; downwards it cuts first, and lets what is left learn undisturbed.

    >>> rate = anneal(1e-6, 1e-4, steps=100)
    >>> rate(0), round(rate(50), 8), rate(200)
    (1e-06, 1e-05, 0.0001)
    >>> rate = anneal(1e-3, 1e-5, steps=100, after=10, hold=50)
    >>> rate(9), rate(59), round(rate(110), 8), rate(160)
    (0.0, 0.001, 0.0001, 1e-05)
    """
    check_lam(start)
    check_lam(end)
    if start == 0 or end == 0:
        raise InputError("a geometric schedule needs λ above 0 at both ends")
    for name, count in (("steps", steps), ("after", after), ("hold", hold)):
        if count < 0:
            raise InputError(f"{name} must be at least 0, not {count}")

    def rate(step: int) -> float:
        if step < after:
            return 0.0
        done = min(max(step - after - hold, 0) / max(steps, 1), 1.0)
        return end if done == 1.0 else float(start * (end / start) ** done)

    return rate


def until(schedule: Schedule, steps: int, then: float = 0.0) -> Schedule:
    """A schedule for some steps, then another value, by default a λ of 0: what is left learns undisturbed.

    For `spare` that is `then=1.0`, since 0 would press all units.

    >>> rate = until(warm_up(1e-3, steps=100), steps=500)
    >>> rate(99), rate(499), rate(500)
    (0.0, 0.001, 0.0)
    >>> share = until(constant(0.7), steps=500, then=1.0)
    >>> share(499), share(500)
    (0.7, 1.0)
    """
    return lambda step: schedule(step) if step < steps else then


def check_lam(lam: float) -> float:
    """Refuse what no penalty can be multiplied by."""
    value: object = lam
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < inf:
        raise InputError(f"λ must be a number from 0 on, not {lam!r}")
    return lam
