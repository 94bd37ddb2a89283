"""What the commands that train have in common: their options, how far runs are, tables of what came out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console, RenderableType
from rich.progress import BarColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.table import Table
from rich.text import Text

from ..errors import InputError
from ..spelling import require_known

if TYPE_CHECKING:
    from ..experiments.data import Data
    from ..experiments.recipes import Recipe
    from ..experiments.run import Progress
    from ..experiments.sweep import Outcome

ProfileOption = Annotated[str, typer.Option("--profile", help="short: for two cores; paper: its own values.")]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Change a value of the recipe; can be repeated.")
]
DataDirOption = Annotated[Path | None, typer.Option("--data-dir", help="Where the data set's files lie.")]
DownloadOption = Annotated[bool, typer.Option("--download", help="Get the data set if it is not there.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the outcome as JSON.")]
LEAST = 1.5  # a smaller factor is told in per cent
WorkersOption = Annotated[int, typer.Option("--workers", min=1, help="Runs at a time, with one thread each.")]


def settings(texts: Sequence[str] | None) -> dict[str, str]:
    """The values of `--set name=value`, as text."""
    from ..experiments.recipes import Recipe

    found: dict[str, str] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise InputError(f"--set needs name=value, such as lam=1e-4, and got '{text}'")
        require_known(name.strip(), Recipe.__dataclass_fields__, "a recipe has no value")
        found[name.strip()] = value.strip()
    return found


def read_data(recipe: Recipe, data_dir: Path | None, download: bool) -> Data:
    """The recipe's data, downloaded first if that is wanted."""
    from ..experiments.data import load
    from ..experiments.making import data_of
    from ..experiments.own import is_own

    if is_own(recipe.data):
        return data_of(recipe)
    try:
        if not download:
            return load(recipe.data, data_dir)
        with Runs(lines=False) as runs:
            return load(recipe.data, data_dir, download, progress=runs.fetched)
    except InputError as error:
        raise InputError(f"{error} (see --data-dir and --download)") from None


class Runs:
    """How far runs are, on stderr: a bar for each on a terminal, and lines that stay."""

    def __init__(self, *, lines: bool) -> None:
        self.console = Console(stderr=True)
        self._bars, self._tasks = _bars(self.console), dict[str, TaskID]()
        self._lines = lines and not self.console.is_terminal

    def __enter__(self) -> Runs:
        if self.console.is_terminal:
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.console.is_terminal:
            self._bars.stop()

    def tell(self, name: str, progress: Progress) -> None:
        """A run is at this point."""
        if name not in self._tasks:
            total = progress.epochs * progress.batches
            self._tasks[name] = self._bars.add_task(name, total=total, figures="", completed=_place(progress))
        figures = f"{progress.epoch + 1}/{progress.epochs}  {_figures(progress)}"
        self._bars.update(self._tasks[name], completed=_place(progress), figures=figures)
        if self._lines and progress.row is not None:
            self.say(f"epoch {figures}  {progress.seconds:.0f} s")

    def fetched(self, file: str, done: int, size: int | None) -> None:
        """A download has so many bytes."""
        if file not in self._tasks:
            self._tasks[file] = self._bars.add_task(file, total=size, figures="")
        self._bars.update(self._tasks[file], completed=done, total=size, figures=f"{done / 1e6:.0f} MB")

    def end(self, name: str) -> None:
        """A run has ended, and its bar goes."""
        if name in self._tasks:
            self._bars.remove_task(self._tasks.pop(name))

    def say(self, text: str) -> None:
        """A line that stays."""
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)


class _Bars(Bars):
    """A run's name has a line of its own, above its bar."""

    def get_renderables(self) -> Iterable[RenderableType]:
        for task in self.tasks:
            if task.description:
                yield Text(task.description, overflow="fold")
            yield self.make_tasks_table([task])


def _bars(console: Console) -> Bars:
    return _Bars(
        BarColumn(bar_width=None),
        TextColumn("{task.fields[figures]}", markup=False),
        TimeRemainingColumn(compact=True),
        console=console,
        expand=True,
        speed_estimate_period=120.0,
    )


def _place(progress: Progress) -> int:
    return progress.epoch * progress.batches + progress.batch


def _figures(progress: Progress) -> str:
    test = "" if progress.test_error is None else f", test {progress.test_error:.2f} %"
    return (
        f"error: train {progress.error:.2f} %{test}  {progress.units} units  "
        f"{progress.parameters:,} parameters ({fewer(progress.dense, progress.parameters)})"
    )


def fewer(before: int, after: int) -> str:
    """How much smaller something is: a factor, or per cent where that would round to nothing.

    >>> fewer(49850, 49234), fewer(49850, 10000), fewer(5, 5)
    ('1.2 % fewer', '5.0× fewer', '0.0 % fewer')
    """
    factor = before / max(after, 1)
    return f"{factor:.1f}× fewer" if factor >= LEAST else f"{100 * (1 - after / max(before, 1)):.1f} % fewer"


def summary(result: Mapping[str, Any]) -> str:
    """A run's outcome in a line, as wide as that of others: lines that come one by one make a table."""
    less = fewer(result["parameters_dense"], result["parameters"])
    return (
        f"test error {result['test_error']:5.2f} %  {result['units']:>5} of {result['units_dense']} units  "
        f"{result['parameters']:>11,} parameters  {less:>13}  {result['seconds']:>6.0f} s"
    )


def result_table(result: Mapping[str, Any]) -> Table:
    """A run's outcome in full."""
    dense, left = result["parameters_dense"], result["parameters"]
    table = Table(show_header=False)
    table.add_row("test error", f"{result['test_error']:.2f} %")
    table.add_row("  before the final cut", f"{result['test_error_before_cut']:.2f} %")
    table.add_row("units", f"{result['units_dense']:,} → {result['units']:,}")
    table.add_row("parameters", f"{dense:,} → {left:,} ({fewer(dense, left)})")
    table.add_row("largest logit change", f"{result['logit_change']:.1e} (relative, by the final cut)")
    table.add_row("seconds", f"{result['seconds']:.1f} in steps, {result['cutting']:.1f} in cuts")
    if result["collapsed"]:
        table.add_row("lost all units", ", ".join(result["collapsed"]))
    return table


def outcomes_table(outcomes: Sequence[Outcome]) -> Table:
    """The outcomes of many runs."""
    table = Table()
    table.add_column("run", overflow="fold")
    for heading in ("test error %", "units", "parameters", "fewer", "seconds"):
        table.add_column(heading, justify="right")
    for outcome in outcomes:
        result = outcome.result
        if result is None:
            table.add_row(outcome.job.name, outcome.status, *[""] * 4)
            continue
        less = fewer(result["parameters_dense"], result["parameters"]).removesuffix(" fewer")
        table.add_row(
            outcome.job.name, f"{result['test_error']:.2f}", f"{result['units']:,}", f"{result['parameters']:,}",
            less, f"{result['seconds']:.0f}",
        )  # fmt: skip
    return table
