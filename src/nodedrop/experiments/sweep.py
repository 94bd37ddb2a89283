"""Many runs: a grid of recipes, and an engine that runs them side by side.

A run that has ended is not run again, and one that was broken off goes on. Each is one process at a time, whoever
started it: two sweeps over one folder share the work.
"""

from __future__ import annotations

import multiprocessing
import re
import signal
import time
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, fields, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from multiprocessing.resource_tracker import ensure_running
from pathlib import Path
from typing import Any, Literal, Protocol, cast

from ..errors import InputError, NodeDropError
from .lock import InUseError, held
from .recipes import EXPERIMENTS, Recipe, baseline, changed
from .run import Progress, finished

_TELL_SECONDS = 0.5


@dataclass(frozen=True)
class Job:
    """A run to be made: its recipe, where it comes from, and its folder."""

    name: str
    recipe: Recipe
    folder: Path
    experiment: str = ""
    profile: str = ""
    data_dir: Path | None = None
    threads: int = 1

    @property
    def command(self) -> str:
        """The command line that makes this run alone."""
        base = EXPERIMENTS[self.experiment].profile(self.profile)
        changes = {f.name: getattr(self.recipe, f.name) for f in fields(Recipe)}
        words = [f"--set {name}={value}" for name, value in changes.items() if value != getattr(base, name)]
        return " ".join(
            ["nodedrop train", self.experiment, f"--profile {self.profile}", *words, f"--threads {self.threads}"]
        )


@dataclass(frozen=True)
class Outcome:
    """How a job ended. `busy`: another process is at it; `stopped`: a checkpoint waits to be gone on from."""

    job: Job
    status: Literal["done", "failed", "stopped", "busy"]
    result: Mapping[str, Any] | None = None
    message: str = ""


Tell = Callable[[Job, Progress], None]
Outcomes = Generator[Outcome, None, None]


class Engine(Protocol):
    """What runs jobs: it yields their outcomes as they come, and stops all of them when it is closed."""

    def run(self, jobs: Iterable[Job], tell: Tell) -> Outcomes: ...


@dataclass(frozen=True)
class Grid:
    """Networks × changes × λ of one experiment. λ = 0 is the dense network with ReLU, the paper's baseline.

    >>> grid = Grid("mnist", lams=(0.0, 1e-5), networks=("mnist-dense160", "mnist-dense640"))
    >>> [job.name for job in grid.jobs("short", seeds=[0], folder=Path("runs"))]
    ['mnist-dense160-lam0-seed0', 'mnist-dense160-lam1e-05-seed0',
     'mnist-dense640-lam0-seed0', 'mnist-dense640-lam1e-05-seed0']
    """

    experiment: str
    lams: tuple[float, ...]
    networks: tuple[str, ...] = ()  # the recipe's own
    changes: tuple[Mapping[str, Any], ...] = field(default=({},))

    def jobs(
        self, profile: str, seeds: Sequence[int], folder: Path, changes: Mapping[str, Any] | None = None
    ) -> list[Job]:
        """The jobs, seed by seed, with further changes to each recipe."""
        if self.experiment not in EXPERIMENTS:
            raise InputError(f"there is no recipe '{self.experiment}'; there are {', '.join(EXPERIMENTS)}")
        base, more = EXPERIMENTS[self.experiment].profile(profile), changes or {}
        varied = {"lam", "seed"}.union(*self.changes) | ({"network"} if self.networks else set())
        for name in varied.intersection(more):
            raise InputError(f"{name} is what the runs differ in, and cannot be set for all of them")
        made: dict[str, Job] = {}
        for seed in seeds:
            for network in self.networks or (str(more.get("network", base.network)),):
                for own in self.changes:
                    for lam in self.lams:
                        point = {"network": network, "lam": lam, "seed": seed}
                        recipe = changed(base, {**more, **own, **point})
                        recipe = baseline(recipe) if lam == 0 else recipe
                        name = name_of(recipe, self.experiment, profile)
                        made[name] = Job(name, recipe, folder / name, self.experiment, profile)
        return list(made.values())


def name_of(recipe: Recipe, experiment: str, profile: str) -> str:
    """A name that tells a run from all others: network, λ, seed, and whatever else the recipe has changed.

    >>> name_of(replace(EXPERIMENTS["mnist"].short, epochs=3), "mnist", "short")
    'mnist-dense160-lam1e-05-seed0-epochs-3'
    """
    plain = EXPERIMENTS[experiment].profile(profile)
    plain = baseline(plain) if recipe.lam == 0 else plain
    told = {"lam", "seed"}
    words = [experiment, f"lam{lam_of(recipe.lam)}", f"seed{recipe.seed}"]
    if recipe.network.startswith(f"{experiment}-"):
        words[0], told = recipe.network, told | {"network"}
    if profile != "short":
        words.append(profile)
    for name in (f.name for f in fields(Recipe)):
        value = getattr(recipe, name)
        if name not in told and value != getattr(plain, name):
            words.append(f"{name}-{value:g}" if isinstance(value, float) else f"{name}-{value}")
    return re.sub(r"[^\w.+-]+", "-", "-".join(words))


