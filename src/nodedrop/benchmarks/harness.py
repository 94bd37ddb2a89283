"""Both sides in one process, interleaved, so that whatever else the machine does falls on both alike."""

from __future__ import annotations

import json
import shlex
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from ..experiments.machine import machine
from ..training.atomic import make_folder, replacing

FEW = 4  # so many have no middle half worth the name
Times = dict[str, list[float]]
Tell = Callable[[str, float], None]


def _silent(words: str, done: float) -> None:
    pass


@dataclass(frozen=True)
class Settings:
    """How much to measure, and on what.

    `quick` takes networks and data so small that it ends in seconds: it shows that a benchmark works, and its figures
    mean nothing. Whole runs are repeated for `seeds`, counted up from the recipe's, other measurements for `rounds`.
    `changes` are values of the recipes that whole runs follow, `record` is the result of a run whose widths a compact
    network is to have. `tell` hears in words where a long benchmark is, and which share of it is done.
    """

    rounds: int = 9
    seeds: int = 1
    quick: bool = False
    changes: Mapping[str, Any] = field(default_factory=dict)
    record: Path | None = None
    data_dir: Path | None = None
    tell: Tell = field(default=_silent, repr=False)


@dataclass(frozen=True)
class Figure:
    """One ratio with the limit it must keep, and its spread over the rounds: the middle half of them, or all of few.

    Where `unit` is not empty, it is no ratio, but so many of these.
    """

    name: str
    ratio: float
    low: float
    high: float
    limit: float | None = None
    unit: str = ""

    @property
    def kept(self) -> bool | None:
        """Whether the limit holds; None without one."""
        return None if self.limit is None else self.ratio <= self.limit


def interleaved(
    sides: Mapping[str, Callable[[], object]], rounds: int = 9, warm_up: int = 2, *, calls: int = 1
) -> Times:
    """Seconds per call of each side and round; every round runs each side once, or several times in a row."""
    times: Times = {name: [] for name in sides}
    for number in range(warm_up + rounds):
        for name, run in sides.items():
            start = time.perf_counter()
            for _ in range(calls):
                run()
            if number >= warm_up:
                times[name].append((time.perf_counter() - start) / calls)
    return times


def ratio(name: str, times: Times, side: str, base: str, limit: float | None = None) -> Figure:
    """The median over rounds of one side's time beside the other's in the same round."""
    return figure(name, [a / b for a, b in zip(times[side], times[base], strict=True)], limit)


def figure(name: str, ratios: list[float], limit: float | None = None, unit: str = "") -> Figure:
    """A figure from one ratio per round.

    >>> figure("of two seeds", [0.39, 0.41])
    Figure(name='of two seeds', ratio=0.4, low=0.39, high=0.41, limit=None, unit='')
    """
    low, high = min(ratios), max(ratios)
    if len(ratios) > FEW:
        low, _, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return Figure(name, statistics.median(ratios), low, high, limit, unit)


def single(name: str, value: float, limit: float | None = None, unit: str = "") -> Figure:
    """A figure that is the same every time, or was measured once."""
    return Figure(name, value, value, value, limit, unit)


def document(name: str, settings: Settings, figures: list[Figure], **details: Any) -> dict[str, Any]:
    """A record: the figures, what else was measured, and on what."""
    return {
        "benchmark": name,
        "command": command(name, settings),
        "quick": settings.quick,
        "machine": machine(),
        "figures": [{**asdict(item), "kept": item.kept} for item in figures],
        **details,
    }


def command(name: str, settings: Settings) -> str:
    """What measures this again.

    >>> with threads(1):
    ...     command("peers", Settings(seeds=3, changes={"toll": 0.5}))
    'nodedrop bench peers --threads 1 --seeds 3 --set toll=0.5'
    >>> command("cifar", Settings(changes={"spare_of": "conv?=8"})).partition(" --set ")[2]
    "'spare_of=conv?=8'"
    """
    words = ["nodedrop", "bench", name, "--threads", str(torch.get_num_threads())]
    for option, now, usual in (("--rounds", settings.rounds, Settings.rounds), ("--seeds", settings.seeds, 1)):
        words += [option, str(now)] if now != usual else []
    for key, value in settings.changes.items():
        words += ["--set", f"{key}={value}"]
    return shlex.join([*words, *(["--quick"] if settings.quick else [])])


def installed(*packages: str) -> dict[str, str]:
    """The versions of those that are there."""
    found = {}
    for name in packages:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def write(record: Mapping[str, Any], folder: Path) -> Path:
    """Store a record under the benchmark's name."""
    path = make_folder(folder) / f"{record['benchmark']}.json"
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return path


@contextmanager
def threads(count: int) -> Iterator[None]:
    """So many threads of torch for a while."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
