"""`nodedrop bench`: measure, print, record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from ..benchmarks import NAMES, benchmark
from ..errors import InputError


def bench(
    names: Annotated[list[str] | None, typer.Argument(help=f"Which: {', '.join(NAMES)}; all if left out.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="How often each side runs.")] = 9,
    threads: Annotated[int, typer.Option(min=0, help="Threads of torch; 0 leaves its own choice.")] = 0,
    results: Annotated[Path | None, typer.Option(help="Folder for the records, such as results/bench.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the records as JSON.")] = False,
) -> None:
    """Measure both sides of each figure in one process, interleaved, and print the ratios."""
    import torch
    from rich.console import Console

    from ..benchmarks.harness import write

    for name in names or NAMES:
        if name not in NAMES:
            raise InputError(f"there is no benchmark '{name}'; there are {', '.join(NAMES)}")
    if threads:
        torch.set_num_threads(threads)
    console = Console(stderr=as_json)
    records = []
    for name in names or NAMES:
        with console.status(f"{name}: {NAMES[name]}"):
            record = benchmark(name)(rounds)
        records.append(record)
        if results is not None:
            write(record, results)
        show(record, console)
    if as_json:
        typer.echo(json.dumps(records, indent=1))


def show(record: dict[str, Any], console: Any) -> None:
    """One table per benchmark."""
    from rich.table import Table

    machine = record["machine"]
    table = Table(
        title=record["benchmark"],
        caption=f"{machine['processor']}, {machine['threads']} threads, torch {machine['torch']}",
        caption_justify="left",
    )
    for title in ("ratio of times", "median", "middle half", "at most", ""):
        table.add_column(title, justify="left" if title == "ratio of times" else "right")
    for item in record["figures"]:
        limit = "" if item["limit"] is None else f"{item['limit']:g}"
        mark = {True: "kept", False: "missed", None: ""}[item["kept"]]
        table.add_row(item["name"], f"{item['ratio']:.3f}", f"{item['low']:.3f}–{item['high']:.3f}", limit, mark)
    console.print(table)
