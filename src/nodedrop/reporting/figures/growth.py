"""How the cost of a step, of an analysis and of a cut grows with the network."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from .style import COLOURS, MARKERS, Picture, panels, plain_log, short

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Record = Mapping[str, Any]


def picture(record: Record, name: str) -> Picture:
    """Growth of time and memory of a step, and of analysis and cuts."""
    caption = (
        "VGG16 as it grows: time of a training step, its peak memory, and the time of an analysis and of cuts; dashed, "
        "growth in proportion to the parameters."
    )
    return Picture(name, caption, partial(grown, record))


def grown(record: Record) -> Figure:
    """Three panels, all axes logarithmic."""
    figure, (time, memory, cuts) = panels(1, 3)
    steps = record["steps"]
    for axes, title, rows, lines in (
        (time, "a step, seconds", steps, {"plain": "plain_seconds", "NodeDrop": "nodedrop_seconds"}),
        (memory, "a step's peak memory, bytes", steps, {"plain": "plain_bytes", "NodeDrop": "nodedrop_bytes"}),
        (cuts, "analysis and cuts, seconds", record["cuts"],
         {"analysis": "analysis_seconds", "cut": "cut_seconds", "cut with a ledger": "recorded_cut_seconds"}),
    ):
        sizes = [row["parameters"] for row in rows]
        values = [row[key] for key in lines.values() for row in rows]
        for place, (label, key) in enumerate(lines.items()):
            axes.plot(sizes, [row[key] for row in rows], color=COLOURS[place], marker=MARKERS[place], label=label)
        if axes is cuts:
            first = max(rows[0][key] for key in lines.values())
            axes.plot(sizes, [first * size / sizes[0] for size in sizes], "--", color="#555555", linewidth=1)
        axes.set_title(title)
        axes.set_xlabel("parameters")
        plain_log(axes, "x", sizes)
        plain_log(axes, "y", values)
        axes.set_xticks(sizes, [short(size) for size in sizes])
        axes.legend()
    return figure
