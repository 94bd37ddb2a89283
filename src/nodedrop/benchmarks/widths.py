"""Training steps at the widths that runs left, and at the nearest multiples of 8, beside what multiply-adds promise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from ..experiments.networks import build
from .harness import Figure, Settings, document, figure, interleaved
from .inference import SUBJECTS, Subject, cut
from .steps import images, multiply_adds, stepper

BLOCK = 8
# A network that was cut on MNIST, and one on CIFAR-10, with the batches they were trained with.
CASES = (
    (SUBJECTS[0], 64),
    (
        Subject(
            "vgg16", (28, 25, 62, 51, 91, 73, 83, 115, 88, 82, 92, 85, 113, 151), {"width": 0.5, "activation": "relu"}
        ),
        64,
    ),
)  # fmt: skip


def run(settings: Settings) -> dict[str, Any]:
    """Both beside the dense network, in the same rounds."""
    torch.manual_seed(0)
    figures: list[Figure] = []
    rows = []
    for number, (subject, batch) in enumerate(CASES[: 1 if settings.quick else None]):
        settings.tell(subject.title, number / len(CASES))
        near = replace(subject, widths=tuple(nearest(width) for width in subject.widths))
        models = {"dense": build(subject.network, **subject.options), "left": cut(subject), "nearest": cut(near)}
        given = images(subject.network, 8 if settings.quick else batch)
        times = interleaved({side: stepper(model, given) for side, model in models.items()}, settings.rounds)
        adds = {side: multiply_adds(model, given) for side, model in models.items()}
        for side, words in (("left", "widths that a run left"), ("nearest", f"the nearest multiples of {BLOCK}")):
            share = adds[side] / adds["dense"]
            found = [some / (dense * share) for some, dense in zip(times[side], times["dense"], strict=True)]
            title = f"{subject.title}, {words}, batch {len(given)}: step beside dense time × ratio of multiply-adds"
            figures.append(figure(title, found))
        widths = {"left": list(subject.widths), "nearest": list(near.widths)}
        rows.append({"network": subject.title, "widths": widths, "multiply_adds": adds, "seconds": times})
    return document("widths", settings, figures, networks=rows)


def nearest(width: int) -> int:
    """Multiple of 8, from 8 on.

    >>> [nearest(width) for width in (3, 13, 20, 28, 87)]
    [8, 16, 24, 32, 88]
    """
    return max(BLOCK, (width + BLOCK // 2) // BLOCK * BLOCK)
