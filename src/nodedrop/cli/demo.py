"""`nodedrop demo`: a network learns to read digits on the embedded MNIST, and loses what it does not need."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ..errors import InputError
from .progress import fewer

if TYPE_CHECKING:
    from ..experiments.demo import Demonstration, Moment

BAR = 40
OWN = {"run", "index.html", "units.html", "outcome.json"}


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the run and its page.")] = Path("demo"),
    seed: Annotated[int, typer.Option(min=0, help="Seed of weights and batches.")] = 0,
    threads: Annotated[int, typer.Option(min=0, help="Threads of torch; 0 leaves its own choice.")] = 0,
    quick: Annotated[bool, typer.Option("--quick", help="A small network, few images: seconds, not minutes.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the outcome as JSON.")] = False,
) -> None:
    """Watch an oversized network shrink while it learns, and see that nothing it computes has changed."""
    import torch

    from ..experiments.demo import Demonstration
    from ..export.extras import needed
    from ..reporting.demo import write_page
    from ..reporting.html import view, write_html

    needed("report", "the page of the demonstration")
    if threads:
        torch.set_num_threads(threads)
    console = Console(stderr=as_json)
    run = _fresh(out) / "run"
    console.print("A network with far too many units learns to read handwritten digits (MNIST, in the package).")
    console.print("Units that can never fire again are removed as it learns, for good, with a proof for each.\n")
    demonstration = Demonstration(run, seed=seed, quick=quick)
    try:
        _watch(demonstration, console)
    except KeyboardInterrupt:
        console.print("stopped; nothing is left behind but the folder " + str(out))
        raise typer.Exit(130) from None
    with console.status("measuring times, and checking every certificate once more with a program of its own"):
        outcome = demonstration.finish()
    write_html([view(run)], out / "units.html")
    page = write_page(outcome, out)
    if as_json:
        typer.echo(json.dumps(outcome, indent=1))
        return
    console.print(_table(outcome))
    console.print(f"The page with pictures: {page}", highlight=False, soft_wrap=True)
    console.print(f"The network itself: {run / 'model.safetensors'} (nodedrop.load)", highlight=False, soft_wrap=True)


def _fresh(out: Path) -> Path:
    """The folder, without the demonstration that may have been there; with anything else, an error."""
    if out.exists() and (not out.is_dir() or {p.name for p in out.iterdir()} - OWN):
        raise InputError(f"'{out}' holds other things than a demonstration; choose another folder with --out")
    if (out / "run").exists():
        shutil.rmtree(out / "run")
    from ..training.atomic import make_folder

    return make_folder(out)


def _watch(demonstration: Demonstration, console: Console) -> None:
    """Show every moment: drawn anew on a terminal, as lines elsewhere."""
    start = time.monotonic()
    if not console.is_terminal:
        told = -1
        for moment in demonstration.moments():
            if (tenth := int(moment.share * 10)) > told:
                told = tenth
                console.print(_line(moment, time.monotonic() - start), highlight=False, soft_wrap=True)
        return
    with Live(console=console, refresh_per_second=4) as live:
        for moment in demonstration.moments():
            live.update(_picture(moment, time.monotonic() - start))


def _line(moment: Moment, seconds: float) -> str:
    left = f"{moment.parameters:,} parameters ({fewer(moment.dense, moment.parameters)})"
    return (
        f"{seconds:4.0f} s  {moment.share:4.0%}  error on the batches {moment.error:5.2f} %  "
        f"{sum(moment.widths.values())} units  {left}"
    )


def _picture(moment: Moment, seconds: float) -> Group:
    """A bar of units per layer, as long as the layer was wide."""
    table = Table.grid(padding=(0, 2))
    widest = max(moment.start.values())
    for layer, units in moment.widths.items():
        full = max(1, round(BAR * moment.start[layer] / widest))
        left = min(full, round(BAR * units / widest + 0.49))
        bar = Text("█" * left, style="green") + Text("·" * (full - left), style="bright_black")
        table.add_row(layer, bar, f"{units} of {moment.start[layer]}")
    left_over = seconds / max(moment.share, 1e-6) - seconds
    words = Text(_line(moment, seconds) + (f"  about {left_over:.0f} s left" if moment.share > 0.02 else ""))
    return Group(table, words)


def _table(outcome: dict[str, Any]) -> Table:
    """What there is to be proud of."""
    table = Table("", "dense", "small", "", title="before and after")
    table.add_row("units", f"{outcome['units_dense']:,}", f"{outcome['units']:,}", "")
    dense, small = outcome["parameters_dense"], outcome["parameters"]
    table.add_row("parameters", f"{dense:,}", f"{small:,}", fewer(dense, small))
    reference = outcome.get("dense")
    error = "" if reference is None else f"{reference['test_error']:.2f} %"
    table.add_row("test error", error, f"{outcome['test_error']:.2f} %", _beside(reference))
    table.add_row("  before the final cut", "", f"{outcome['test_error_before_cut']:.2f} %", "")
    differ = f"{outcome['predictions_changed']} predictions differ"
    table.add_row("  after it", "", f"{outcome['test_error']:.2f} %", differ)
    change = max(outcome["cut_change"], outcome["logit_change"])
    table.add_row("largest change of a logit", "", f"{change:.1e}", f"rounding, by any of {outcome['cuts']} cuts")
    for name, title in (("step", "training step"), ("inference", "inference, 256 images")):
        dense, small = outcome["times"][name]["dense"], outcome["times"][name]["small"]
        table.add_row(title, f"{dense * 1e3:.0f} ms", f"{small * 1e3:.0f} ms", f"{dense / small:.1f}× faster")
    said, units = outcome["verdict"]["verdict"], outcome["verdict"]["units"]
    table.add_row("certificates", "", f"{units}", f"{said} by the independent checker in {outcome['checking']:.0f} s")
    table.add_row("whole run", "", f"{outcome['wall']:.0f} s", f"{outcome['cutting']:.1f} s of them in cuts")
    return table


def _beside(reference: dict[str, Any] | None) -> str:
    return "" if reference is None else "dense: a plain ReLU network, recorded"
