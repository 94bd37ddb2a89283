"""`nodedrop export`: a file that runs without nodedrop."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from ..errors import InputError
from .domains import DomainOption
from .progress import DataDirOption, JsonOption
from .subject import (
    ModelOption,
    RunArgument,
    SamplesOption,
    ShapeOption,
    WeightsOption,
    subject_of,
)

if TYPE_CHECKING:
    from ..export import Exported, Quantized

EXAMPLE = (
    "Example: nodedrop export runs/first --onnx model.onnx --int8   ·   your own: nodedrop export "
    "--model package.module:network --weights model.safetensors --example 2,3,32,32 --pt2 model.pt2"
)


def export(
    run: RunArgument = None,
    onnx: Annotated[Path | None, typer.Option(help="Write an ONNX file.")] = None,
    pt2: Annotated[Path | None, typer.Option(help="Write a file for torch.export.load.")] = None,
    multiple: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Fill up convolutions of the ONNX file with units of 0 to a multiple: runs faster; 1 leaves them.",
            show_default="8",
        ),
    ] = None,
    int8: Annotated[bool, typer.Option("--int8", help="Beside the ONNX file, one of int8, from samples.")] = False,
    model: ModelOption = None,
    weights: WeightsOption = None,
    domain: DomainOption = None,
    example: ShapeOption = None,
    samples: SamplesOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a network, from a run's folder or your own, as ONNX or .pt2, for any batch size.

    The file is run at once, ONNX with ONNX Runtime, at two batch sizes, and compared with the module. One that differs
    by more than rounding (1e-5, relative) is not kept, and the exit code is 1.
    """
    from ..export import FAST, DifferenceError, needed, quantize, write_onnx, write_pt2

    if onnx is None and pt2 is None:
        raise InputError("say what to write: --onnx model.onnx or --pt2 model.pt2")
    if multiple is not None and onnx is None:
        raise InputError("--multiple goes with --onnx: other files keep the widths that the network has")
    if int8 and onnx is None:
        raise InputError("--int8 goes with --onnx: the int8 file is made from the ONNX file")
    for path in (path for path in (onnx, pt2) if path is not None):
        if not path.parent.is_dir():
            raise InputError(f"the folder '{path.parent}' does not exist; make it first")
    if onnx is not None and onnx.suffix in (".pt", ".pth", ".pt2", ".safetensors"):
        raise InputError(f"--onnx writes ONNX; name the file '{onnx.with_suffix('.onnx')}'")
    if onnx is not None:
        needed("onnx", "--onnx")
    subject = subject_of(run, model, weights, domain, example, samples, data_dir)
    if int8 and subject.samples is None:
        raise InputError("--int8 is calibrated on samples; name some with --samples, or export a run")
    done: dict[str, dict[str, Any]] = {}
    with Console(stderr=True).status(Text(f"exporting {subject.name}")):
        try:
            if onnx is not None:
                done["onnx"] = _plain(write_onnx(subject.model, subject.example, onnx, multiple=multiple or FAST))
            if pt2 is not None:
                done["pt2"] = _plain(write_pt2(subject.model, subject.example, pt2))
        except DifferenceError as error:
            typer.echo(f"nodedrop: {error}", err=True)
            raise typer.Exit(1) from None
        if int8 and onnx is not None and subject.samples is not None:
            small = quantize(onnx, onnx.with_suffix(".int8.onnx"), subject.samples, subject.labels)
            done["int8"] = _plain(small)
    if as_json:
        typer.echo(json.dumps(done))
        return
    for kind, found in done.items():
        typer.echo(_SENTENCES[kind](found))


def _plain(found: Exported | Quantized) -> dict[str, Any]:
    return {**asdict(found), "path": str(found.path), "difference": found.difference}


def _exported(found: dict[str, Any], by: str) -> str:
    parts = " and ".join(f"{value:.1e} for a batch of {rows}" for rows, value in found["differences"].items())
    text = f"wrote {found['path']} ({found['bytes']:,} bytes); run with {by}, it differs from the module by {parts}"
    if not found["filled"]:
        return text
    some = "1 convolution was" if found["filled"] == 1 else f"{found['filled']} convolutions were"
    filled = f"{some} filled up with units of 0 to multiples of {found['multiple']}; --multiple 1 keeps the widths"
    return f"{text}\n{filled}"


def _quantized(found: dict[str, Any]) -> str:
    text = (
        f"wrote {found['path']} ({found['bytes_float']:,} → {found['bytes']:,} bytes); on {found['samples']:,} samples "
        f"an output changes by {found['difference']:.1e} at most (relative)"
    )
    if found["error"] is None:
        return text
    return f"{text}, and the error goes from {found['error_float']:.2f} % to {found['error']:.2f} %"


_SENTENCES: dict[str, Callable[[dict[str, Any]], str]] = {
    "onnx": lambda found: _exported(found, "ONNX Runtime"),
    "pt2": lambda found: _exported(found, "torch.export.load"),
    "int8": _quantized,
}
