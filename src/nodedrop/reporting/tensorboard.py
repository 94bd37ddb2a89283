"""The curves of a run for TensorBoard."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..export.extras import needed

if TYPE_CHECKING:
    from torch.utils.tensorboard.writer import SummaryWriter

CURVES = ("train_loss", "train_error", "test_loss", "test_error", "units", "parameters", "lr", "seconds", "cutting")


class Board:
    """Takes the lines of a run's metrics as they come. After a stop, what the run does again takes the place of what
    it had written."""

    def __init__(self, folder: Path) -> None:
        needed("report", "TensorBoard")
        self._folder = folder
        self._writer: SummaryWriter | None = None

    def add(self, row: Mapping[str, Any]) -> None:
        """One line: a point on each curve, and the width of every layer."""
        from torch.utils.tensorboard.writer import SummaryWriter

        step = row["step"]
        if self._writer is None:
            self._writer = SummaryWriter(str(self._folder), purge_step=step)
        values = {name: row.get(name) for name in CURVES}
        values |= {f"width/{number}": width for number, width in enumerate(row["widths"], 1)}
        for name, value in values.items():
            if value is not None:
                self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
