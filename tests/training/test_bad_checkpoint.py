"""A bad checkpoint is recognised and the one before it used; a write that fails leaves what is there."""

from __future__ import annotations

import os
import random
import resource
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler

import nodedrop as nd
from nodedrop.errors import InputError
from nodedrop.training import container
from nodedrop.training.checkpoint import Checkpoints

from .test_checkpoint import Run, mlp, same, two_checkpoints


def assert_first_is_used(folder: Path, state: dict[str, Tensor], match: str) -> None:
    run = Run(folder)
    with pytest.warns(UserWarning, match=f"^a checkpoint was passed over: .*{match}") as caught:
        assert run.checkpoints.resume() == {"step": 1, "epoch": 0}
    assert len(caught) == 1
    assert "\n" not in str(caught[0].message)
    assert same(run.snapshot(), state)


def test_a_truncated_file_is_passed_over(tmp_path: Path) -> None:
    _, newest, state = two_checkpoints(tmp_path)
    whole = newest.read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    for length in (0, 1, 7, 8, 9, 100, header - 1, header, header + 1, len(whole) // 2, len(whole) - 1):
        newest.write_bytes(whole[:length])
        assert_first_is_used(tmp_path, state, "is no complete safetensors file")
    newest.write_bytes(whole + b"\0")
    assert_first_is_used(tmp_path, state, "is no complete safetensors file")


def test_every_flipped_bit_is_recognised(tmp_path: Path) -> None:
    _, newest, state = two_checkpoints(tmp_path)
    whole = newest.read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    choice, digest = random.Random(0), whole.index(b'"nodedrop.sha256"')
    positions = [*range(120), *range(digest, digest + 90), *choice.sample(range(120, header), 150)]
    positions += choice.sample(range(header, len(whole)), 150)
    for position in positions:
        flipped = bytearray(whole)
        flipped[position] ^= 1 << choice.randrange(8)
        newest.write_bytes(flipped)
        with pytest.raises(InputError, match=r"is no complete safetensors file|is damaged|has version"):
            container.read(newest)
    for position in choice.sample(positions, 20):
        flipped = bytearray(whole)
        flipped[position] ^= 1 << choice.randrange(8)
        newest.write_bytes(flipped)
        assert_first_is_used(tmp_path, state, "")
    newest.write_bytes(whole)
    assert Run(tmp_path).checkpoints.resume() == {"step": 2, "epoch": 1}


def other(path: Path, kind: str) -> None:
    """Put something at the path that is no checkpoint of `Run`."""
    model = mlp(5)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    parts: dict[str, Any] = {"optimizer": optimizer, "batches": torch.Generator()}
    path.unlink()
    if kind == "other model":
        model = nn.Sequential(nn.Conv2d(1, 2, 3))
        parts["optimizer"] = torch.optim.SGD(model.parameters(), 0.1)
    elif kind == "larger":
        model = mlp(9)
        parts["optimizer"] = torch.optim.SGD(model.parameters(), 0.1)
    elif kind == "other optimizer":
        parts["optimizer"] = torch.optim.Adam(model.parameters())
    elif kind == "other order":
        parts["optimizer"] = torch.optim.SGD(list(model.parameters())[::-1], 0.1)
    elif kind == "other parts":
        parts["scheduler"] = lr_scheduler.StepLR(optimizer, 1)
    elif kind == "no parts":
        parts = {}
    elif kind == "model file":
        nd.save(model, path, optimizer=optimizer)
    elif kind == "bare":
        from safetensors.torch import save_file

        save_file(model.state_dict(), path)
    elif kind == "pickle":
        torch.save(model.state_dict(), path)
    elif kind == "text":
        path.write_text("no checkpoint")
    elif kind == "folder":
        path.mkdir()
    if not path.exists():
        Checkpoints(path.parent, model, **parts).write(2)


SENTENCES = {
    "other model": r"does not come from Sequential: it lacks",
    "larger": r"has shape \(9, 4\) there, larger than the model's \(8, 4\)",
    "other optimizer": r"it has optimizer \(Adam\), batches \(Generator\), and this run has optimizer \(SGD\), batches",
    "other order": r"holds them in another order",
    "other parts": r"is of another run, it has optimizer \(SGD\), batches \(Generator\), scheduler \(StepLR\)",
    "no parts": r"is of another run, it has no parts",
    "model file": r"is no checkpoint of a run",
    "bare": r"is no checkpoint of a run",
    "pickle": r"is no complete safetensors file",
    "text": r"is no complete safetensors file",
    "folder": r"is no complete safetensors file",
}


@pytest.mark.parametrize("kind", SENTENCES)
def test_a_foreign_file_is_passed_over(kind: str, tmp_path: Path) -> None:
    _, newest, state = two_checkpoints(tmp_path)
    other(newest, kind)
    assert_first_is_used(tmp_path, state, SENTENCES[kind])


def test_only_bad_ones(tmp_path: Path) -> None:
    for path in two_checkpoints(tmp_path)[:2]:
        path.write_bytes(path.read_bytes()[:-1])
    run = Run(tmp_path)
    run.step()
    before = run.snapshot()
    with pytest.raises(InputError, match=r"no checkpoint in .* can be used, of 2; the newest: .*step-0+2") as caught:
        run.checkpoints.resume()
    assert "\n" not in str(caught.value)
    assert same(run.snapshot(), before)


def assert_write_fails(run: Run, folder: Path, step: int, match: str) -> None:
    before = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    with pytest.raises(InputError, match=match) as caught:
        run.checkpoints.write(step)
    assert "\n" not in str(caught.value)
    assert {path: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before


def test_a_full_disk_leaves_what_is_there(tmp_path: Path) -> None:
    two_checkpoints(tmp_path)
    run = Run(tmp_path)
    run.checkpoints.resume()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, limits[1]))
    try:
        assert_write_fails(run, tmp_path, 3, "step-00000003.safetensors' cannot be written: .*File too large")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    run.checkpoints.write(3)


def test_a_folder_that_cannot_be_written_to(tmp_path: Path) -> None:
    two_checkpoints(tmp_path)
    run = Run(tmp_path)
    run.checkpoints.resume()
    (tmp_path / "step-00000003.safetensors").mkdir()
    assert_write_fails(run, tmp_path, 3, "is a folder; name a file in it")
    (tmp_path / "step-00000003.safetensors").rmdir()
    (tmp_path / "file").touch()
    run = Run(tmp_path / "file")
    for action in (run.checkpoints.resume, lambda: run.checkpoints.write(1)):
        with pytest.raises(InputError, match="cannot be read: Not a directory"):
            action()
    with pytest.raises(InputError, match=r"'.*file.m' cannot be written: Not a directory"):
        nd.save(run.model, tmp_path / "file" / "m")


def test_a_read_only_folder(tmp_path: Path) -> None:
    two_checkpoints(tmp_path)
    (tmp_path / ".step-00000003.safetensors.0123abcd.tmp").touch()
    tmp_path.chmod(0o500)
    if os.access(tmp_path, os.W_OK):
        pytest.skip("this user writes everywhere")
    try:
        run = Run(tmp_path)
        assert run.checkpoints.resume() == {"step": 2, "epoch": 1}
        assert_write_fails(run, tmp_path, 3, "cannot be written: Permission denied")
    finally:
        tmp_path.chmod(0o700)
