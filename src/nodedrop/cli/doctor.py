"""`nodedrop doctor`: what this installation has, and what it lacks."""

from __future__ import annotations

import json
import os
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from .progress import DataDirOption


def doctor(
    data_dir: DataDirOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Tell versions, threads, devices, compiled kernels, data sets found, and how to install what is missing."""
    with Console(stderr=True).status("looking around"):
        found = {**_machine(), "kernels": _kernels(), "data": _data(data_dir), "extras": _extras()}
    if as_json:
        typer.echo(json.dumps(found))
        return
    console = Console()
    table = Table(show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name in ("nodedrop", "python", "system", "processor", "versions", "threads", "devices", "kernels"):
        value = found[name]
        table.add_row(name, Text(_words(value) if isinstance(value, dict) else str(value)))
    for title in ("data", "extras"):
        table.add_section()
        for name, words in found[title].items():
            table.add_row(f"{title} {name}", Text(words))
    console.print(table)


def _words(items: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in items.items())


def _machine() -> dict[str, Any]:
    import torch

    from .. import __version__
    from ..experiments.machine import machine, processor_of

    here = machine()
    devices = {"cpu": f"{here['cores']} cores"}
    devices |= {f"cuda:{k}": torch.cuda.get_device_name(k) for k in range(torch.cuda.device_count())}
    if torch.backends.mps.is_available():
        devices["mps"] = "Apple GPU"
    threads = {"torch": torch.get_num_threads(), "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "not set")}
    names = ("torch", "numpy", "safetensors", "typer", "rich")
    return {
        "nodedrop": __version__,
        "python": here["python"],
        "system": here["system"],
        "processor": processor_of(here),
        "versions": {name: _version(name) for name in names},
        "threads": threads,
        "devices": devices,
    }


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "missing"


def _kernels() -> str:
    from ..kernels import status

    return str(status())


def _data(data_dir: Any) -> dict[str, str]:
    """Every data set, read to see that it is whole."""
    from ..errors import InputError
    from ..experiments.data import SOURCES, load

    found = {}
    for name in SOURCES:
        try:
            data = load(name, None if name == "mnist" else data_dir)
        except InputError as error:
            found[name] = f"not there: {error}"
        else:
            found[name] = f"{len(data.train_images):,} images to train, {len(data.test_images):,} to test"
    return found


def _extras() -> dict[str, str]:
    from ..export.extras import EXTRAS, command, missing

    return {
        extra: f"without {', '.join(absent)}; {command(extra)}" if (absent := missing(extra)) else
        _words({name: _version(name) for name in EXTRAS[extra]})
        for extra in EXTRAS
    }  # fmt: skip
