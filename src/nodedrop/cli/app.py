"""The commands of `nodedrop`."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from .. import __version__
from ..errors import NodeDropError
from . import bench, compact, demo, doctor, export, inspect, report, reproduce, sweep, train, verify
from .subject import with_remedy


class _Commands(TyperGroup):
    """The one edge at which a mistake becomes a sentence."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except NodeDropError as error:
            command = self.commands.get(ctx.invoked_subcommand or "")
            takes_example = command is not None and any(option.name == "example" for option in command.params)
            typer.echo(f"nodedrop: {with_remedy(str(error)) if takes_example else error}", err=True)
            raise typer.Exit(2) from None


app = typer.Typer(
    name="nodedrop",
    cls=_Commands,
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


app.command(epilog="Example: nodedrop demo --out demo")(demo.demo)
app.command(epilog=train.EXAMPLE)(train.train)
app.command(epilog=sweep.EXAMPLE)(sweep.sweep)
app.command(epilog=reproduce.EXAMPLE)(reproduce.reproduce)
app.command(epilog=inspect.EXAMPLE)(inspect.inspect)
app.command(epilog=compact.EXAMPLE)(compact.compact)
app.command(epilog=export.EXAMPLE)(export.export)
app.command(epilog="Example: nodedrop report results --pages docs/results")(report.report)
app.command(epilog="Example: nodedrop bench cost --threads 1")(bench.bench)
app.command(epilog="Example: nodedrop doctor --json")(doctor.doctor)
app.command(epilog=verify.EXAMPLE)(verify.verify)
