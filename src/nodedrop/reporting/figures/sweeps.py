"""Figures over λ and over starting sizes, in the paper's arrangement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .. import paper
from ..groups import Point, Series, lam_of
from .style import COLOURS, MARKERS, THEIRS, absent, legend_below, panels, plain_log, shades, short

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LEAST = 1e-2  # per cent of the parameters; a network that has lost everything is drawn here
ERROR, LAMBDA = "test error (%)", "λ"


def mnist_lambda(found: Sequence[Series]) -> Figure:
    """Test error, and parameters left, over λ; a line for each starting size, its baseline dashed."""
    figure, (left, right) = panels(1, 2, (3.7, 3.1))
    for one, colour, marker in zip(found, shades(len(found)), MARKERS, strict=False):
        for axes, what in ((left, "error"), (right, "parameters")):
            _line(axes, one.points, what, colour, marker, one.title)
            if one.baseline is not None:
                level = one.baseline.error.mean if what == "error" else float(one.parameters)
                axes.axhline(level, color=colour, linestyle=(0, (4, 2)), linewidth=0.9, zorder=1)
    left.plot([], [], color=THEIRS, linestyle=(0, (4, 2)), linewidth=0.9, label="dense ReLU baseline")
    _lambda_axis(left, found)
    _lambda_axis(right, found)
    _error_axis(left, found)
    left.set_title("Test error")
    right.set_title("Parameters left")
    plain_log(right, "y", [one.parameters for one in found] + [p.parameters.mean for s in found for p in s.points])
    legend_below(figure, left, 3)
    return figure


def mnist_sizes(found: Sequence[Series]) -> Figure:
    """Parameters at the end over parameters at the start; a line for each λ, a dot for each run."""
    figure, (axes,) = panels(1, 1, (5.2, 3.9))
    lambdas = sorted({point.lam for one in found for point in one.points})
    starts = [one.parameters for one in found]
    for lam, colour, marker in zip(lambdas, shades(len(lambdas)), MARKERS * 3, strict=False):
        here = [(one.parameters, p) for one in found for p in one.points if p.lam == lam]
        axes.plot(
            [start for start, _ in here], [p.parameters.mean for _, p in here], color=colour, marker=marker,
            label=f"λ = {lam_of(lam)}",
        )  # fmt: skip
        for start, point in here:
            _runs(axes, start, point.parameters.values, colour)
    axes.plot(starts, starts, color=THEIRS, linestyle=(0, (4, 2)), linewidth=1, label="nothing removed")
    ends = [p.parameters.mean for one in found for p in one.points]
    axes.set_xscale("log")
    axes.set_xticks(starts, [f"{one.title.removeprefix('Dense')}\n{short(one.parameters)}" for one in found])
    axes.minorticks_off()
    plain_log(axes, "y", [*starts, *ends])
    axes.set_xlabel("units and parameters at the start")
    axes.set_ylabel("parameters at the end")
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
    return figure


def cifar_lambda(rows: Sequence[tuple[str, Series | None, tuple[paper.Row, ...]]], command: str) -> Figure:
    """Test error, and share of the parameters left, over λ; a row for each network, ours and the paper's."""
    figure, axes = panels(len(rows), 2, (3.7, 2.7))
    for place, (name, one, theirs) in enumerate(rows):
        for panel, what in ((axes[2 * place], "error"), (axes[2 * place + 1], "share")):
            panel.set_title(f"{name}: " + ("test error" if what == "error" else "parameters left"))
            mine = [one] if one else []
            points = one.points if one else ()
            if one is None:
                absent(panel, command)
            else:
                _line(panel, points, what, COLOURS[0], "o", f"here{_width(one)}")
            if one and one.baseline:
                level = one.baseline.error.mean if what == "error" else 100.0
                panel.axhline(level, color=COLOURS[0], linestyle=(0, (4, 2)), linewidth=1, label="here, dense baseline")
            _their_line(panel, theirs, what)
            _collapses(panel, points, theirs, what)
            _lambda_axis(panel, mine, [row.lam for row in theirs if row.lam])
            if what == "error":
                _error_axis(panel, mine, [row.test_error for row in theirs])
            else:
                _share_axis(panel, [v for p in points for v in _value(p, what)] + [100 - r.removed for r in theirs])
    drawn = next((place for place, (_, one, _) in enumerate(rows) if one is not None), 0)
    legend_below(figure, axes[2 * drawn], 5)
    return figure


