"""`nodedrop report`: tables, figures and pages from the records of runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from ..errors import InputError


def report(
    results: Annotated[list[Path] | None, typer.Argument(help="Folder with records, or run folders. [results]")] = None,
    name: Annotated[str, typer.Option(help="One page or figure alone: mnist, cifar10-table, convergence, …")] = "",
    form: Annotated[str, typer.Option("--format", help="text, markdown or csv.")] = "text",
    figures: Annotated[Path | None, typer.Option(help="Write the figures here, as PNG and SVG.")] = None,
    pages: Annotated[Path | None, typer.Option(help="Write Markdown pages with figures here.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write one page about these run folders here.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the tables as JSON.")] = False,
) -> None:
    """Tables and figures of finished runs, with the paper's numbers beside them."""
    try:
        folders = results or [Path("results")]
        if html is not None:
            _page(folders, html, as_json)
        elif len(folders) > 1:
            raise InputError("tables and figures are made of one folder of records; several run folders go with --html")
        else:
            _report(folders[0], name, form, figures, pages, as_json)
    except InputError as error:
        typer.echo(f"nodedrop report: {error}", err=True)
        raise typer.Exit(2) from None


def _page(folders: list[Path], path: Path, as_json: bool) -> None:
    from ..reporting.html import view, write_html

    views = []
    for folder in _runs(folders):
        try:
            views.append(view(folder))
        except InputError as error:
            typer.echo(f"warning: {error}", err=True)
    if not views:
        raise InputError(f"there is no run to show in {', '.join(f'{str(f)!r}' for f in folders)}")
    write_html(views, path)
    told = f"wrote {path} about {len(views)} run{'s' * (len(views) > 1)}"
    typer.echo(json.dumps({"page": str(path), "runs": len(views)}) if as_json else told)


def _runs(folders: list[Path]) -> list[Path]:
    """Run folders among these, or below them."""
    return [run for f in folders for run in ([f] if (f / "config.json").exists() else _below(f))]


def _below(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise InputError(f"there is no folder '{folder}'")
    return sorted(path.parent for path in folder.rglob("config.json"))


def _report(results: Path, name: str, form: str, figures: Path | None, pages: Path | None, as_json: bool) -> None:
    from ..reporting import figures as drawing
    from ..reporting import pages as writing
    from ..reporting import tables, topics
    from ..reporting.records import read
    from ..reporting.table import FORMATS, data
    from ..training.atomic import made as make_folder

    if form not in FORMATS:
        raise InputError(f"there is no format '{form}'; there are {', '.join(FORMATS)}")
    if name:
        topics.check(name)
    records, problems = read(results)
    for problem in problems:
        typer.echo(f"warning: {problem}", err=True)
    if not records:
        raise InputError(f"'{results}' holds no record of a run; `nodedrop reproduce mnist-lambda` makes some")
    chosen = [name] if name else list(topics.TOPICS)
    made = []
    for each in chosen:
        made += (tables.for_topic if each in topics.TOPICS else tables.for_reproduction)(records, each)
    if not name and (other := tables.others(topics.rest(records))) is not None:
        made.append(other)
    if (running := tables.unfinished(records)) is not None:
        made.append(running)
    files: list[Path] = []
    if figures is not None:
        make_folder(figures)
        for topic in dict.fromkeys(topics.REPRODUCTIONS.get(each, each) for each in chosen):
            files += [path for picture in drawing.for_topic(records, topic) for path in drawing.write(picture, figures)]
    if pages is not None:
        files += writing.write(records, pages, results)
    lacking = topics.missing(records, topics.REPRODUCTIONS.get(name, name)) if name else []
    if as_json:
        outcome = {"tables": [data(t) for t in made], "missing": lacking, "problems": problems}
        typer.echo(json.dumps(outcome | {"files": [str(path) for path in files]}, indent=2, ensure_ascii=False))
        return
    typer.echo("\n".join(FORMATS[form](table) for table in made), nl=False)
    for sentence in (*lacking, *(f"wrote {path}" for path in files)):
        typer.echo(sentence, err=form != "text")
