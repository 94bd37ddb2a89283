"""Records of runs become tables, figures and pages, with the paper's numbers beside them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from . import tables
from .records import Record, read
from .table import text
from .topics import REPRODUCTIONS, TOPICS, check, missing

__all__ = ["Record", "read", "show"]


def show(results_folder: Path, name: str, console: Any = None) -> None:
    """Print the tables of one reproduction (mnist-lambda, cifar10-table, …) or page, and what is missing for it.

    `console` is anything with rich's `print`; without one, text goes to standard output.
    """
    check(name)
    records, problems = read(Path(results_folder))
    made = (tables.for_topic if name in TOPICS else tables.for_reproduction)(records, name)
    parts = [text(table) for table in made]
    parts += [f"{sentence}\n" for sentence in (*missing(records, REPRODUCTIONS.get(name, name)), *problems)]
    if console is None:
        sys.stdout.write("\n".join(parts))
    else:
        console.print("\n".join(parts), markup=False, highlight=False, soft_wrap=True, end="")
