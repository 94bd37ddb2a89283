"""Loading and augmentation beside a CIFAR-10 training step: batches are cut out of memory, shifted and mirrored."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Generator, Tensor

from ..experiments.data import Batches
from ..experiments.networks import build
from ..training import NodeDrop
from .harness import Settings, document, figure, interleaved
from .steps import images, stepper

COUNT, BATCH, WIDTH, SHIFT = 50_000, 128, 0.25, 4
LIMIT = 0.03


def run(settings: Settings) -> dict[str, Any]:
    """The share of a step of VGG16 at a quarter of its width that goes into getting its batch."""
    torch.manual_seed(0)
    count, width = (1_000, 0.06) if settings.quick else (COUNT, WIDTH)
    batches = endless(count)
    model = build("vgg16", width=width)
    drop = NodeDrop(model, None, images("vgg16", 2), lam=1e-9)
    step = stepper(model, images("vgg16", BATCH), drop)
    settings.tell("beside a training step", 0.0)
    times = interleaved({"data": lambda: next(batches), "step": step}, settings.rounds)
    shares = [data / (data + step) for data, step in zip(times["data"], times["step"], strict=True)]
    title = f"CIFAR-10, VGG16 at width {width:g}, batch {BATCH}: share of loading and augmentation in a step"
    return document("data", settings, [figure(title, shares, LIMIT)], images=count, shift=SHIFT, seconds=times)


def endless(count: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of random bytes in the shape of CIFAR-10, epoch after epoch; the drawing of an order is part of it."""
    pictures = torch.randint(0, 256, (count, 3, 32, 32), dtype=torch.uint8)
    source, labels = Generator().manual_seed(0), torch.randint(0, 10, (count,))
    loader = Batches(pictures, labels, BATCH, generator=source, shift=SHIFT, mirror=True, channels_last=True)
    while True:
        yield from loader
