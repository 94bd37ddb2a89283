"""`nodedrop sweep`: λ × network × seed, several runs at a time."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import closing, redirect_stdout
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer
from rich.console import Console

from ..errors import InputError
from ..spelling import require_known
from .progress import (
    DataDirOption,
    DownloadOption,
    JsonOption,
    ProfileOption,
    Runs,
    SetOption,
    WorkersOption,
    outcomes_table,
    read_data,
    settings,
    summary,
)

if TYPE_CHECKING:
    from ..experiments.engines import Engine, Job, Outcome

EXAMPLE = (
    "Example: nodedrop sweep mnist --lam 0,1e-5,1e-4 --network mnist-dense160,mnist-dense640 --seed 0,1 "
    "--set epochs=5 --out runs --workers 2   ·   on a cluster: --engine ray --address auto --workers 32"
)
T = TypeVar("T")


def sweep(
    recipe: Annotated[str, typer.Argument(help="A recipe: mnist, cifar10-vgg16, …")],
    lam: Annotated[str | None, typer.Option(help="Values of λ; 0 is the dense ReLU network.", metavar="L,L,…")] = None,
    network: Annotated[str | None, typer.Option(help="Networks, your own too.", metavar="N,N,…")] = None,
    seed: Annotated[str, typer.Option(help="Seeds.", metavar="S,S,…")] = "0",
    profile: ProfileOption = "short",
    changes: SetOption = None,
    out: Annotated[Path, typer.Option(help="Each run has a folder in this one.")] = Path("runs"),
    workers: WorkersOption = 2,
    engine: Annotated[str, typer.Option(help="local: processes of this machine; ray: a Ray cluster.")] = "local",
    address: Annotated[
        str | None, typer.Option(help="The Ray cluster, host:port or auto; one is started here if left out.")
    ] = None,
    data_dir: DataDirOption = None,
    download: DownloadOption = False,
    as_json: JsonOption = False,
) -> None:
    """Train a recipe for all of some values of λ, networks and seeds.

    λ = 0 is the paper's dense baseline: no penalty, and ReLU in place of SoftClampedReLU unless --set activation=…
    says otherwise. Runs that have ended are not run again, and those broken off go on, so the same command continues a
    sweep that was stopped, killed, or had failures. Two sweeps over one folder share the work. If a run fails the
    others go on, and the exit code is 1. With --engine ray the runs are tasks of a Ray cluster whose machines share the
    folder.
    """
    from ..experiments.recipes import EXPERIMENTS
    from ..experiments.recipes import recipe as recipe_of
    from ..experiments.sweep import Grid, engine_of

    runner = engine_of(engine, workers, address)
    given = settings(changes)
    require_known(recipe, EXPERIMENTS, "there is no recipe")
    lams = values(lam, float, "lam") or (recipe_of(recipe, profile, given).lam,)
    grid = Grid(recipe, lams, values(network, str, "network"))
    jobs = grid.jobs(profile, values(seed, int, "seed") or (0,), out, given)
    outcomes = run_all(jobs, workers, data_dir, download, engine=runner)
    if as_json:
        typer.echo(json.dumps([_plain(outcome) for outcome in outcomes]))
    else:
        Console().print(outcomes_table(outcomes))
    if any(outcome.status != "done" for outcome in outcomes):
        raise typer.Exit(1)


def values(text: str | None, kind: Callable[[str], T], name: str) -> tuple[T, ...]:
    """What a list with commas holds."""
    words = [word.strip() for word in (text or "").split(",")]
    try:
        return tuple(kind(word) for word in words if word)
    except ValueError:
        raise InputError(f"--{name} needs numbers with commas in between, and got '{text}'") from None


def run_all(
    jobs: Sequence[Job],
    workers: int,
    data_dir: Path | None,
    download: bool,
    *,
    ended: Callable[[Job, Outcome], None] = lambda job, outcome: None,
    folders: Sequence[Path] = (),
    engine: Engine | None = None,
) -> list[Outcome]:
    """Run jobs and tell about them; their outcomes, in the order of the jobs.

    `ended` hears of each as it comes, and writes to `folders`: better to know before hours of work if it cannot. Unless
    another `engine` is given, they are processes of this machine.
    """
    from ..experiments.run import finished
    from ..experiments.sweep import Processes, sweep

    seen: set[str] = set()
    for job in jobs:
        if job.recipe.data not in seen and finished(job.recipe, job.folder) is None:
            seen.add(job.recipe.data)
            read_data(job.recipe, data_dir, download)
    for folder in {jobs[0].folder.parent, *folders}:
        _check_folder(folder)
    found: dict[str, Outcome] = {}
    longest = max(len(job.name) for job in jobs)
    placed = [replace(job, data_dir=data_dir) for job in jobs]
    try:
        # Engines of others print as they like; standard output is for the outcome alone.
        with redirect_stdout(sys.stderr), Runs(lines=False) as runs:
            chosen = Processes(workers) if engine is None else engine
            with closing(sweep(placed, chosen, lambda job, progress: runs.tell(job.name, progress))) as outcomes:
                for outcome in outcomes:
                    found[outcome.job.name] = outcome
                    runs.end(outcome.job.name)
                    said = summary(outcome.result) if outcome.result else f"{outcome.status}: {outcome.message}"
                    place = f"[{len(found):>{len(str(len(jobs)))}}/{len(jobs)}]"
                    runs.say(f"{place} {outcome.job.name:<{longest}}  {said}")
                    ended(outcome.job, outcome)
    except KeyboardInterrupt:
        again = shlex.join(["nodedrop", *sys.argv[1:]])
        typer.echo(
            f"stopped with {len(found)} of {len(jobs)} runs ended; go on with the same command: {again}", err=True
        )
        raise typer.Exit(130) from None
    return [found[job.name] for job in jobs]


def _check_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InputError(f"the folder '{folder}' cannot be written to: {error.strerror}; take another one") from None


def _plain(outcome: Outcome) -> dict[str, object]:
    return {
        "name": outcome.job.name,
        "folder": str(outcome.job.folder),
        "status": outcome.status,
        "message": outcome.message,
        "command": outcome.job.command,
        "result": outcome.result,
    }
