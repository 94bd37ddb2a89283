"""The file that a ledger is written to."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..session import Session
from ..tracing import tensors_of
from .lines import cut_line, header, line_hash, unit_lines
from .record import CutRecord, declared, recorded
from .witness import Witness

START = "0" * 64


class LedgerFile:
    """A ledger that grows with every cut; `witness` is whether the weights that proofs speak of are kept beside it.

    Each line has the hash of the one before it. A checkpoint remembers where the ledger was, and on resuming it goes
    back there, so that a run that was killed ends with the same ledger as one that was not. Cuts of a run that is not
    gone on with are never written over.
    """

    def __init__(self, path: str | os.PathLike[str], *, witness: bool = True) -> None:
        self.path, self.witness = Path(path), witness
        self.position, self.last, self.cuts, self.step = 0, START, 0, 0
        self._header: dict[str, Any] = {}

    def follow(self, session: Session, state: Mapping[str, Any] | None = None) -> None:
        """Write down every cut of a session from now on, or from where it was. The model is what it is at first."""
        if state is not None:
            self.load_state_dict(state)
        if not self._header:
            self._header = header(declared(session), tensors_of(session.module))
        session.recorder = lambda plan, outcome, before: self.write(recorded(session, plan, outcome, before))

    def begin(self) -> None:
        """Write the first line, unless there is one; and take off what a killed run wrote after its checkpoint."""
        if self.position == 0:
            if told := self._cuts_there():
                raise InputError(
                    f"'{self.path}' holds the proofs of {told}, and nothing says to go on from there; name another "
                    "file, move this one and 'cuts' away, or load the state of that run's NodeDrop"
                )
            self._append([dict(self._header)])
            return
        try:
            if self.path.stat().st_size > self.position:
                os.truncate(self.path, self.position)
        except OSError as error:
            why = error.strerror or error
            raise InputError(f"the ledger '{self.path}' of this run's cuts is not there any more: {why}") from None

    @contextmanager
    def at(self, step: int) -> Iterator[None]:
        """The cut of a step; if that is undone, so is what was written of it."""
        self.step = step
        self.begin()
        before = self.position, self.last, self.cuts
        try:
            yield
        except BaseException:
            self.position, self.last, self.cuts = before
            raise

    def write(self, record: CutRecord) -> None:
        """Add a cut and its units, on the disk before this returns."""
        self.begin()
        number, witness = self.cuts + 1, Witness(record) if self.witness else None
        cut = {"cut": number, "step": self.step, **cut_line(record)}
        if witness is not None:
            cut["witness"] = self._keep(witness)
        bounds = None if witness is None else witness.bounds
        units = [{"line": "unit", "cut": number, "step": self.step, **unit} for unit in unit_lines(record, bounds)]
        self._append([{**cut, "units": len(units)}, *units])
        self.cuts = number

    def restart(self) -> None:
        """Begin anew, for a run that was killed before its first checkpoint: it makes the same cuts again."""
        if told := self._cuts_there():
            first = json.loads(self._content().splitlines()[0])
            if first.get("hash") != line_hash({**self._header, "prev": START}):
                raise InputError(
                    f"there is no checkpoint to go on from, and '{self.path}' holds the proofs of {told} of another "
                    "run; name another file, or move this one and 'cuts' away"
                )
            text = f"there is no checkpoint to go on from, so the ledger '{self.path}', of {told}, begins anew"
            warnings.warn(text, stacklevel=3)
            os.truncate(self.path, 0)
        self.position, self.last, self.cuts = 0, START, 0

    def _cuts_there(self) -> str:
        """How many cuts the file tells of, in words; none is no word."""
        lines = (line for line in self._content().splitlines(keepends=True) if line.endswith(b"\n"))
        count = sum(b'"line": "cut"' in line for line in lines)
        return f"{count} cuts" if count > 1 else "1 cut" if count else ""

    def _content(self) -> bytes:
        try:
            return self.path.read_bytes() if self.path.exists() else b""
        except OSError as error:
            raise InputError(f"the ledger '{self.path}' cannot be read: {error.strerror or error}") from None

    def _keep(self, witness: Witness) -> dict[str, Any]:
        """Write what is removed, and the tensors that the proofs need whole, beside the ledger."""
        from safetensors.torch import save

        folder = self.path.parent / "cuts"
        content = save({name: value.cpu().contiguous() for name, value in witness.tensors()})
        name = f"{self.cuts + 1:06d}.safetensors"
        try:
            folder.mkdir(exist_ok=True)
            _store(folder / name, content)
        except OSError as error:
            raise InputError(f"'{folder / name}' cannot be written: {error.strerror or error}") from None
        return {"file": f"cuts/{name}", "sha256": sha256(content).hexdigest()}

    def _append(self, lines: list[dict[str, Any]]) -> None:
        text, last = b"", self.last
        for line in lines:
            line["prev"] = last
            last = line["hash"] = line_hash(line)
            text += json.dumps(line, sort_keys=True, allow_nan=False).encode() + b"\n"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("r+b" if self.path.exists() else "wb") as file:
                file.truncate(self.position)
                file.seek(self.position)
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise InputError(f"the ledger '{self.path}' cannot be written: {error.strerror or error}") from None
        self.position, self.last = self.position + len(text), last

    def state_dict(self) -> dict[str, Any]:
        """Where the ledger is."""
        return {"position": self.position, "last": self.last, "cuts": self.cuts}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go back to where it was; what was written since goes with the next line."""
        content, position = self._content(), int(state["position"])
        if len(content) < position:
            raise InputError(f"the ledger '{self.path}' has {len(content)} bytes and had {position}; it was cut short")
        if position and f'"hash": "{state["last"]}"'.encode() not in content[:position].splitlines()[-1]:
            raise InputError(f"the ledger '{self.path}' is not the one that this run wrote; put that one back")
        self.position, self.last, self.cuts = position, str(state["last"]), int(state["cuts"])


def _store(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
