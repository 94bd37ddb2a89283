"""The command line: the only place that prints or parses arguments."""

from __future__ import annotations


def main() -> None:
    """Entry point of the `nodedrop` command."""
    from .app import app

    app()
