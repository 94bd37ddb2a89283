"""Two processes, for real: the same cut everywhere, or an error everywhere."""

from __future__ import annotations

import multiprocessing
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import Tensor

from . import ddp_target as target

ALONE = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"}
Ended = tuple[dict[str, Tensor], list[int]]


def launch(task: str, folder: Path) -> list[int]:
    """The exit codes of two processes, forked from one that has torch loaded."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([target.__name__])
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    processes = [context.Process(target=target.process, args=(task, folder, rank, port)) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(100)
        process.kill()
        process.join()
    return [process.exitcode or 0 for process in processes]


@pytest.fixture(scope="module")
def alone() -> Ended:
    """What one process makes of it."""
    model = target.make()
    steps = [event.step for event in target.train(model, slice(None)).events]
    assert len(steps) >= 2, "the wrapper must have been rebuilt more than once"
    return model.state_dict(), steps


def assert_as_one(folder: Path, alone: Ended) -> None:
    for rank in range(2):
        weights, same = torch.load(folder / f"rank{rank}.pt", weights_only=True)
        assert same == alone[1]
        for name, value in alone[0].items():
            assert weights[name].shape == value.shape
            assert float((weights[name] - value).abs().max()) <= 1e-6 * float(value.abs().max())


def test_under_torchrun_two_processes_train_as_one_does(tmp_path: Path, alone: Ended) -> None:
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    environment = {k: v for k, v in os.environ.items() if k not in ALONE} | {"OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        [sys.executable, *torchrun, str(target.__file__), "train", str(tmp_path)],
        capture_output=True, text=True, timeout=240, env=environment, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert_as_one(tmp_path, alone)


@pytest.mark.parametrize("task", ["compiled", "resume"])
def test_two_processes_train_as_one_does(task: str, tmp_path: Path, alone: Ended) -> None:
    assert launch(task, tmp_path) == [0, 0]
    assert_as_one(tmp_path, alone)


def test_processes_that_disagree_all_stop(tmp_path: Path) -> None:
    assert all(launch("disagree", tmp_path))
    for rank in range(2):
        text = (tmp_path / f"rank{rank}.txt").read_text()
        assert text.startswith("CutError: the processes disagree, and nothing was cut: process 0:")
        assert text.endswith("\n14")


@pytest.mark.parametrize("task", ["die", "absent"])
def test_a_process_that_does_not_come_stops_the_others(task: str, tmp_path: Path) -> None:
    started = time.monotonic()
    assert launch(task, tmp_path)[0] != 0
    assert time.monotonic() - started < 120
    if task == "absent":
        text = (tmp_path / "rank0.txt").read_text()
        assert text.startswith("CutError: another process did not come to drop() within 3 s")


def test_a_static_graph_is_refused(tmp_path: Path) -> None:
    assert all(launch("static", tmp_path))
    for rank in range(2):
        assert (tmp_path / f"rank{rank}.txt").read_text().startswith("InputError: DistributedDataParallel(static_graph")