def lam_of(lam: float) -> str:
    """λ always with its exponent.

    >>> lam_of(1e-4), lam_of(0.00032), lam_of(0)
    ('1e-04', '3.2e-04', '0')
    """
    mantissa, _, exponent = f"{lam:e}".partition("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{exponent}" if lam else "0"


def sweep(jobs: Iterable[Job], engine: Engine, tell: Tell) -> Outcomes:
    """Run jobs and yield their outcomes: first those already done, then the others as they come.

    A job that another process is at comes last, when that has ended.
    """
    waiting: list[Job] = []
    for job in jobs:
        try:
            result = finished(job.recipe, job.folder)
        except InputError as error:
            yield Outcome(job, "failed", message=str(error))
            continue
        if result is None:
            waiting.append(job)
        else:
            yield Outcome(job, "done", result)
    while waiting:
        ready = [job for job in waiting if not held(job.folder)]
        waiting = [job for job in waiting if job not in ready]
        with closing(engine.run(ready, tell)) as outcomes:
            for outcome in outcomes:
                if outcome.status == "busy":
                    waiting.append(outcome.job)
                else:
                    yield outcome
        if waiting:
            time.sleep(1.0)


@dataclass
class Processes:
    """An engine of processes on this machine. Each job has a fresh one, and one torch thread."""

    workers: int = 2

    def run(self, jobs: Iterable[Job], tell: Tell) -> Outcomes:
        """Run jobs; being closed, by Ctrl-C too, lets each write its checkpoint first."""
        waiting, busy = list(jobs), dict[Connection, tuple[Job, SpawnProcess]]()
        try:
            while waiting or busy:
                while waiting and len(busy) < self.workers:
                    job = waiting.pop(0)
                    connection, process = _start(job)
                    busy[connection] = job, process
                for ready in cast("list[Connection]", wait(list(busy))):
                    message = _received(ready)
                    job, process = busy[ready]
                    if isinstance(message, Progress):
                        tell(job, message)
                        continue
                    del busy[ready]
                    process.join()
                    ready.close()
                    yield _outcome(job, message, process.exitcode)
        finally:
            _stop(busy)


def _outcome(job: Job, message: Any, code: int | None) -> Outcome:
    """What came of a job whose process has ended with a message, or without one."""
    if message == ("done", ""):
        return Outcome(job, "done", finished(job.recipe, job.folder))
    if isinstance(message, tuple):
        return Outcome(job, message[0], message=message[1])
    return Outcome(job, "failed", message=f"its process ended with code {code}; the next sweep goes on with it")


def _received(connection: Connection) -> Any:
    try:
        return connection.recv()
    except (EOFError, OSError):
        return None


def _start(job: Job) -> tuple[Connection, SpawnProcess]:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_work, args=(job, there), name=job.name)
    with _shielded():
        process.start()
    there.close()
    return here, process


@contextmanager
def _shielded() -> Iterator[None]:
    """Processes started here never see Ctrl-C; the engine tells them to stop."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    ensure_running()  # it would lift the block when it starts later
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _stop(busy: Mapping[Connection, tuple[Job, SpawnProcess]]) -> None:
    """Ask all to write their checkpoints and end; a second Ctrl-C ends them at once."""
    try:
        for connection in busy:
            with suppress(OSError):
                connection.send("stop")
        for _, process in busy.values():
            process.join()
    except BaseException:
        for _, process in busy.values():
            process.kill()
        raise


def _work(job: Job, driver: Connection) -> None:
    """A process: whatever comes from the driver, even its end, is the word to stop."""
    import torch

    from .run import train

    torch.set_num_threads(job.threads)
    told = 0.0

    def watch(progress: Progress) -> None:
        nonlocal told
        if progress.row is not None or time.monotonic() - told > _TELL_SECONDS:
            told = time.monotonic()
            with suppress(OSError):
                driver.send(replace(progress, row=None))

    try:
        train(job.recipe, job.folder, resume=True, watch=watch, stop=driver.poll, data_dir=job.data_dir)
        message = ("done", "")
    except KeyboardInterrupt:
        message = ("stopped", "")
    except InUseError as error:
        message = ("busy", str(error))
    except NodeDropError as error:
        message = ("failed", str(error))
    except Exception as error:
        said = (str(error) or "no reason given").splitlines()[0]
        message = ("failed", f"{type(error).__name__}: {said} (more in {job.folder / 'error.txt'})")
        with suppress(OSError):
            (job.folder / "error.txt").write_text(traceback.format_exc(), encoding="utf-8")
    with suppress(OSError):
        driver.send(message)
