"""A run killed at any moment ends bit for bit as one that was not."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nodedrop.training.journal import Journal

TARGET = Path(__file__).with_name("kill_target.py")
STAGES = ("half written", "flushing", "renaming", "renamed", "removing")


class Server:
    """Runs of the target in processes of their own, killed on demand."""

    def __init__(self, folder: Path) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen([sys.executable, TARGET], stdin=pipe, stdout=pipe, text=True)
        self.reference = folder / "reference"
        self.run(folder / "first")  # waits until the server has started
        start = time.monotonic()
        self.stages = self.run(self.reference, slow=0.002)["seen"]
        self.duration = time.monotonic() - start

    def run(self, folder: Path, *, after: float | None = None, at: Any = None, slow: float = 0.0) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        folder.mkdir(exist_ok=True)
        order = {"folder": str(folder), "after": after, "at": at, "slow": slow}
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        reply: dict[str, Any] = json.loads(self.process.stdout.readline())
        assert reply["code"] == 0
        return reply


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    made = Server(tmp_path_factory.mktemp("runs"))
    yield made
    made.process.communicate()
    assert made.process.returncode == 0


def assert_as_if_never_killed(folder: Path, reference: Path) -> None:
    ends = [json.loads((run / "final.json").read_text()) for run in (folder, reference)]
    assert [name for name in ends[1] if ends[0][name] != ends[1][name]] == []
    assert (folder / "metrics.jsonl").read_bytes() == (reference / "metrics.jsonl").read_bytes()
    names = sorted(os.listdir(folder / "checkpoint"))
    assert names[-2:] == ["step-00000035.safetensors", "step-00000040.safetensors"]
    assert names[:-2] in ([], ["step-00000030.safetensors"])  # killed before it could be removed for the last one


def test_the_run_that_is_killed_cuts_units_on_the_way(server: Server) -> None:
    removed = [record["removed"] for record in Journal(server.reference / "metrics.jsonl")]
    assert sum(count > 0 for count in removed) >= 5
    assert sum(removed) > 10
    assert any(removed[20:])


def test_a_file_is_on_the_disk_before_it_gets_its_name(server: Server) -> None:
    last = len(server.stages) - server.stages[::-1].index("half written") - 1
    assert server.stages[last:] == [
        "half written", "flushing", "renaming", "renamed", "flushing", "removing", "removing", "written",
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("moment", range(17))
def test_killed_at_a_random_moment(server: Server, tmp_path: Path, moment: int) -> None:
    choice = random.Random(moment)
    folder, after = tmp_path / "run", choice.uniform(0.0, server.duration)
    while not server.run(folder, after=after, slow=0.002)["killed"]:  # it was faster than the reference
        shutil.rmtree(folder)
        after *= 0.8
    if choice.random() < 0.4:
        server.run(folder, after=choice.uniform(0.0, server.duration), slow=0.002)
    server.run(folder)
    assert_as_if_never_killed(folder, server.reference)


@pytest.mark.slow
@pytest.mark.parametrize("moment", range(8))
def test_killed_during_a_write(server: Server, tmp_path: Path, moment: int) -> None:
    choice, stage = random.Random(100 + moment), STAGES[moment % len(STAGES)]
    folder = tmp_path / "run"
    reply = server.run(folder, at=[stage, choice.randint(1, 8)])
    assert reply["killed"]
    assert reply["seen"][-1] == stage
    left = list((folder / "checkpoint").glob(".*.tmp"))
    assert len(left) == (stage in ("half written", "renaming"))
    if choice.random() < 0.4:
        server.run(folder, at=[choice.choice(STAGES), 1])
    server.run(folder)
    assert_as_if_never_killed(folder, server.reference)


@pytest.mark.slow
def test_killed_and_resumed_in_new_processes(server: Server, tmp_path: Path) -> None:
    command = [sys.executable, TARGET, tmp_path]
    process = subprocess.Popen(command)
    while not (tmp_path / "checkpoint" / "step-00000010.safetensors").exists():
        time.sleep(0.01)
        assert process.poll() is None
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    subprocess.run(command, check=True)
    assert_as_if_never_killed(tmp_path, server.reference)