def tradeoff(found: Sequence[Series], theirs: Sequence[tuple[paper.Row, ...]]) -> Figure:
    """Test error over the factor of removal, one panel for all networks; the paper's points hollow."""
    figure, (axes,) = panels(1, 1, (5.2, 3.7))
    ordered = len(found) > 4
    colours = shades(len(found)) if ordered else COLOURS
    factors: list[float] = []
    for one, rows, colour, marker in zip(found, theirs, colours, MARKERS, strict=False):
        kept = [p for p in one.points if not p.collapsed]
        start = [one.baseline] if one.baseline else []
        line = [(p.factor.mean, p.error.mean) for p in (*start, *kept)]
        if line:
            axes.plot(*zip(*line, strict=True), color=colour, marker=marker, label=one.title)
        printed = [(row.factor, row.test_error) for row in rows if row.factor]
        if printed:
            label = f"{one.title}, paper"
            axes.plot(
                *zip(*printed, strict=True), color=colour, marker=marker, mfc="white", linestyle=":", label=label
            )  # fmt: skip
        factors += [f for f, _ in line] + [f for f, _ in printed]
    errors = [p.error.mean for one in found for p in one.points] + [r.test_error for rows in theirs for r in rows]
    plain_log(axes, "x", factors)
    if errors and max(errors) > 3 * min(errors):
        plain_log(axes, "y", errors)
    if not any(theirs):
        best = paper.mnist_removed()
        axes.axvline(100 / (100 - best), color=THEIRS, linestyle=":", linewidth=1.2, label=f"paper's best, {best} %")
    axes.set_xlabel("times fewer parameters")
    axes.set_ylabel(ERROR)
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
    return figure


def _value(point: Point, what: str) -> tuple[float, ...]:
    if what == "share":
        return tuple(max(100 - removed, LEAST) for removed in point.removed.values)
    return point.error.values if what == "error" else point.parameters.values


def _line(axes: Axes, points: Sequence[Point], what: str, colour: str, marker: str, label: str) -> None:
    """The means as a line, every run as a dot."""
    values = [_value(point, what) for point in points]
    means = [sum(v) / len(v) for v in values]
    axes.plot([p.lam for p in points], means, color=colour, marker=marker, label=label, zorder=3)
    for point, each in zip(points, values, strict=True):
        _runs(axes, point.lam, each, colour)


def _runs(axes: Axes, place: float, values: Sequence[float], colour: str) -> None:
    """Every run as a tick, on a line from the least to the greatest."""
    if len(values) > 1:
        axes.vlines(place, min(values), max(values), color=colour, linewidth=1, zorder=2)
        axes.scatter([place] * len(values), values, s=42, marker="_", color=colour, linewidths=1, zorder=2)


def _their_line(axes: Axes, rows: tuple[paper.Row, ...], what: str) -> None:
    swept = [(row.lam, row) for row in rows if row.lam]
    values = [row.test_error if what == "error" else max(100 - row.removed, LEAST) for _, row in swept]
    axes.plot([lam for lam, _ in swept], values, color=COLOURS[1], marker="s", mfc="white", linestyle=":",
              label="paper", zorder=2)  # fmt: skip
    if rows and what == "error":
        axes.axhline(rows[0].test_error, color=COLOURS[1], linestyle=(0, (1, 2)), linewidth=1, label="paper, baseline")


def _collapses(axes: Axes, points: Sequence[Point], rows: tuple[paper.Row, ...], what: str) -> None:
    """A cross on the networks that have lost a layer, and with it everything."""
    spots = [(p.lam, sum(_value(p, what)) / p.n) for p in points if p.collapsed]
    spots += [(r.lam, r.test_error if what == "error" else LEAST) for r in rows if r.lam and r.units == 0]
    for lam, value in spots:
        axes.annotate("collapsed", (lam, value), xytext=(-7, 0), textcoords="offset points", ha="right", va="center",
                      fontsize=7.5, color=THEIRS)  # fmt: skip


def _lambda_axis(axes: Axes, found: Sequence[Series], more: Sequence[float] = ()) -> None:
    lambdas = [point.lam for one in found for point in one.points] + list(more)
    if lambdas:
        axes.set_xscale("log")
        axes.set_xlim(min(lambdas) / 1.6, max(lambdas) * 1.6)
    axes.set_xlabel(LAMBDA)


def _error_axis(axes: Axes, found: Sequence[Series], more: Sequence[float] = ()) -> None:
    errors = [value for one in found for p in one.points for value in p.error.values] + list(more)
    errors += [one.baseline.error.mean for one in found if one.baseline]
    axes.set_ylabel(ERROR)
    if errors and max(errors) > 3 * max(min(errors), 1e-9):
        plain_log(axes, "y", errors)


def _share_axis(axes: Axes, shares: Sequence[float]) -> None:
    from matplotlib.ticker import FuncFormatter

    least = max(min(shares), LEAST)
    plain_log(axes, "y", [least, 100.0])
    axes.set_ylim(least / 1.8, 130)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} %"))
    axes.set_ylabel("of the dense network")


def _width(one: Series) -> str:
    return f", width {one.width:g}" if one.width != 1 else ""
