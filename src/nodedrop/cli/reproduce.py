"""`nodedrop reproduce`: the runs behind a figure, table or argument of the paper, and their records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from ..spelling import require_known
from .progress import (
    DataDirOption,
    DownloadOption,
    JsonOption,
    ProfileOption,
    SetOption,
    WorkersOption,
    settings,
)
from .sweep import run_all, values

if TYPE_CHECKING:
    from ..experiments.sweep import Job, Outcome

EXAMPLE = "Example: nodedrop reproduce mnist-lambda --profile short --seeds 2 --workers 2"


def reproduce(
    name: Annotated[
        str,
        typer.Argument(
            help="mnist-lambda, mnist-sizes, mnist-long, exactness, cifar10-lambda, cifar10-table, cifar100-table, "
            "convergence, activations, penalties or text."
        ),
    ],
    profile: ProfileOption = "short",
    lam: Annotated[str | None, typer.Option(help="Only runs with these λ.", metavar="L,L,…")] = None,
    network: Annotated[str | None, typer.Option(help="Only runs of these networks.", metavar="N,N,…")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each recipe, with seeds from 0 on.")] = 1,
    changes: SetOption = None,
    out: Annotated[Path, typer.Option(help="Each run has a folder in this one.")] = Path("runs"),
    results: Annotated[Path, typer.Option(help="Where the records go, by experiment.")] = Path("results"),
    missing: Annotated[bool, typer.Option("--missing", help="Only runs that have no record yet.")] = False,
    workers: WorkersOption = 2,
    data_dir: DataDirOption = None,
    download: DownloadOption = False,
    as_json: JsonOption = False,
) -> None:
    """Run what a figure, a table or an argument of the paper rests on, and compare with its numbers.

    Each run that ends leaves a record, results/EXPERIMENT/NAME.json, with recipe, machine, versions and command. Runs
    that several figures share are made once. The same command goes on after Ctrl-C, a failure or a kill; with --missing
    on another machine, too, from the records alone.
    """
    from ..experiments.reproduce import REPRODUCTIONS, chosen, jobs_of, record, recorded
    from ..reporting import show

    require_known(name, REPRODUCTIONS, "there is no reproduction")
    jobs = jobs_of(name, profile, range(seeds), out, settings(changes))
    jobs = chosen(jobs, values(lam, float, "lam"), values(network, str, "network"))
    written: list[str] = []
    if missing:
        known = [job for job in jobs if recorded(job, results)]
        jobs = [job for job in jobs if job not in known]
        typer.echo(f"{len(known)} of {len(known) + len(jobs)} runs are recorded in '{results}'", err=True)

    def ended(job: Job, outcome: Outcome) -> None:
        if outcome.result is not None:
            written.append(str(record(job, outcome.result, results)))

    outcomes = run_all(jobs, workers, data_dir, download, ended=ended, folders=[results]) if jobs else []
    if as_json:
        failed = {outcome.job.name: outcome.message for outcome in outcomes if outcome.status != "done"}
        typer.echo(json.dumps({"reproduction": name, "records": written, "failed": failed}))
    elif written or not jobs:
        show(results, name, Console())
    if any(outcome.status != "done" for outcome in outcomes):
        raise typer.Exit(1)
