"""`nodedrop inspect`: what is known about every unit of a network."""

from __future__ import annotations

import json
import math
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..errors import InputError
from .domains import DomainOption
from .progress import DataDirOption, JsonOption
from .subject import (
    BatchOption,
    BoundsOption,
    ModelOption,
    ModeOption,
    RunArgument,
    SamplesOption,
    ShapeOption,
    Subject,
    WeightsOption,
    as_options,
    subject_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..analysis import Analysis
    from ..reporting.inspect import Layer

EXAMPLE = (
    "Example: nodedrop inspect --model package.module:network --weights model.safetensors --domain 0,1 "
    "--example 2,3,32,32 --samples cifar10   ·   a run: nodedrop inspect runs/first"
)
BAR = 40


def inspect(
    run: RunArgument = None,
    model: ModelOption = None,
    weights: WeightsOption = None,
    domain: DomainOption = None,
    example: ShapeOption = None,
    samples: SamplesOption = None,
    mode: ModeOption = "both",
    batch_size: BatchOption = None,
    bounds: BoundsOption = "interval",
    data_dir: DataDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Tell which units of a network are provably dead, constant, read by nobody, or never fired on given data.

    For every other unit it says what stands in the way: a bound that is too high, or why the unit cannot go. Nothing is
    changed. Of samples, the first thousand are run.
    """
    from ..reporting.inspect import inspection, to_json

    subject = subject_of(run, model, weights, domain, example, samples, data_dir)
    with Console(stderr=True).status(Text(f"looking at {subject.name}")):
        if batch_size is not None:
            subject = replace(subject, batch_size=batch_size)
        seconds, proved = _analysed(subject, mode, bounds)
        gain = _gain(subject, mode, seconds, proved) if bounds == "linear" else None
        observed = _observed(subject)
    count = 0 if observed is None or subject.samples is None else len(subject.samples)
    layers = inspection(proved, observed, count)
    if as_json:
        typer.echo(json.dumps({**to_json(layers, proved, count), "bounds": bounds, **(gain or {})}))
        return
    console = Console()
    console.print(_table(layers, proved, count))
    _print_reasons(layers, console)
    _print_bounds(layers, console)
    if gain is not None:
        typer.echo(
            f"linear bounds took {gain['seconds']:.2g} s with tracing, and prove {gain['proved']} units that can go; "
            f"intervals took {gain['seconds_interval']:.2g} s and prove {gain['proved_interval']}"
        )
    for note in proved.notes:
        console.print(as_options(note), highlight=False, markup=False, soft_wrap=True)


def _analysed(subject: Subject, mode: str, bounds: str) -> tuple[float, Analysis]:
    """The analysis, and the seconds that it took."""
    from ..api import analyze

    start = time.perf_counter()
    given = {"mode": mode, "bounds": bounds, "batch_size": subject.batch_size}
    found = analyze(subject.model, subject.example, subject.domain, **given)
    return time.perf_counter() - start, found


def _gain(subject: Subject, mode: str, seconds: float, linear: Analysis) -> dict[str, Any]:
    """What linear bounds cost, and what they bring."""
    faster, plain = _analysed(subject, mode, "interval")
    return {
        "seconds": seconds, "proved": len(linear.removable), "seconds_interval": faster,
        "proved_interval": len(plain.removable),
    }  # fmt: skip


def _observed(subject: Subject) -> Analysis | None:
    """What the samples show, in batches of the example's size, for which the network was traced."""
    from ..api import analyze

    if subject.samples is None:
        return None
    size, total = len(subject.example[0]), len(subject.samples)
    if size > total:
        raise InputError(f"an example of {size} rows needs as many samples, and there are {total}")
    starts = [min(start, total - size) for start in range(0, total, size)]
    batches = [subject.samples[start : start + size] for start in starts]
    return analyze(subject.model, subject.example, subject.domain, evidence="observed", samples=batches, mode="eval")


def _table(layers: Sequence[Layer], analysis: Analysis, samples: int) -> Table:
    """Units by verdict; every unit has one, so that a row adds up."""
    from ..reporting.inspect import VERDICTS

    totals = {name: sum(layer.count(name) for layer in layers) for name in VERDICTS}
    shown = [name for name, total in totals.items() if total or name == "dead"]
    title = f"units, proved for {' and '.join(analysis.modes)} mode"
    table = Table(title=title + (f", seen on {samples:,} samples" if samples else ""), caption_justify="left")
    table.add_column("layer", overflow="fold")
    table.add_column("activation", no_wrap=True)
    for name in ("units", *shown):
        table.add_column(name, justify="right", no_wrap=True)
    for layer in layers:
        counts = (str(layer.count(name) or "") for name in shown)
        table.add_row(Text(layer.name), layer.activation, str(len(layer.findings)), *counts)
    table.add_section()
    table.add_row("all", "", str(sum(totals.values())), *(str(totals[name]) for name in shown))
    table.caption = "\n".join(f"{name}: {VERDICTS[name]}" for name in shown)
    return table


def _print_reasons(layers: Sequence[Layer], console: Console) -> None:
    from ..reporting.inspect import reasons

    found = [(layer.name, words, count) for layer in layers for words, count in reasons(layer).items()]
    if found:
        console.print("\nwhat stands in the way")
    for name, words, count in found:
        console.print(f"  {name}: {count} {words}", highlight=False, markup=False, soft_wrap=True)


def _print_bounds(layers: Sequence[Layer], console: Console) -> None:
    from ..reporting.inspect import histogram

    bins = histogram(bound for layer in layers for bound in layer.bounds)
    if not bins:
        return
    title = "upper bounds of what enters an activation, from the end of its zero region on; up to 0 is dead"
    console.print(f"\n{title}", soft_wrap=True)
    most = max(count for *_, count in bins)
    for lo, hi, count in bins:
        place = f"above {lo:g}" if hi is None else f"up to {hi:g}"
        bar = "█" * math.ceil(BAR * count / most)
        style = "green" if hi is not None and hi <= 0 else ""
        console.print(f"{place:>12} {bar:{BAR}} {count:,}", highlight=False, style=style)
    console.print()
