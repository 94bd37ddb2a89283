"""`nodedrop bench`: measure, print, record, and write the page of all records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from ..benchmarks import NAMES, benchmark
from ..errors import InputError
from ..spelling import require_known
from .progress import DataDirOption, SetOption, settings

RESULTS = Path("results/bench")


def bench(
    names: Annotated[list[str] | None, typer.Argument(help=f"Which: {', '.join(NAMES)}; all if left out.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="How often each side runs.")] = 9,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds of whole runs (cifar, demo, peers, run).")] = 1,
    changes: SetOption = None,
    record: Annotated[Path | None, typer.Option(help="A run's result.json, whose widths inference is to take.")] = None,
    threads: Annotated[int, typer.Option(min=0, help="Threads of torch; 0 leaves its own choice.")] = 0,
    quick: Annotated[bool, typer.Option("--quick", help="Tiny networks: shows in seconds that it works.")] = False,
    results: Annotated[Path | None, typer.Option(help=f"Folder for the records, such as {RESULTS}.")] = None,
    page: Annotated[
        Path | None, typer.Option(help="Write this page from the records; without names, nothing is measured.")
    ] = None,
    data_dir: DataDirOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the records as JSON.")] = False,
) -> None:
    """Measure both sides of each figure in one process, interleaved, and print the ratios.

    --set changes the recipes of whole runs. Peers need the extra `bench`.
    """
    import torch

    from ..benchmarks.harness import Settings, write
    from ..reporting.benchmarks import write as write_page
    from ..training.atomic import make_folder

    chosen = names or ([] if page is not None else list(NAMES))
    for name in chosen:
        require_known(name, NAMES, "there is no benchmark")
    if quick and (results is not None or page is not None):
        raise InputError("the figures of --quick mean nothing and are not recorded; leave --results and --page out")
    if threads:
        torch.set_num_threads(threads)
    if results is not None and chosen:
        make_folder(results)  # better to know before hours of work if it cannot be
    given, console, made = settings(changes), Console(stderr=as_json), list[dict[str, Any]]()
    for name in chosen:
        with Stages(name) as stages:
            made.append(benchmark(name)(Settings(rounds, seeds, quick, given, record, data_dir, stages.tell)))
        if results is not None and made[-1]["figures"]:
            write(made[-1], results)
        show(made[-1], console)
    if page is not None:
        for path in write_page(results or RESULTS, page):
            console.print(f"wrote {path}", highlight=False, markup=False, soft_wrap=True)
    if as_json:
        typer.echo(json.dumps(made, indent=1))


class Stages:
    """What is being measured, and how far that is, on stderr: a bar on a terminal, a line for each stage elsewhere."""

    def __init__(self, name: str) -> None:
        self._console, self._name, self._words = Console(stderr=True), name, ""
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
        shown = self._console.is_terminal
        self._bar = Progress(*columns, console=self._console, transient=True, disable=not shown)
        self._task = self._bar.add_task(f"{name}: {NAMES[name]}", total=1.0)

    def __enter__(self) -> Stages:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def tell(self, words: str, done: float) -> None:
        """This share of what the words say is done."""
        self._bar.update(self._task, description=f"{self._name}: {words}", completed=done)
        if words != self._words and not self._console.is_terminal:
            self._console.print(f"{self._name}: {words}", highlight=False, markup=False, soft_wrap=True)
        self._words = words


def show(record: dict[str, Any], console: Console) -> None:
    """One table per benchmark, if anything was measured; a quick look is held against no limit."""
    if record["figures"]:
        console.print(_table(record))
    for what, why in record.get("missing", {}).items():
        console.print(f"not measured: {what}: {why}", highlight=False, markup=False, soft_wrap=True)


def _table(record: dict[str, Any]) -> Table:
    from ..experiments.machine import processor_of

    machine, quick = record["machine"], record["quick"]
    threads = f"{machine['threads']} thread{'s' * (machine['threads'] != 1)}"
    words = f"{processor_of(machine)}, {threads}, torch {machine['torch']}"
    if quick:
        words += "; a quick look, whose figures mean nothing"
    table = Table(title=record["benchmark"], caption=words, caption_justify="left")
    for title in ("figure", "median", "middle half", *(() if quick else ("at most", ""))):
        table.add_column(title, justify="left" if title == "figure" else "right")
    for item in record["figures"]:
        limit = "" if item["limit"] is None else f"{item['limit']:g}"
        mark = {True: "kept", False: "missed", None: ""}[item["kept"]]
        value = f"{item['ratio']:.3f}{' ' if item['unit'] else ''}{item['unit']}"
        told = (item["name"], value, f"{item['low']:.3f}–{item['high']:.3f}")
        table.add_row(*told, *(() if quick else (limit, mark)))
    return table
