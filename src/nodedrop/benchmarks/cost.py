"""What NodeDrop costs while nothing dies, and whether a cut network is as fast as one that was built small."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn

from ..experiments.networks import build
from ..training import NodeDrop, load
from .harness import Figure, Settings, Times, document, figure, interleaved, ratio
from .step import EVERY, look
from .steps import images, stepper

CASES: dict[str, tuple[str, int, float]] = {
    "VGG16, batch 64": ("vgg16", 64, 0.05),
    "Dense320, batch 256": ("mnist-dense320", 256, 0.10),
}


def penalise(drop: NodeDrop) -> None:
    """The penalty with its gradient."""
    drop.penalty().backward()


def run(settings: Settings) -> dict[str, Any]:
    """Both figures of both networks."""
    figures: list[Figure] = []
    times: dict[str, Times] = {}
    width = 0.125 if settings.quick else 1.0
    for title, (name, batch, limit) in CASES.items():
        settings.tell(title, len(times) / len(CASES))
        torch.manual_seed(0)
        plain, shrinking = (build(name, activation="relu", width=width) for _ in range(2))
        drop = NodeDrop(shrinking, None, images(name, 2), lam=1e-9)
        drop.drop()  # units that are dead from the start
        load(plain, shrinking.state_dict())
        batches = images(name, 4 if settings.quick else batch)
        sides: dict[str, Callable[[], None]] = {"step": stepper(plain, batches)}
        sides |= {"penalty": partial(penalise, drop), "drop": partial(look, drop)}
        times[title] = interleaved(sides, settings.rounds)
        figures.append(figure(f"{title}: penalty and drop beside a plain step", list(costs(times[title])), limit))
        del drop, sides
        both = interleaved(after_cut(name, batches, width), settings.rounds)
        words = f"{title}: a step after the cut beside one of a network built that small"
        figures.append(ratio(words, both, "cut", "small", 1.05))
    return document("cost", settings, figures, every=EVERY, seconds=times)


def costs(times: Times) -> Iterator[float]:
    """Per round, in plain steps: the penalty with its gradient, and a drop spread over the steps between two."""
    for step, penalty, drop in zip(times["step"], times["penalty"], times["drop"], strict=True):
        yield (penalty + drop / EVERY) / step


def after_cut(name: str, batches: torch.Tensor, width: float) -> dict[str, Callable[[], None]]:
    """A step of a network that lost half of its units by a cut, and of one built with half of the units."""
    torch.manual_seed(0)
    cut, small = build(name, activation="relu", width=width), build(name, activation="relu", width=width / 2)
    with torch.no_grad():
        for module in cut.modules():
            if isinstance(module, nn.Conv2d | nn.Linear) and module is not cut.head and module.bias is not None:
                module.bias.fill_(1.0)  # no other unit is dead by chance
                module.weight[::2], module.bias[::2] = 0.0, -1.0
    NodeDrop(cut, None, images(name, 2), lam=0.0).drop()
    if [p.shape for p in cut.parameters()] != [p.shape for p in small.parameters()]:
        raise AssertionError("the cut network does not have the shapes of the small one")
    return {"cut": stepper(cut, batches), "small": stepper(small, batches)}
