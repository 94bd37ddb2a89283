"""Two processes under torchrun, for real: the same cut everywhere, or an error everywhere."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

TARGET = Path(__file__).with_name("ddp_target.py")
ALONE = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"}


def launch(task: str, folder: Path, processes: int) -> tuple[int, str]:
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    launcher = torchrun if processes > 1 else []
    environment = {k: v for k, v in os.environ.items() if k not in ALONE} | {"OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        [sys.executable, *launcher, str(TARGET), task, str(folder)],
        capture_output=True, text=True, timeout=240, env=environment, check=False,
    )  # fmt: skip
    return run.returncode, run.stderr


@pytest.mark.parametrize("task", ["train", "compiled", "resume"])
def test_two_processes_train_as_one_does(task: str, tmp_path: Path) -> None:
    for processes in (1, 2):
        code, errors = launch(task, tmp_path, processes)
        assert code == 0, errors
    alone, steps = torch.load(tmp_path / "single.pt", weights_only=True)
    assert len(steps) >= 2, "the wrapper must have been rebuilt more than once"
    for rank in range(2):
        weights, same = torch.load(tmp_path / f"rank{rank}.pt", weights_only=True)
        assert same == steps
        for name, value in alone.items():
            assert weights[name].shape == value.shape
            assert float((weights[name] - value).abs().max()) <= 1e-6 * float(value.abs().max())


def test_processes_that_disagree_all_stop(tmp_path: Path) -> None:
    code, _ = launch("disagree", tmp_path, 2)
    assert code != 0
    for rank in range(2):
        text = (tmp_path / f"rank{rank}.txt").read_text()
        assert text.startswith("CutError: the processes disagree, and nothing was cut: process 0:")
        assert text.endswith("\n14")


@pytest.mark.parametrize("task", ["die", "absent"])
def test_a_process_that_does_not_come_stops_the_others(task: str, tmp_path: Path) -> None:
    started = time.monotonic()
    code, _ = launch(task, tmp_path, 2)
    assert code != 0
    assert time.monotonic() - started < 120
    if task == "absent":
        text = (tmp_path / "rank0.txt").read_text()
        assert text.startswith("CutError: another process did not come to drop() within 3 s")


def test_a_static_graph_is_refused(tmp_path: Path) -> None:
    assert launch("static", tmp_path, 2)[0] != 0
    for rank in range(2):
        assert (tmp_path / f"rank{rank}.txt").read_text().startswith("InputError: DistributedDataParallel(static_graph")
