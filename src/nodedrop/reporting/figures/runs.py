"""Figures over the epochs of single runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..groups import lam_of
from ..records import Record
from .style import COLOURS, MARKERS, THEIRS, legend_below, panels, plain_log, shades

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Variants = Mapping[str, Sequence[Record]]
NAMED = 16  # layers that still have room for a name of their own


def convergence(record: Record) -> Figure:
    """Test accuracy above, parameters left below, over epochs."""
    figure, (above, below) = panels(2, 1, (5.6, 2.1))
    epochs = [row.epoch for row in record.epochs]
    above.plot(epochs, [100 - row.test_error for row in record.epochs], color=COLOURS[0])
    below.plot(epochs, [row.parameters for row in record.epochs], color=COLOURS[1])
    above.set_ylabel("test accuracy (%)")
    below.set_ylabel("parameters")
    below.set_xlabel("epoch")
    above.sharex(below)
    above.tick_params(labelbottom=False)
    plain_log(below, "y", [row.parameters for row in record.epochs])
    if record.recipe.quiet:
        for axes in (above, below):
            axes.axvspan(0, record.recipe.quiet, color="#eeeeee", zorder=0)
        note = "no penalty yet"
        above.annotate(note, (record.recipe.quiet, 0.04), xycoords=("data", "axes fraction"), fontsize=7.5,
                       xytext=(4, 0), textcoords="offset points", color=THEIRS)  # fmt: skip
    return figure


def widths(record: Record) -> Figure:
    """How many units each layer has, over epochs: layers stacked, the first at the bottom."""
    figure, (axes,) = panels(1, 1, (5.6, 3.3))
    layers = list(zip(*(row.widths for row in record.epochs), strict=True))
    epochs = [row.epoch for row in record.epochs]
    colours = shades(len(layers))
    axes.stackplot(epochs, layers, colors=colours, edgecolor="white", linewidth=0.5)
    axes.set_xlim(epochs[0], epochs[-1])
    axes.set_ylim(0, 1.04 * max(row.units for row in record.epochs))
    axes.set_xlabel("epoch")
    axes.set_ylabel("units")
    axes.grid(False)
    if len(layers) <= NAMED:
        names = [f"{name}  {first[0]} → {first[-1]}" for name, first in zip(record.layers, layers, strict=True)]
        from matplotlib.patches import Patch

        handles = [Patch(color=colour, label=name) for colour, name in zip(colours, names, strict=True)]
        axes.legend(handles=handles[::-1], loc="center left", bbox_to_anchor=(1.01, 0.5), handlelength=1.0)
    return figure


def variants(rows: Sequence[tuple[float, Variants]], plain: Variants) -> Figure:
    """Test error, and share of the parameters left, over epochs; a row for each λ, a line for each run.

    `plain` are runs without penalty, dashed where errors are shown.
    """
    names = list(dict.fromkeys(name for _, members in rows for name in members))
    looks = {name: (COLOURS[k % len(COLOURS)], MARKERS[k % len(MARKERS)]) for k, name in enumerate(names)}
    figure, axes = panels(len(rows), 2, (3.7, 2.5))
    for place, (lam, members) in enumerate(rows):
        left, right = axes[2 * place], axes[2 * place + 1]
        left.set_title(f"λ = {lam_of(lam)}: test error")
        right.set_title(f"λ = {lam_of(lam)}: parameters left")
        for name, records in members.items():
            for record in records:
                shares = [100 * row.parameters / record.parameters_dense for row in record.epochs]
                _trace(left, [row.epoch for row in record.epochs[1:]], _errors(record), looks[name])
                _trace(right, [row.epoch for row in record.epochs], shares, looks[name])
        for name, records in plain.items():
            for record in records:
                colour, _ = looks.get(name, (THEIRS, ""))
                epochs = [row.epoch for row in record.epochs[1:]]
                left.plot(epochs, _errors(record), color=colour, linestyle=(0, (4, 2)), linewidth=0.9, zorder=1)
        shown = [*members.values(), *plain.values()]
        plain_log(left, "y", [error for records in shown for record in records for error in _errors(record)])
        left.set_ylabel("test error (%)")
        right.set_ylabel("% of the dense network")
        right.set_ylim(-3, 104)
        for panel in (left, right):
            panel.set_xlabel("epoch")
    for name, (colour, marker) in looks.items():
        axes[0].plot([], [], color=colour, marker=marker, label=name)
    if plain:
        axes[0].plot([], [], color=THEIRS, linestyle=(0, (4, 2)), linewidth=0.9, label="dashed: without penalty")
    legend_below(figure, axes[0], 4 if len(names) < 4 else 3)
    return figure


def _errors(record: Record) -> list[float]:
    return [row.test_error for row in record.epochs[1:]]


def _trace(axes: Axes, epochs: Sequence[int], values: Sequence[float], look: tuple[str, str]) -> None:
    """One run as a line with a few markers."""
    colour, marker = look
    every = max(len(epochs) // 6, 1)
    axes.plot(epochs, values, color=colour, marker=marker, markevery=every, markersize=4, linewidth=1.3)
