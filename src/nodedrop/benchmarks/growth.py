"""Steps, memory, analysis and cuts as VGG16 grows: nothing may grow faster than the network's own work."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from ..experiments.networks import build
from ..intake import Options
from ..session import Session
from ..training import NodeDrop
from .analysis import FLAT, QUICK, SCALES, steepest
from .harness import Figure, Settings, document, interleaved, single
from .step import pair
from .steps import images, multiply_adds, parameters, peak

WIDTHS = (0.25, 0.5, 1.0, 2.0)
QUICK_WIDTHS = (0.03, 0.06)
BATCH, MOST = 64, 5  # rounds: the largest network takes long, and a cut needs a unit in every layer

Row = dict[str, float]


def run(settings: Settings) -> dict[str, Any]:
    """From the smallest network to the largest: growth of each of our costs over growth of the network's own."""
    widths = QUICK_WIDTHS if settings.quick else WIDTHS
    scales = list((QUICK if settings.quick else SCALES).values())
    count, steps, cuts = min(settings.rounds, MOST), list[Row](), list[Row]()
    for width in widths:
        settings.tell(f"steps at width × {width:g}", len(steps) / (len(widths) + len(scales)))
        steps.append(stepping(width, 4 if settings.quick else BATCH, count))
    for scale in scales:
        settings.tell(f"cuts at width × {scale:g}", (len(steps) + len(cuts)) / (len(widths) + len(scales)))
        cuts.append(cutting(scale, count))
    return document("growth", settings, compared(steps, cuts), batch=BATCH, steps=steps, cuts=cuts)


def stepping(width: float, batch: int, rounds: int) -> Row:
    """Time and memory of both steps at one width."""
    sides = pair("vgg16", batch, width)
    model = build("vgg16", width=width)
    row = {
        "width": width, "parameters": parameters(model), "multiply_adds": multiply_adds(model, images("vgg16", 1)),
    }  # fmt: skip
    times = interleaved({side: sides[side] for side in ("plain", "nodedrop")}, rounds)
    row |= {f"{side}_seconds": statistics.median(taken) for side, taken in times.items()}
    return row | {f"{side}_bytes": peak(sides[side]) for side in times}


def cutting(width: float, rounds: int) -> Row:
    """A forward pass, an analysis, the first cut, which traces again, and later ones, of a network of one width; and
    cuts that leave a ledger."""
    torch.manual_seed(0)
    model, example = build("vgg16", activation="relu", width=width), images("vgg16", 2)
    row: Row = {"width": width, "parameters": parameters(model)}
    sides = {"pass": lambda: model(example), "analysis": Session(model, example, Options()).analysis}
    with torch.no_grad():
        times = interleaved(sides, rounds, warm_up=1)
    first, times["cut"] = cuts_of(model, example, rounds)
    with TemporaryDirectory() as folder:
        _, times["recorded_cut"] = cuts_of(model, example, rounds, Path(folder) / "ledger.jsonl")
    row |= {f"{side}_seconds": statistics.median(seconds) for side, seconds in times.items()}
    return row | {"first_cut_seconds": first}


def cuts_of(model: nn.Module, example: Tensor, rounds: int, ledger: Path | None = None) -> tuple[float, list[float]]:
    """Seconds of the first cut, and of those after it."""
    drop = NodeDrop(model, None, example, lam=0.0, ledger=ledger)
    drop.drop()  # units that are dead from the start
    first, *later = [timed_cut(model, drop) for _ in range(rounds + 1)]
    return first, later


def timed_cut(model: nn.Module, drop: NodeDrop) -> float:
    """Seconds to cut one unit out of every layer that has two."""
    layers: Mapping[str, Any] = dict(model.named_modules())
    with torch.no_grad():
        for name, size in drop.widths.items():
            if size > 1:
                layers[name].weight[0], layers[name].bias[0] = 0.0, -1.0
    start = time.perf_counter()
    event = drop.drop()
    taken = time.perf_counter() - start
    if event is None:
        raise AssertionError("no unit was left to cut")
    return taken


def compared(steps: list[Row], cuts: list[Row]) -> list[Figure]:
    """What each costs at its dearest: a step beside a plain one, an analysis beside the parameters, a cut beside both
    them and a forward pass, of which it takes four to check itself."""
    span = f"VGG16 from width × {steps[0]['width']:g} to × {steps[-1]['width']:g}"
    sizes = f"VGG16 from {short(cuts[0])} to {short(cuts[-1])} parameters"
    made = {
        "a cut": "cut_seconds", "the first cut": "first_cut_seconds", "a cut with a ledger": "recorded_cut_seconds",
    }  # fmt: skip
    return [
        *(single(f"{span}: largest growth of a NodeDrop step's {what} over that of a plain step",
                 steepest(steps, f"nodedrop_{unit}", f"plain_{unit}"), FLAT)
          for what, unit in (("time", "seconds"), ("peak memory", "bytes"))),
        single(f"{sizes}: largest growth of the cost per parameter of the analysis",
               steepest(cuts, "analysis_seconds"), FLAT),
        *(single(f"{sizes}: largest growth of the time of {what} over that of a forward pass on its example",
                 steepest(cuts, ours, "pass_seconds"), FLAT) for what, ours in made.items()),
        *(single(f"{sizes}: largest growth of the cost per parameter of {what}", steepest(cuts, ours), FLAT)
          for what, ours in made.items()),
    ]  # fmt: skip


def short(row: Row) -> str:
    """How many parameters, in millions or thousands."""
    count = row["parameters"]
    return f"{count / 1e6:.0f}M" if count >= 1e6 else f"{count / 1e3:.0f}k"
