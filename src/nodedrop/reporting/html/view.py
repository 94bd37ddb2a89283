"""What the page shows of a run, read from its folder."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from ...errors import InputError
from ...training.atomic import reason
from ..records import Record, read_run


@dataclass(frozen=True)
class Layer:
    """A layer's units, by the step at which each left; `null` for those that stay."""

    name: str
    left: tuple[int | None, ...]


@dataclass(frozen=True)
class RunView:
    """A run as the page needs it. `traced` is whether the ledger told which units left, or only how many did."""

    record: Record
    rows: tuple[Mapping[str, Any], ...]
    layers: tuple[Layer, ...]
    traced: bool
    ledger: Mapping[str, Any] | None
    verdict: Mapping[str, Any] | None

    def to_json(self) -> dict[str, Any]:
        """Plain data for the page's script."""
        record = self.record
        return {
            "name": record.name, "network": record.recipe.network, "data": record.recipe.data,
            "lam": record.recipe.lam, "seed": record.recipe.seed, "finished": record.finished,
            "error": record.test_error, "error_before": record.test_error_before_cut,
            "changed": record.predictions_changed, "cut_change": max(record.cut_change or 0.0, record.logit_change),
            "parameters": record.parameters, "parameters_dense": record.parameters_dense,
            "units": record.units, "units_dense": record.units_dense, "seconds": record.seconds,
            "cutting": record.cutting, "machine": dict(record.machine), "command": record.command,
            "rows": [dict(row) for row in self.rows], "layers": [asdict(layer) for layer in self.layers],
            "collapsed": list(record.collapsed), "traced": self.traced, "ledger": self.ledger, "verdict": self.verdict,
        }  # fmt: skip


def view(folder: Path) -> RunView:
    """Read a run folder; one that is damaged is an error with a sentence."""
    record = read_run(folder)
    rows = tuple(_lines(folder / "metrics.jsonl"))
    if not rows:
        raise InputError(f"'{folder}' holds no line of metrics yet; let the run go on for an epoch")
    units = [line for line in _lines(folder / "ledger.jsonl") if line.get("line") == "unit"]
    names = list(record.widths) or [f"layer {number}" for number in range(1, len(rows[0]["widths"]) + 1)]
    layers = _from_ledger(names, rows, units) if units else _from_widths(names, rows)
    layers = tuple(_ended(k, rows, item) if item.name in record.collapsed else item for k, item in enumerate(layers))
    ledger = None
    if units:
        ledger = {"units": len(units), "cuts": len({line["cut"] for line in units})}
    return RunView(record, rows, layers, bool(units), ledger, _verdict(folder))


def _from_ledger(
    names: list[str], rows: tuple[Mapping[str, Any], ...], units: list[dict[str, Any]]
) -> tuple[Layer, ...]:
    left: dict[str, list[int | None]] = {n: [None] * size for n, size in zip(names, rows[0]["widths"], strict=True)}
    for line in units:
        if line["layer"] in left and line["index"] < len(left[line["layer"]]):
            left[line["layer"]][line["index"]] = line["step"]
    return tuple(Layer(name, tuple(steps)) for name, steps in left.items())


def _ended(place: int, rows: tuple[Mapping[str, Any], ...], layer: Layer) -> Layer:
    """A layer that lost all its units keeps one that is dead; it is shown to leave when the run counted it no more."""
    when = next((row["step"] for row in rows if not row["widths"][place]), rows[-1]["step"])
    return Layer(layer.name, tuple(when if step is None else step for step in layer.left))


def _from_widths(names: list[str], rows: tuple[Mapping[str, Any], ...]) -> tuple[Layer, ...]:
    """Without a ledger only the number of units is known after each epoch; they leave from the end."""
    layers = []
    for place, name in enumerate(names):
        steps: list[int | None] = []
        for before, after in pairwise(rows):
            steps += [after["step"]] * (before["widths"][place] - after["widths"][place])
        stay: list[int | None] = [None] * (rows[0]["widths"][place] - len(steps))
        layers.append(Layer(name, tuple(stay + steps[::-1])))
    return tuple(layers)


def _verdict(folder: Path) -> Mapping[str, Any] | None:
    """What `nodedrop verify` said of the run, if it was asked."""
    path = folder / "verdict.json"
    return next(_lines(path), None) if path.exists() else None


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """The whole lines of a file; none if there is no file. The last one may be half written."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"'{path}' cannot be read: {reason(error)}") from None
    for number, line in enumerate(text.splitlines(), 1):
        try:
            yield json.loads(line)
        except ValueError:
            if number <= text.count("\n"):
                raise InputError(f"line {number} of '{path}' is damaged; the run cannot be shown") from None
