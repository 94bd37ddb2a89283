"""Processes of this machine."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from multiprocessing.resource_tracker import ensure_running
from typing import Any, cast

from ..run import Progress
from .jobs import Job, Outcomes, Tell, ended, work


@dataclass
class Processes:
    """An engine of processes on this machine. Each job has a fresh one, and one torch thread."""

    workers: int = 2

    def run(self, jobs: Iterable[Job], tell: Tell) -> Outcomes:
        """Run jobs; being closed, by Ctrl-C too, lets each write its checkpoint first."""
        waiting, busy = list(jobs), dict[Connection, tuple[Job, BaseProcess]]()
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
                    silent = f"its process ended with code {process.exitcode}; the next sweep goes on with it"
                    yield ended(job, message or ("failed", silent))
        finally:
            _stop(busy)


def _received(connection: Connection) -> Any:
    try:
        return connection.recv()
    except (EOFError, OSError):
        return None


def _start(job: Job) -> tuple[Connection, BaseProcess]:
    context = _context()
    here, there = context.Pipe()
    process: BaseProcess = context.Process(target=_work, args=(job, there), name=job.name)  # type: ignore[attr-defined]
    with _shielded():
        process.start()
    there.close()
    return here, process


def _context() -> BaseContext:
    """Processes forked from one that has torch loaded and has computed nothing, where the system forks."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([f"{__package__}.warm"])
    return context


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


def _stop(busy: Mapping[Connection, tuple[Job, BaseProcess]]) -> None:
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

    def say(message: object) -> None:
        with suppress(OSError):
            driver.send(message)

    say(work(job, say, driver.poll))
