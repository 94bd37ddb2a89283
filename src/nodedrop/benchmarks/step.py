"""A NodeDrop training step beside a plain ReLU one, same network, nothing cut: its time, and the memory it needs."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from ..experiments.networks import build
from ..training import NodeDrop, load
from .harness import Figure, Settings, Times, document, figure, interleaved, single
from .steps import images, peak, stepper

EVERY = 100  # steps between two calls of drop() where nothing dies; Pace goes on to wait longer
CASES: dict[str, tuple[str, int, float]] = {
    "Dense320, batch 256": ("mnist-dense320", 256, 1.15),
    "VGG16 without batch norm, batch 64": ("vgg16", 64, 1.08),
}
MEMORY = "VGG16 without batch norm, batch 64"
MEMORY_LIMIT = 1.0
COUNTED = "bytes that the step itself allocates, at their highest, as torch's allocator counts them, in whole MiB"


def run(settings: Settings) -> dict[str, Any]:
    """Penalty, backward, optimizer and a share of drop() with SoftClampedReLU, beside the plain step."""
    figures: list[Figure] = []
    times: dict[str, Times] = {}
    memory: dict[str, int] = {}
    for title, (name, batch, limit) in CASES.items():
        settings.tell(title, len(times) / len(CASES))
        sides = pair(name, 4 if settings.quick else batch, 0.125 if settings.quick else 1.0)
        times[title] = interleaved(sides, settings.rounds)
        figures.append(figure(f"{title}: NodeDrop step beside a plain ReLU step", ratios(times[title]), limit))
        if title == MEMORY:
            memory = {side: peak(sides[side]) for side in ("plain", "nodedrop")}
            mebibytes = {side: max(round(most / 2**20), 1) for side, most in memory.items()}
            words = f"{title}: peak memory of a NodeDrop step beside a plain ReLU step"
            figures.append(single(words, mebibytes["nodedrop"] / mebibytes["plain"], MEMORY_LIMIT))
        del sides
    return document("step", settings, figures, every=EVERY, seconds=times, memory=memory, counted=COUNTED)


def pair(name: str, batch: int, width: float) -> dict[str, Any]:
    """The two steps, and a drop that finds nothing."""
    torch.manual_seed(0)
    plain, shrinking = (build(name, activation=kind, width=width) for kind in ("relu", "soft"))
    drop = NodeDrop(shrinking, None, images(name, 2), lam=1e-9)
    drop.drop()  # units that are dead from the start
    load(plain, shrinking.state_dict())
    batches = images(name, batch)
    return {
        "plain": stepper(plain, batches),
        "nodedrop": stepper(shrinking, batches, drop),
        "drop": partial(look, drop),
    }


def look(drop: NodeDrop) -> None:
    """A drop that finds nothing."""
    if drop.drop() is not None:
        raise AssertionError("a unit died while nothing was to be cut")


def ratios(times: Times) -> list[float]:
    """Per round; a drop is spread over the steps between two."""
    rows = zip(times["nodedrop"], times["drop"], times["plain"], strict=True)
    return [(step + drop / EVERY) / plain for step, drop, plain in rows]
