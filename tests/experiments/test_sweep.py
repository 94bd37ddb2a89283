"""Many runs: which they are, and that none is lost or done twice, whatever is stopped or killed."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import pytest
from tests.experiments.own_target import OWN

from nodedrop.errors import InputError
from nodedrop.experiments.lock import held, locked
from nodedrop.experiments.recipes import Recipe, changed
from nodedrop.experiments.run import Progress, finished, train
from nodedrop.experiments.sweep import Grid, Job, Outcome, Outcomes, Processes, Tell, name_of, sweep

MODULE = str(OWN["network"]).partition(":")[0]
NET, WIDE, BROKEN = (f"{MODULE}:{name}" for name in ("net", "wide", "broken"))
COMMON = {key: value for key, value in OWN.items() if key != "network"}


def quiet(job: Job, progress: Progress) -> None:
    pass


class Here:
    """The smallest engine: one job after the other, in this process."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    def run(self, jobs: Iterable[Job], tell: Tell) -> Outcomes:
        for job in jobs:
            self.ran.append(job.name)
            yield Outcome(job, "done", train(job.recipe, job.folder, resume=True, watch=lambda p, j=job: tell(j, p)))


def tiny(folder: Path, *networks: str, lams: tuple[float, ...] = (1e-3,), **changes: object) -> list[Job]:
    return Grid("mnist", lams, networks or (NET,)).jobs("short", [0], folder, {**COMMON, **changes})


def test_a_grid_is_every_network_and_lam_for_one_seed_after_the_other() -> None:
    grid = Grid("mnist", (0.0, 1e-4), ("mnist-dense160", "mnist-dense640"))
    jobs = grid.jobs("short", [0, 1], Path("runs"))
    assert [job.name for job in jobs[:3]] == [
        "mnist-dense160-lam0-seed0", "mnist-dense160-lam1e-04-seed0", "mnist-dense640-lam0-seed0",
    ]  # fmt: skip
    assert [job.recipe.seed for job in jobs] == [0] * 4 + [1] * 4
    assert (jobs[0].recipe.lam, jobs[0].recipe.activation) == (0.0, "relu")
    assert (jobs[1].recipe.lam, jobs[1].recipe.activation) == (1e-4, "")


def test_names_tell_runs_apart() -> None:
    def jobs(profile: str = "short", **changes: object) -> list[Job]:
        return Grid("mnist", (1e-5,)).jobs(profile, [0], Path("runs"), changes)

    made = [*jobs(), *jobs("paper"), *jobs(epochs=3), *jobs(width=0.5), *jobs(activation="relu"), *jobs(network=NET)]
    assert len({job.name for job in made}) == len(made)
    assert made[1].name == "mnist-dense160-lam1e-05-seed0-paper"
    assert all("/" not in job.name and ":" not in job.name for job in made)


def test_the_command_of_a_job_makes_the_same_run() -> None:
    job = Grid("cifar10-vgg16", (1e-4,)).jobs("paper", [3], Path("runs"), {"epochs": 2})[0]
    assert (
        job.command
        == "nodedrop train cifar10-vgg16 --profile paper --set epochs=2 --set lam=0.0001 --set seed=3 --threads 1"
    )


@pytest.mark.parametrize("name", ["lam", "seed", "network"])
def test_what_runs_differ_in_cannot_be_set_for_all(name: str) -> None:
    with pytest.raises(InputError, match=f"^{name} is what the runs differ in"):
        Grid("mnist", (1e-5,), ("mnist-dense160",)).jobs("short", [0], Path("runs"), {name: "1"})


def test_a_finished_run_is_not_run_again_and_a_foreign_one_is_left_alone(tmp_path: Path) -> None:
    engine, jobs = Here(), tiny(tmp_path, NET, WIDE)
    seen: set[str] = set()
    first = list(sweep(jobs, engine, lambda job, progress: seen.add(job.name)))
    assert engine.ran == [job.name for job in jobs] == sorted(seen)
    again = list(sweep(jobs, engine, quiet))
    assert len(engine.ran) == 2
    assert [outcome.result for outcome in again] == [outcome.result for outcome in first]
    (jobs[0].folder / "config.json").write_text("{}")
    third = list(sweep(jobs, engine, quiet))
    assert [outcome.status for outcome in third] == ["failed", "done"]
    assert "take another folder" in third[0].message


