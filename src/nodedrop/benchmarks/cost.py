"""What NodeDrop costs while nothing dies, and whether a cut network is as fast as one that was built small."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn

from ..experiments.networks import build
from ..training import NodeDrop, load
from .harness import Figure, Times, document, figure, interleaved, ratio

EVERY = 100  # steps between two calls of drop(): MNIST has 235 batches of 256 an epoch, CIFAR-10 782 of 64
CASES: dict[str, tuple[str, int, float]] = {
    "VGG16, batch 64": ("vgg16", 64, 0.05),
    "Dense320, batch 256": ("mnist-dense320", 256, 0.10),
}


def stepper(model: nn.Module, batch: int) -> Callable[[], None]:
    """One plain training step on a batch that stays the same."""
    optimizer = torch.optim.SGD(model.parameters(), 1e-4, momentum=0.9)
    shape = (1, 28, 28) if next(model.parameters()).shape[1] == 1 else (3, 32, 32)
    images, labels = torch.rand(batch, *shape), torch.randint(0, 10, (batch,))

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()

    return step


def penalise(drop: NodeDrop) -> None:
    """The penalty with its gradient."""
    drop.penalty().backward()


def look(drop: NodeDrop) -> None:
    """A drop that finds nothing."""
    drop.drop()


def run(rounds: int = 9) -> dict[str, Any]:
    """Both figures of both networks."""
    figures: list[Figure] = []
    times: dict[str, Times] = {}
    for title, (name, batch, limit) in CASES.items():
        torch.manual_seed(0)
        plain, shrinking = build(name, activation="relu"), build(name, activation="relu")
        shape = (2, 1, 28, 28) if name.startswith("mnist") else (2, 3, 32, 32)
        drop = NodeDrop(shrinking, None, torch.rand(shape), lam=1e-9)
        drop.drop()  # units that are dead from the start
        load(plain, shrinking.state_dict())
        sides: dict[str, Callable[[], None]] = {"step": stepper(plain, batch)}
        sides |= {"penalty": partial(penalise, drop), "drop": partial(look, drop)}
        times[title] = interleaved(sides, rounds)
        figures.append(figure(f"{title}: penalty and drop beside a plain step", list(costs(times[title])), limit))
        del drop, sides
        figures.append(after_cut(title, name, batch, rounds))
    return document("cost", figures, every=EVERY, seconds=times)


def costs(times: Times) -> Iterator[float]:
    """Per round, in plain steps: the penalty with its gradient, and a drop spread over the steps between two."""
    for step, penalty, drop in zip(times["step"], times["penalty"], times["drop"], strict=True):
        yield (penalty + drop / EVERY) / step


def after_cut(title: str, name: str, batch: int, rounds: int) -> Figure:
    """A network that lost half of its units by a cut, beside one built with half of the units."""
    torch.manual_seed(0)
    cut, small = build(name, activation="relu"), build(name, activation="relu", width=0.5)
    with torch.no_grad():
        for module in cut.modules():
            if isinstance(module, nn.Conv2d | nn.Linear) and module.weight.shape[0] > 10 and module.bias is not None:
                module.bias.fill_(1.0)  # no other unit is dead by chance
                module.weight[::2], module.bias[::2] = 0.0, -1.0
    shape = (2, 1, 28, 28) if name.startswith("mnist") else (2, 3, 32, 32)
    NodeDrop(cut, None, torch.rand(shape), lam=0.0).drop()
    if [p.shape for p in cut.parameters()] != [p.shape for p in small.parameters()]:
        raise AssertionError("the cut network does not have the shapes of the small one")
    both = interleaved({"cut": stepper(cut, batch), "small": stepper(small, batch)}, rounds)
    return ratio(f"{title}: a step after the cut beside one of a network built that small", both, "cut", "small", 1.05)
