"""`nodedrop compact`: weights in, fewer weights out."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer
from rich.console import Console
from rich.text import Text

from ..errors import InputError
from .domains import DomainOption
from .progress import JsonOption
from .subject import BatchOption, BoundsOption, ModeOption, ShapeOption, as_options, subject_of

if TYPE_CHECKING:
    from typing import Literal

EXAMPLE = (
    "Example: nodedrop compact --model package.module:network --weights in.safetensors --out out.safetensors "
    "--domain 0,1 --example 2,3,32,32 --ledger ledger.jsonl"
)


def compact(
    model: Annotated[str, typer.Option(help="The network, package.module:factory or file.py:factory.")],
    weights: Annotated[Path, typer.Option(help="Its weights: safetensors, or a state_dict.")],
    out: Annotated[Path, typer.Option(help="Where the smaller weights go, as safetensors; nodedrop.load reads them.")],
    example: ShapeOption = None,
    domain: DomainOption = None,
    mode: ModeOption = "both",
    batch_size: BatchOption = None,
    bounds: BoundsOption = "interval",
    ledger: Annotated[Path | None, typer.Option(help="Where the certificates go; nodedrop verify checks them.")] = None,
    on_collapse: Annotated[
        str, typer.Option(help="If a layer would lose all its units: error, or keep one of them.")
    ] = "error",
    as_json: JsonOption = False,
) -> None:
    """Remove from a network what is proved to make no difference, and tell about every unit.

    The smaller network is compared with the original before anything is written. To use it, build the original and let
    nodedrop.load(model, "out.safetensors") bring it to the new widths. `nodedrop verify --before in.safetensors --after
    out.safetensors --ledger ledger.jsonl --model …` derives every certificate again.
    """
    from ..api import compact_
    from ..training import save
    from ..training.atomic import replacing

    if out.exists() and weights.exists() and out.samefile(weights):
        raise InputError(f"'{out}' holds the original weights; write the smaller ones to another file")
    if out.suffix in (".pt", ".pth", ".bin"):
        better = out.with_suffix(".safetensors")
        raise InputError(f"the smaller weights are written as safetensors; name the file '{better}'")
    for path in (out, ledger):
        if path is not None and not path.parent.is_dir():
            raise InputError(f"the folder '{path.parent}' of '{path.name}' does not exist; make it first")
    subject = subject_of(None, model, weights, domain, example, None, None)
    with ExitStack() as files, Console(stderr=True).status(Text(f"looking at {model}")):
        done = compact_(
            subject.model, subject.example, subject.domain, mode=mode, bounds=bounds, batch_size=batch_size,
            on_collapse=cast("Literal['error', 'keep']", on_collapse),
            ledger=None if ledger is None else files.enter_context(replacing(ledger)),
        )  # fmt: skip
        save(subject.model, out)
    if as_json:
        typer.echo(json.dumps({**done.to_json(), "file": str(out)}))
        return
    typer.echo(as_options(str(done)))
    if ledger is not None:
        typer.echo(f"wrote the certificates to {ledger}")
    typer.echo(f"wrote {out} ({out.stat().st_size:,} bytes; {weights} has {weights.stat().st_size:,})")
