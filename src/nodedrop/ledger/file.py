"""The file that a ledger is written to."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
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
    back there, so that a run that was killed ends with the same ledger as one that was not.
    """

    def __init__(self, path: str | os.PathLike[str], *, witness: bool = True) -> None:
        self.path, self.witness = Path(path), witness
        self.position, self.last, self.cuts, self.step = 0, START, 0, 0
        self._header: dict[str, Any] = {}

    def follow(self, session: Session) -> None:
        """Write down every cut of a session from now on. The model is what it is at the first call."""
        if not self._header:
            self._header = header(declared(session), tensors_of(session.module))
        session.recorder = lambda plan, outcome, before: self.write(recorded(session, plan, outcome, before))

    def begin(self) -> None:
        """Write the first line, unless there is one; and take off what a killed run wrote after its checkpoint."""
        if self.position == 0:
            self._append([dict(self._header)])
        elif self.path.stat().st_size > self.position:
            os.truncate(self.path, self.position)

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
        text = b""
        for line in lines:
            line["prev"] = self.last
            self.last = line["hash"] = line_hash(line)
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
        self.position += len(text)

    def state_dict(self) -> dict[str, Any]:
        """Where the ledger is."""
        return {"position": self.position, "last": self.last, "cuts": self.cuts}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go back to where it was; what was written since goes with the next line."""
        size = self.path.stat().st_size if self.path.exists() else 0
        if size < state["position"]:
            raise InputError(f"the ledger '{self.path}' has {size} bytes and had {state['position']}; it was cut short")
        self.position, self.last, self.cuts = int(state["position"]), str(state["last"]), int(state["cuts"])


def _store(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
