"""A Ray cluster: each job is a task, on whichever machine has room, and its folder on a file system they share."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...errors import InputError
from ...export.extras import needed
from ..run import Progress
from .jobs import Ending, Job, Outcome, Outcomes, Tell, ended
from .jobs import work as work_on

RETRIES = 3
_LOOK_SECONDS, _ANSWER_SECONDS = 0.5, 5.0


@dataclass
class Cluster:
    """An engine of Ray tasks, `workers` at a time, on the cluster at `address` or on one started here.

    A task whose worker or machine dies is run again by Ray, up to three times, and goes on from its checkpoint. The
    lock in the run's folder keeps a task that only seemed dead from being made twice.
    """

    workers: int = 2
    address: str | None = None

    def __post_init__(self) -> None:
        needed("ray", "the engine ray")
        if self.address is not None and self.address != "auto":
            _require_answer(self.address)

    def run(self, jobs: Iterable[Job], tell: Tell) -> Outcomes:
        """Run jobs; being closed, by Ctrl-C too, lets each write its checkpoint first."""
        waiting = [_placed(job) for job in jobs]
        if not waiting:
            return
        import ray
        from ray.util.queue import Queue

        with _connected(self.address, self.workers):
            news = Queue(actor_options={"num_cpus": 0})
            busy: dict[Any, Job] = {}
            try:
                while waiting or busy:
                    while waiting and len(busy) < self.workers:
                        job, absolute = waiting.pop(0)
                        work = ray.remote(num_cpus=job.threads, max_retries=RETRIES)(_work)
                        busy[work.remote(absolute, os.getcwd(), news)] = job
                    ready, _ = ray.wait(list(busy), timeout=_LOOK_SECONDS)
                    _pass_on(news, {job.name: job for job in busy.values()}, tell)
                    for task in ready:
                        yield _outcome(busy.pop(task), task)
            finally:
                _stop(list(busy))


def _placed(job: Job) -> tuple[Job, Job]:
    """A job, and the same one for a process with another working folder."""
    data_dir = None if job.data_dir is None else Path(job.data_dir).resolve()
    return job, replace(job, folder=job.folder.resolve(), data_dir=data_dir)


def _require_answer(address: str) -> None:
    """Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        raise InputError(f"the address of a Ray cluster is host:port, ray://host:port or auto, and not '{address}'")
    try:
        socket.create_connection((host, int(port)), timeout=_ANSWER_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise InputError(f"no Ray cluster answers at '{address}': {error}; see whether it runs: ray status") from None


@contextmanager
def _connected(address: str | None, workers: int) -> Iterator[None]:
    """A connection to the cluster; one started here has as many processors as workers, and ends with the sweep."""
    import ray

    if ray.is_initialized():
        yield
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    options: dict[str, Any] = {"address": address or "local", "logging_level": "error", "log_to_driver": False}
    options |= {"num_cpus": workers, "include_dashboard": False} if address is None else {}
    try:
        ray.init(**options)
    except Exception as error:
        where = "on this machine" if address is None else f"at '{address}'"
        said = (str(error) or type(error).__name__).splitlines()[0]
        hint = "" if address is None else "; one that asks for a token needs it on this machine, too"
        raise InputError(f"no Ray cluster can be used {where}: {said}{hint}") from None
    try:
        yield
    finally:
        ray.shutdown()


def _pass_on(news: Any, jobs: dict[str, Job], tell: Tell) -> None:
    for name, progress in news.get_nowait_batch(news.qsize()):
        if name in jobs:
            tell(jobs[name], progress)


def _outcome(job: Job, task: Any) -> Outcome:
    import ray

    try:
        return ended(job, ray.get(task))
    except ray.exceptions.TaskCancelledError:
        return Outcome(job, "stopped")
    except ray.exceptions.RayError as error:
        said = f"{type(error).__name__}: {(str(error) or 'no reason given').splitlines()[0]}"
        return Outcome(job, "failed", message=f"{said}; the next sweep goes on with it")


def _stop(tasks: list[Any]) -> None:
    """Ctrl-C for every task, which writes its checkpoint then; a second Ctrl-C here ends the wait."""
    import ray

    for task in tasks:
        ray.cancel(task)
    if tasks:
        ray.wait(tasks, num_returns=len(tasks))


def _work(job: Job, folder: str, news: Any) -> Ending:
    """A task, on any machine: modules of the user's own are looked for where the sweep was started."""

    def say(progress: Progress) -> None:
        with suppress(Exception):  # the driver may have gone; the run goes on
            news.put_nowait((job.name, progress))

    with suppress(OSError):
        os.chdir(folder)
    return work_on(job, say)
