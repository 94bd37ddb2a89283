"""One cut of a training run, as it is told and stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ..proof import Certificate


@dataclass(frozen=True)
class DropEvent:
    """One cut: what went, and what it changed. `collapsed` names layers all of whose units are dead.

    `removed` has all units that went, also of layers that the penalty does not act on; `units` counts those left in the
    layers that it acts on, as `NodeDrop.widths` has them. torch has no convolution without channels, so a
    collapsed layer keeps one dead unit, which is not counted if the collapse is allowed.
    """

    step: int
    removed: tuple[Certificate, ...] = field(repr=False)  # there may be hundreds
    parameters: int
    units: int
    difference: float
    eval_change: float | None = None
    collapsed: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain data for a JSON file."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> DropEvent:
        """The event that `to_json` gave the data of."""
        removed = tuple(Certificate(**{**item, "modes": tuple(item["modes"])}) for item in data["removed"])
        return cls(**{**data, "removed": removed, "collapsed": tuple(data["collapsed"])})

    def __str__(self) -> str:
        text = f"step {self.step}: {len(self.removed)} units removed, {self.units} left, {self.parameters:,} parameters"
        if self.eval_change is not None:
            text += f", eval-mode outputs changed by up to {self.eval_change:.2e} (relative)"
        return text
