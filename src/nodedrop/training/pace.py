"""When to look for dead units: often while they die, seldom when they do not."""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import InputError


class Pace:
    """Counts steps to the next `drop()`. The wait halves after a cut and doubles after a look that found nothing.

    A look costs less than a tenth of a training step, so with at least 10 steps in between it stays below one per cent
    of the run. Only steps count, not seconds: the same run cuts at the same steps on every machine.

    >>> pace = Pace(least=10, most=80)
    >>> looks = []
    >>> for step in range(200):
    ...     if pace.due():
    ...         looks.append(step)
    ...         pace.saw(found=len(looks) <= 2)
    >>> looks
    [9, 19, 29, 49, 89, 169]
    """

    def __init__(self, least: int = 10, most: int = 1000) -> None:
        if not 1 <= least <= most:
            raise InputError(f"a pace needs 1 ≤ least ≤ most, not {least} and {most}")
        self.least, self.most = least, most
        self._wait, self._left = least, least

    def due(self) -> bool:
        """Count one step; true if it is time to look."""
        self._left -= 1
        return self._left <= 0

    def saw(self, found: bool) -> None:
        """Tell whether the look led to a cut."""
        self._wait = max(self._wait // 2, self.least) if found else min(self._wait * 2, self.most)
        self._left = self._wait

    def state_dict(self) -> dict[str, int]:
        """Where the count is."""
        return {"wait": self._wait, "left": self._left}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go on from there."""
        self._wait, self._left = int(state["wait"]), int(state["left"])
