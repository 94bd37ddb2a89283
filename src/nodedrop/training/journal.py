"""What a run has to tell as it goes: JSON Lines that can be taken back to where a checkpoint was written."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..errors import InputError
from .atomic import flush, reason
from .files import File


class Journal:
    """A file of JSON objects, one per line, that only grows.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     journal = Journal(f"{folder}/metrics.jsonl")
    ...     journal.append({"step": 1, "loss": 0.5})
    ...     position = journal.position
    ...     journal.append({"step": 2, "loss": 0.25})
    ...     journal.rewind(position)
    ...     journal.append({"step": 2, "loss": 0.125})
    ...     [record["loss"] for record in journal]
    [0.5, 0.125]

    A journal given to `Checkpoints` follows them: on resuming it goes back to where it was. What lies behind
    `position`, such as the half line of a killed process, is no part of it and goes with the next `append`.
    """

    def __init__(self, path: File) -> None:
        self.path = Path(path)
        try:
            self.position = self.path.read_bytes().rfind(b"\n") + 1 if self.path.exists() else 0
        except OSError as error:
            raise InputError(f"'{self.path}' cannot be read: {reason(error)}") from None

    def append(self, record: Mapping[str, Any]) -> None:
        """Add one line."""
        try:
            line = json.dumps(dict(record)).encode() + b"\n"
        except (TypeError, ValueError) as error:
            raise InputError(f"a record of '{self.path}' is no plain data: {reason(error)}") from None
        try:
            with self.path.open("ab") as file:
                self._require(self.position, file.tell())
                file.truncate(self.position)
                file.write(line)
        except OSError as error:
            raise InputError(f"'{self.path}' cannot be written: {reason(error)}") from None
        self.position += len(line)

    def rewind(self, position: int) -> None:
        """Go back to where `position` was before."""
        self._require(position, self.path.stat().st_size if self.path.exists() else 0)
        self.position = position

    def state_dict(self) -> dict[str, int]:
        """The position, up to which the file is now on the disk."""
        try:
            if self.position:
                flush(self.path)
                flush(self.path.parent)
        except OSError as error:
            raise InputError(f"'{self.path}' cannot be written: {reason(error)}") from None
        return {"position": self.position}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go back to the position of a state."""
        self.rewind(state["position"])

    def _require(self, position: int, size: int) -> None:
        if size < position:
            raise InputError(f"'{self.path}' has {size} bytes and had {position} before; something else cut it short")

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """The records, read from the file."""
        content = self.path.read_bytes()[: self.position] if self.position else b""
        return (json.loads(line) for line in content.splitlines())
