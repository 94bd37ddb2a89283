"""`nodedrop train`: one run of a recipe, or of the user's own network and data."""

from __future__ import annotations

import json
import shlex
from contextlib import closing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
    read_data,
    result_table,
    settings,
)

if TYPE_CHECKING:
    from ..experiments.recipes import Recipe
    from ..experiments.run import Progress
    from ..reporting.tensorboard import Board

EXAMPLE = (
    "Example: nodedrop train mnist --set network=mnist-dense320 --set lam=1e-4 --out runs/first   ·   "
    "your own: nodedrop train --model package.module:network --data package.module:data --domain 0,1 --set epochs=5"
)


def train(
    recipe: Annotated[str | None, typer.Argument(help="A recipe: mnist, cifar10-vgg16, …", metavar="[RECIPE]")] = None,
    profile: ProfileOption = "short",
    changes: SetOption = None,
    model: Annotated[str | None, typer.Option(help="Your own network, module:factory.")] = None,
    data: Annotated[str | None, typer.Option(help="A data set's name, or your own, module:factory.")] = None,
    domain: Annotated[
        str | None, typer.Option(metavar="LO,HI", help="What images are scaled to, and the proofs cover.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run; runs/NAME if not given.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in the folder.")] = False,
    data_dir: DataDirOption = None,
    download: DownloadOption = False,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of torch.")] = None,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Write curves for TensorBoard to the folder's tensorboard/.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Train a network that shrinks as it learns.

    A recipe has all values of an experiment, each of which --set changes. Your own network starts from the values of
    the recipe mnist, unless you name another. Ctrl-C writes a checkpoint, from which --resume goes on.
    """
    import torch

    from ..experiments.run import finished
    from ..experiments.run import train as train_run

    own = {name: value for name, value in (("network", model), ("data", data), ("domain", domain)) if value is not None}
    given = settings(changes)
    if twice := sorted(own.keys() & given.keys()):
        raise InputError(f"{twice[0]} is given twice, by --set and by its own option; leave one out")
    given |= own
    chosen, folder = _chosen(recipe, profile, given, out, resume)
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        result = finished(chosen, folder, resume)
        if result is None:
            images = read_data(chosen, data_dir, download)
            if resume and not any((folder / "checkpoint").glob("*")):  # schedulers give --resume the first time, too
                typer.echo(f"nothing to resume in {folder}, beginning anew", err=True)
            with Runs(lines=True) as runs, _curves(folder) if tensorboard else nullcontext() as board:

                def watch(progress: Progress) -> None:
                    runs.tell("", progress)
                    if board is not None and progress.row is not None:
                        board.add(progress.row)

                result = train_run(chosen, folder, images, resume=resume, watch=watch)
    except KeyboardInterrupt:
        typer.echo(_stopped(folder, data_dir, threads), err=True)
        raise typer.Exit(130) from None
    if as_json:
        typer.echo(json.dumps({**result, "folder": str(folder)}))
        return
    console = Console()
    console.print(result_table(result))
    console.print(f"in {folder}", highlight=False, markup=False, soft_wrap=True)


def _curves(folder: Path) -> closing[Board]:
    from ..reporting.tensorboard import Board

    return closing(Board(folder / "tensorboard"))


def _stopped(folder: Path, data_dir: Path | None, threads: int | None) -> str:
    if not (folder / "config.json").exists():
        return "stopped before the run began"
    words = ["nodedrop", "train", "--resume", "--out", str(folder)]
    words += ["--data-dir", str(data_dir)] if data_dir is not None else []
    words += ["--threads", str(threads)] if threads is not None else []
    return f"stopped; go on with: {shlex.join(words)}"


def _chosen(
    name: str | None, profile: str, given: dict[str, str], out: Path | None, resume: bool
) -> tuple[Recipe, Path]:
    """The recipe and the folder. To go on, the folder is enough: it knows its recipe."""
    from ..experiments.recipes import EXPERIMENTS, Recipe, changed
    from ..experiments.recipes import recipe as recipe_of
    from ..experiments.run import configuration
    from ..experiments.sweep import name_of

    if name is None and resume and out is not None:
        stored = configuration(out)
        if stored is not None:
            return changed(Recipe(), {**stored, **given}), out
        if "network" not in given:
            raise InputError(f"'{out}' holds no run to go on with; leave --resume out to begin one")
    if name is None and "network" not in given:
        raise InputError("name a recipe, such as mnist, or your own network with --model module:factory")
    name = name or "mnist"
    require_known(name, EXPERIMENTS, "there is no recipe")
    chosen = recipe_of(name, profile, given)
    return chosen, out or Path("runs") / name_of(chosen, name, profile)
