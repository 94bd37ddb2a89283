"""How every figure looks and is written: nothing in the file but the records, so equal ones give equal bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import InputError
from ...training.atomic import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, told apart with every kind of colour vision; markers tell them apart in grey.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
THEIRS = "#555555"
PANEL = (3.6, 2.9)  # inches
_STYLE: dict[str, Any] = {
    "font.family": "DejaVu Sans", "font.size": 9, "axes.titlesize": 9.5, "axes.labelsize": 9,
    "xtick.labelsize": 8, "ytick.labelsize": 8, "legend.fontsize": 8, "legend.frameon": False,
    "legend.handlelength": 2.2, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
    "axes.axisbelow": True, "grid.color": "#dddddd", "grid.linewidth": 0.6, "lines.linewidth": 1.5,
    "lines.markersize": 4.5, "axes.titlelocation": "left", "savefig.dpi": 160, "figure.facecolor": "white",
    "svg.hashsalt": "nodedrop", "svg.fonttype": "path", "path.simplify": False,
}  # fmt: skip


@dataclass(frozen=True)
class Picture:
    """A figure that is drawn when it is written. The caption describes it in words."""

    name: str
    caption: str
    draw: Callable[[], Figure]


def write(picture: Picture, folder: Path, kinds: Sequence[str] = ("svg", "png")) -> list[Path]:
    """Under the picture's name, in the formats asked for."""
    metadata = {"svg": {"Date": None, "Creator": None}, "png": {"Software": None}}
    with styled():
        figure = picture.draw()
        made = []
        for kind in kinds:
            path = folder / f"{picture.name}.{kind}"
            with replacing(path) as temporary:
                figure.savefig(temporary, format=kind, metadata=metadata[kind], bbox_inches="tight", pad_inches=0.06)
            made.append(path)
    return made


def panels(rows: int, columns: int, size: tuple[float, float] = PANEL) -> tuple[Figure, list[Axes]]:
    """An empty figure and its axes, row by row."""
    _library()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(size[0] * columns, size[1] * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    return figure, [axes for row in grid for axes in row]


def shades(count: int) -> list[str]:
    """Colours for things that have an order: from dark blue to a yellow that still shows on white."""
    _library()
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    return [to_hex(colormaps["viridis"](0.88 * place / max(count - 1, 1))) for place in range(count)]


def plain_log(axes: Axes, which: str, values: Sequence[float]) -> None:
    """A logarithmic axis; with plain numbers on it where it spans less than three decades."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    positive = [value for value in values if value > 0]
    if not positive:
        return
    axis = axes.xaxis if which == "x" else axes.yaxis
    (axes.set_xscale if which == "x" else axes.set_yscale)("log")
    span = max(positive) / min(positive)
    if span < 1000:
        steps = (1.0, 2.0, 5.0) if span > 20 else (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)
        axis.set_major_locator(LogLocator(subs=steps, numticks=12))
        axis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
        axis.set_minor_formatter(NullFormatter())


def short(value: float) -> str:
    """A number for a tick.

    >>> short(0.5), short(1500), short(49850), short(15040000)
    ('0.5', '1.5k', '49.9k', '15M')
    """
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


def absent(axes: Axes, command: str) -> None:
    """Say in a panel without runs what would make them."""
    words = f"no runs here yet:\n{command}"
    box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85}
    axes.text(0.5, 0.5, words, transform=axes.transAxes, ha="center", va="center", color=THEIRS, fontsize=8, bbox=box)


def legend_below(figure: Figure, axes: Axes, columns: int) -> None:
    """One legend for all panels, under them."""
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside lower center", ncols=columns)


@contextmanager
def styled() -> Iterator[None]:
    """Draw in this style."""
    with _library().rc_context(_STYLE):
        yield


def _library() -> Any:
    try:
        import matplotlib
    except ImportError:
        raise InputError("figures need matplotlib, which is not installed; pip install 'nodedrop[report]'") from None
    return matplotlib
