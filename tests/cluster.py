"""A sweep on a real Ray cluster of two workers: whatever is killed, no run is lost, and none is made twice.

Minutes, and a package of its own: pip install 'nodedrop[ray]', then python -m tests.cluster
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ray.cluster_utils import Cluster

from nodedrop.experiments.lock import held
from nodedrop.experiments.recipes import Recipe, changed
from nodedrop.experiments.run import train

TARGET = "tests.experiments.ray_target"
LAMS = ("1e-3", "2e-3", "3e-3")
START = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from nodedrop.cli import main; main()"


def start(folder: Path, *address: str) -> "subprocess.Popen[str]":
    """The command of a sweep of three runs of some seconds each."""
    command = [sys.executable, "-c", START, "sweep", "mnist", "--engine", "ray", "--workers", "2", "--json", *address]
    options = ["--lam", ",".join(LAMS), "--network", f"{TARGET}:net", "--out", str(folder / "runs")]
    changes = {"data": f"{TARGET}:data", "epochs": 150, "batch": 40, "evaluate": 50, "quiet": 0, "fade": 0}
    settings = [word for name, value in changes.items() for word in ("--set", f"{name}={value}")]
    environment = {**os.environ, "PYTHONPATH": ".", "NODEDROP_TEST_STARTS": str(folder / "starts")}
    return subprocess.Popen(
        [*command, *options, *settings], env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip


def starts(folder: Path) -> list[str]:
    path = folder / "starts"
    return path.read_text().split() if path.exists() else []


def until(happens: Callable[[], Any], seconds: float = 180) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := happens()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)
    return found


def with_checkpoint(folder: Path) -> list[Path]:
    """Folders of runs under way that could be gone on with."""
    found = {file.parents[1] for file in (folder / "runs").glob("*/checkpoint/step-*")}
    return [run for run in found if not (run / "result.json").exists()]


def at_work(folder: Path) -> Iterator[tuple[Path, int]]:
    """Those that a process is at, and which."""
    for run in with_checkpoint(folder):
        process = (run / "lock").read_text().strip()
        if held(run) and process:
            yield run, int(process)


def outcomes(process: "subprocess.Popen[str]") -> dict[str, dict[str, Any]]:
    said, complaint = process.communicate(timeout=300)
    assert process.returncode == 0, complaint
    assert "Traceback" not in complaint
    return {outcome["name"]: outcome for outcome in json.loads(said)}


def check_complete(folder: Path, found: dict[str, dict[str, Any]]) -> None:
    assert len(found) == len(LAMS)
    for outcome in found.values():
        assert outcome["status"] == "done"
        rows = [json.loads(line) for line in (Path(outcome["folder"]) / "metrics.jsonl").read_text().splitlines()]
        assert [row["epoch"] for row in rows] == [0, 50, 100, 150]


def test_killed_workers_and_drivers_cost_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with start(tmp_path) as driver:  # killed in the middle, and its workers with it
        until(lambda: with_checkpoint(tmp_path))
        os.killpg(driver.pid, signal.SIGKILL)
    until(lambda: not any(held(run) for run in (tmp_path / "runs").iterdir()))
    before = len(starts(tmp_path))

    with start(tmp_path) as driver:  # goes on, and loses a worker
        folder, worker = until(lambda: next(at_work(tmp_path), None))
        os.kill(worker, signal.SIGKILL)
        found = outcomes(driver)
    check_complete(tmp_path, found)
    assert len(starts(tmp_path)) == before + len(LAMS) + 1

    with start(tmp_path) as driver:  # has nothing left to do
        assert outcomes(driver) == found
    assert len(starts(tmp_path)) == before + len(LAMS) + 1

    monkeypatch.setenv("NODEDROP_TEST_STARTS", str(tmp_path / "alone"))
    killed = found[folder.name]["result"]
    alone = train(changed(Recipe(), killed["recipe"]), tmp_path / "alone-run")
    assert [row["train_loss"] for row in alone["epochs"]] == [row["train_loss"] for row in killed["epochs"]]


def test_a_machine_of_a_cluster_that_is_there_already_can_die(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two machines of one processor each, which are processes of this one, but do not know it."""
    monkeypatch.setenv("NODEDROP_TEST_STARTS", str(tmp_path / "starts"))
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        other = cluster.add_node(num_cpus=1)
        with start(tmp_path, "--address", cluster.address) as driver:
            until(lambda: len(list(at_work(tmp_path))) == 2)
            cluster.remove_node(other, allow_graceful=False)
            found = outcomes(driver)
    finally:
        cluster.shutdown()
    check_complete(tmp_path, found)
    assert len(starts(tmp_path)) == len(LAMS) + 1, "only the run of the machine that died was begun again"


def test_ctrl_c_leaves_checkpoints(tmp_path: Path) -> None:
    with start(tmp_path) as driver:
        until(lambda: len(with_checkpoint(tmp_path)) == 2)
        driver.send_signal(signal.SIGINT)
        complaint = driver.communicate(timeout=180)[1]
        assert driver.returncode == 130, complaint
    assert "stopped with 0 of 3 runs ended; go on with the same command: nodedrop sweep" in complaint
    assert "Traceback" not in complaint
    assert len(with_checkpoint(tmp_path)) == 2
    assert not any(held(run) for run in (tmp_path / "runs").iterdir())


if __name__ == "__main__":
    raise SystemExit(pytest.main(["-v", "--durations=0", __file__]))
