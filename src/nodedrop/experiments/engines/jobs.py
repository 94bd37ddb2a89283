"""A run to be made, how it can end, and what an engine is."""

from __future__ import annotations

import shlex
import time
import traceback
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, Protocol

from ...errors import NodeDropError
from ..lock import InUseError
from ..recipes import EXPERIMENTS, Recipe
from ..run import Progress, Stop, finished, train

_TELL_SECONDS = 0.5
Status = Literal["done", "failed", "stopped", "busy"]
Ending = tuple[Status, str]


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
        pairs = [f"{name}={value}" for name, value in changes.items() if value != getattr(base, name)]
        words = [f"--set {shlex.quote(pair)}" for pair in pairs]
        return " ".join(
            ["nodedrop train", self.experiment, f"--profile {self.profile}", *words, f"--threads {self.threads}"]
        )


@dataclass(frozen=True)
class Outcome:
    """How a job ended. `busy`: another process is at it; `stopped`: a checkpoint waits to be gone on from."""

    job: Job
    status: Status
    result: Mapping[str, Any] | None = None
    message: str = ""


Tell = Callable[[Job, Progress], None]
Outcomes = Generator[Outcome, None, None]


class Engine(Protocol):
    """What runs jobs: it yields their outcomes as they come, and stops all of them when it is closed."""

    def run(self, jobs: Iterable[Job], tell: Tell) -> Outcomes: ...


def work(job: Job, say: Callable[[Progress], None], stop: Stop | None = None) -> Ending:
    """Make the run of a job in this process, going on with it if it was broken off, and tell how it ended.

    `say` hears now and then how far it is. Ctrl-C, or `stop` when it is true, end it with a checkpoint.
    """
    import torch

    torch.set_num_threads(job.threads)
    told = 0.0

    def watch(progress: Progress) -> None:
        nonlocal told
        if progress.row is not None or time.monotonic() - told > _TELL_SECONDS:
            told = time.monotonic()
            say(replace(progress, row=None))

    try:
        train(job.recipe, job.folder, resume=True, watch=watch, stop=stop, data_dir=job.data_dir)
    except KeyboardInterrupt:
        return "stopped", ""
    except InUseError as error:
        return "busy", str(error)
    except NodeDropError as error:
        return "failed", str(error)
    except Exception as error:
        said = (str(error) or "no reason given").splitlines()[0]
        with suppress(OSError):
            (job.folder / "error.txt").write_text(traceback.format_exc(), encoding="utf-8")
        return "failed", f"{type(error).__name__}: {said} (more in {job.folder / 'error.txt'})"
    return "done", ""


def ended(job: Job, ending: Ending) -> Outcome:
    """The outcome of a job; the result of one that is done lies in its folder."""
    status, message = ending
    return Outcome(job, status, finished(job.recipe, job.folder) if status == "done" else None, message)
