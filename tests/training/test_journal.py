"""A journal holds what its run has told, and goes back with it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from nodedrop.errors import InputError
from nodedrop.training.checkpoint import Checkpoints
from nodedrop.training.journal import Journal


def checkpoints(folder: Path, journal: Journal) -> Checkpoints:
    return Checkpoints(folder, nn.Linear(2, 2), metrics=journal)


def test_a_journal_follows_its_checkpoints(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "m.jsonl")
    writer = checkpoints(tmp_path / "c", journal)
    for step in (1, 2, 3, 4):
        journal.append({"step": step, "loss": 0.1 * step})
        if step % 2 == 0:
            writer.write(step)
    whole = journal.path.read_bytes()
    journal.append({"step": 5})
    with journal.path.open("ab") as file:
        file.write(b'{"step": 6, "lo')
    again = Journal(journal.path)
    assert [record["step"] for record in again] == [1, 2, 3, 4, 5]
    checkpoints(tmp_path / "c", again).resume()
    assert [record["step"] for record in again] == [1, 2, 3, 4]
    again.append({"step": 5, "loss": float("nan")})
    assert journal.path.read_bytes() == whole + b'{"step": 5, "loss": NaN}\n'

    journal.path.write_bytes(whole[:-3])  # the last checkpoint speaks of more than there is
    again = Journal(journal.path)
    with pytest.warns(UserWarning, match=r"m.jsonl' has \d+ bytes and had \d+ before; something else cut it short"):
        state = checkpoints(tmp_path / "c", again).resume()
    assert state == {"step": 2}
    assert [record["step"] for record in again] == [1, 2]


def test_a_journal_refuses_what_it_cannot_do(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "m.jsonl")
    assert list(journal) == []
    journal.append({"a": 1})
    for action, sentence in (
        (lambda: journal.append({"a": torch.ones(1)}), "a record of '.*m.jsonl' is no plain data"),
        (lambda: journal.rewind(10), "has 9 bytes and had 10 before"),
        (lambda: Journal(tmp_path), "cannot be read: Is a directory"),
        (lambda: Journal(tmp_path / "no" / "folder").append({}), "cannot be written: No such file or directory"),
    ):
        with pytest.raises(InputError, match=sentence):
            action()
    journal.path.unlink()
    with pytest.raises(InputError, match="has 0 bytes and had 9 before"):
        journal.append({"a": 2})
    assert journal.path.read_bytes() == b""
