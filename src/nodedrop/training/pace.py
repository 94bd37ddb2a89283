"""When to look for dead units: often while many die, seldom when few do."""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt

from ..errors import InputError


class Pace:
    """Counts steps to the next `drop()`; the wait follows from how much of the network the last one removed.

    Looking every w steps at units that die at a rate r (a share of the network per step) costs cost/w of a step for the
    cuts and r·w/2 for the dead that are carried along. The sum is least at w = √(2·cost/r), and r is what the last look
    removed over the steps it waited. A look that removed nothing doubles the wait. Only steps count, not seconds: the
    same run cuts at the same steps on every machine.

    `cost` is that of a cut in training steps: 3 to 9 for small networks with batches of 64, less for large ones. The
    sum is flat around its least value. In runs of a few thousand short steps cuts take more than a hundredth of the
    time with the default; a larger `least` or `cost` makes them fewer.

    >>> pace, removed, looks = Pace(least=10, most=1000), iter([0.4, 0.1, 0.004, 0.0]), []
    >>> for step in range(500):
    ...     if pace.due():
    ...         looks.append(step)
    ...         pace.saw(next(removed))
    >>> looks
    [9, 23, 56, 313]
    """

    def __init__(self, least: int = 10, most: int = 1000, cost: float = 4.0) -> None:
        if not 1 <= least <= most:
            raise InputError(f"a pace needs 1 ≤ least ≤ most, not {least} and {most}")
        if not cost > 0:
            raise InputError(f"the cost of a cut must be above 0 steps, not {cost}")
        self.least, self.most, self.cost = least, most, cost
        self._wait, self._left = least, least

    def due(self) -> bool:
        """Count one step; true if it is time to look."""
        self._left -= 1
        return self._left <= 0

    def saw(self, share: float) -> None:
        """Tell what share of the network the look removed, such as of its units."""
        best = sqrt(2 * self.cost * self._wait / share) if share > 0 else 2 * self._wait
        self._wait = min(max(round(best), self.least), self.most)
        self._left = self._wait

    def state_dict(self) -> dict[str, int]:
        """Where the count is."""
        return {"wait": self._wait, "left": self._left}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go on from there."""
        self._wait, self._left = int(state["wait"]), int(state["left"])
