"""Both sides in one process, interleaved, so that whatever else the machine does falls on both alike."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..experiments.machine import machine

Times = dict[str, list[float]]


@dataclass(frozen=True)
class Figure:
    """One ratio with the limit it must keep, and its spread over the rounds (the middle half of them)."""

    name: str
    ratio: float
    low: float
    high: float
    limit: float | None = None

    @property
    def kept(self) -> bool | None:
        """Whether the limit holds; None without one."""
        return None if self.limit is None else self.ratio <= self.limit


def interleaved(sides: Mapping[str, Callable[[], object]], rounds: int = 9, warm_up: int = 2) -> Times:
    """Seconds per side and round; every round runs each side once."""
    times: Times = {name: [] for name in sides}
    for number in range(warm_up + rounds):
        for name, run in sides.items():
            start = time.perf_counter()
            run()
            if number >= warm_up:
                times[name].append(time.perf_counter() - start)
    return times


def ratio(name: str, times: Times, side: str, base: str, limit: float | None = None) -> Figure:
    """The median over rounds of one side's time beside the other's in the same round."""
    return figure(name, [a / b for a, b in zip(times[side], times[base], strict=True)], limit)


def figure(name: str, ratios: list[float], limit: float | None = None) -> Figure:
    """A figure from one ratio per round."""
    quarters = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else [ratios[0]] * 3
    return Figure(name, statistics.median(ratios), quarters[0], quarters[2], limit)


def document(name: str, figures: list[Figure], **details: Any) -> dict[str, Any]:
    """A record: the figures, what else was measured, and on what."""
    return {
        "benchmark": name,
        "command": f"nodedrop bench {name}",
        "machine": machine(),
        "figures": [{**asdict(item), "kept": item.kept} for item in figures],
        **details,
    }


def write(record: Mapping[str, Any], folder: Path) -> Path:
    """Store a record under the benchmark's name."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{record['benchmark']}.json"
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return path