def test_a_run_in_other_hands_comes_last(tmp_path: Path) -> None:
    jobs, engine = tiny(tmp_path, NET, WIDE), Here()
    with closing(sweep(jobs, engine, quiet)) as outcomes:
        with locked(jobs[0].folder):
            assert next(outcomes).job.name == jobs[1].name
        assert next(outcomes).job.name == jobs[0].name
        assert next(outcomes, None) is None


def test_a_failure_and_a_kill_do_not_stop_the_others(tmp_path: Path) -> None:
    jobs = [*tiny(tmp_path, BROKEN), *tiny(tmp_path, WIDE, epochs=10**6), *tiny(tmp_path, NET)]

    def kill(job: Job, progress: Progress) -> None:
        if job is jobs[1]:
            os.kill(int((job.folder / "lock").read_text()), signal.SIGKILL)

    found = {outcome.job.name: outcome for outcome in sweep(jobs, Processes(2), kill)}
    broken, killed, done = (found[job.name] for job in jobs)
    assert (broken.status, killed.status, done.status) == ("failed", "failed", "done")
    assert "RuntimeError: out of luck" in broken.message
    assert "ended with code -9" in killed.message
    assert "out of luck" in (jobs[0].folder / "error.txt").read_text()
    assert done.result is not None
    assert done.result["recipe"]["network"] == NET


def test_stopping_leaves_checkpoints_that_are_gone_on_from(tmp_path: Path) -> None:
    jobs = tiny(tmp_path, NET, WIDE, epochs=100, evaluate=50)

    class Enough(Exception):
        pass

    started: set[str] = set()

    def stop(job: Job, progress: Progress) -> None:
        started.add(job.name)
        if len(started) == 2:
            raise Enough

    with pytest.raises(Enough), closing(sweep(jobs, Processes(2), stop)) as outcomes:
        list(outcomes)
    for job in jobs:
        assert not held(job.folder)
        assert finished(job.recipe, job.folder) is not None or list(job.folder.glob("checkpoint/step-*"))
    ended = list(sweep(jobs, Here(), quiet))
    assert [outcome.status for outcome in ended] == ["done", "done"]
    for outcome in ended:
        assert outcome.result is not None
        train(outcome.job.recipe, tmp_path / f"{outcome.job.name}-alone")
        alone = finished(outcome.job.recipe, tmp_path / f"{outcome.job.name}-alone")
        assert alone is not None
        assert alone["epochs"][-1]["train_loss"] == outcome.result["epochs"][-1]["train_loss"]


DRIVER = """
import sys
from pathlib import Path
from nodedrop.experiments.sweep import Processes, sweep
from tests.experiments.test_sweep import NET, tiny
if __name__ == "__main__":
    jobs = tiny(Path(sys.argv[1]), NET, epochs=10**6)
    list(sweep(jobs, Processes(1), lambda job, progress: print("going", flush=True)))
"""


def test_runs_of_a_killed_driver_write_a_checkpoint_and_end(tmp_path: Path) -> None:
    job = tiny(tmp_path, NET, epochs=10**6)[0]
    command = [sys.executable, "-c", DRIVER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": "."}) as driver:
        assert driver.stdout is not None
        assert driver.stdout.readline() == "going\n"
        assert held(job.folder)
        driver.kill()
    deadline = time.monotonic() + 60
    while held(job.folder) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not held(job.folder)
    assert list(job.folder.glob("checkpoint/step-*"))


def test_long_names_are_cut_and_still_tell_runs_apart() -> None:
    long = f"package.{'module' * 40}:net"
    made = [changed(Recipe(), {"network": long, "lr": lr}) for lr in (1e-3, 2e-3)]
    names = {name_of(recipe, "mnist", "short") for recipe in made}
    assert len(names) == 2
    assert all(len(name) <= 150 for name in names)
