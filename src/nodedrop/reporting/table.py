"""A table as a value, and how it is written: plain text, Markdown, CSV, plain data."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .groups import Spread

Cell = str | int | float | Spread | None
ABSENT = "–"


@dataclass(frozen=True)
class Column:
    """A heading, and the format of its numbers; a column without format holds words."""

    name: str
    form: str = ""

    def show(self, cell: Cell) -> str:
        """For reading: rounded, with the deviation where runs differ.

        >>> Column("error", ".2f").show(Spread((0.7, 0.8))), Column("parameters", ",.0f").show(12345)
        ('0.75 ± 0.07', '12,345')
        """
        if cell is None:
            return ABSENT
        if isinstance(cell, Spread):
            std = cell.std
            return self.show(cell.mean) + (f" ± {self.show(std)}" if std else "")
        return cell if isinstance(cell, str) else f"{cell:{self.form}}"


@dataclass(frozen=True)
class Table:
    """A title, columns, rows of as many cells, and remarks."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()

    def cells(self) -> list[list[str]]:
        """The rows as they are read."""
        return [[column.show(cell) for column, cell in zip(self.columns, row, strict=True)] for row in self.rows]


def text(table: Table) -> str:
    """Columns lined up, numbers to the right."""
    head = [column.name for column in table.columns]
    body = table.cells()
    widths = [max(len(line[place]) for line in (head, *body)) for place in range(len(head))]

    def line(words: list[str]) -> str:
        pairs = zip(table.columns, words, widths, strict=True)
        return "  ".join(w.rjust(n) if column.form else w.ljust(n) for column, w, n in pairs).rstrip()

    lines = [table.title, line(head), "  ".join("-" * width for width in widths), *map(line, body)]
    return "\n".join([*lines, *table.notes]) + "\n"


def markdown(table: Table) -> str:
    """A pipe table under its title."""

    def line(words: list[str]) -> str:
        return "| " + " | ".join(word.replace("|", "\\|") for word in words) + " |"

    rule = "|" + "|".join("---:" if column.form else "---" for column in table.columns) + "|"
    lines = [f"**{table.title}**", "", line([column.name for column in table.columns]), rule]
    lines += [line(words) for words in table.cells()]
    return "\n".join([*lines, *(part for note in table.notes for part in ("", note))]) + "\n"


def comma_separated(table: Table) -> str:
    """Numbers in full; a column with deviations is followed by one that holds them."""
    plain = data(table)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(plain["columns"])
    writer.writerows(plain["rows"])
    return out.getvalue()


def data(table: Table) -> dict[str, Any]:
    """Title, columns, rows and notes as plain values, each mean with its deviation beside it."""
    columns: list[str] = []
    parts: list[list[Any]] = [[] for _ in table.rows]
    for place, column in enumerate(table.columns):
        cells = [row[place] for row in table.rows]
        spreads = any(isinstance(cell, Spread) for cell in cells)
        columns += [column.name, f"{column.name} std"] if spreads else [column.name]
        for part, cell in zip(parts, cells, strict=True):
            if isinstance(cell, Spread):
                part += [cell.mean, cell.std]
            else:
                part += [cell, None] if spreads else [cell]
    return {"title": table.title, "columns": columns, "rows": parts, "notes": list(table.notes)}


FORMATS: dict[str, Callable[[Table], str]] = {"text": text, "markdown": markdown, "csv": comma_separated}
