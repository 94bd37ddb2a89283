"""The commands of `nodedrop`."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from .. import __version__

app = typer.Typer(
    name="nodedrop",
    help="Prove which units of a network can never fire, and remove exactly those.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command(epilog="Example: nodedrop demo --json")
def demo(
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of the network's weights.")] = 0,
) -> None:
    """Take a small network with dead, constant and unread units, and watch them go."""
    from .demo import run

    outcome = run(seed)
    if as_json:
        typer.echo(json.dumps(outcome.to_json(), indent=2))
        return
    from rich.console import Console

    outcome.show(Console())
