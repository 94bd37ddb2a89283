"""Training steps as the experiments take them, and what one of them needs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from ..training import NodeDrop

Step = Callable[[], None]


def images(name: str, count: int) -> Tensor:
    """Random images for a network of this name, in the layout that training uses."""
    shape = (1, 28, 28) if name.startswith("mnist") else (3, 32, 32)
    return torch.rand(count, *shape).contiguous(memory_format=torch.channels_last)


def stepper(model: nn.Module, batch: Tensor, drop: NodeDrop | None = None) -> Step:
    """One training step on a batch that stays the same; with `drop`, its penalty is in the loss."""
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.Adam(model.parameters(), 1e-5, fused=True)
    labels = torch.randint(0, 10, (len(batch),))

    def step() -> None:
        loss = nn.functional.cross_entropy(model(batch), labels)
        optimizer.zero_grad()
        (loss if drop is None else loss + drop.penalty()).backward()
        optimizer.step()

    return step


def peak(step: Step, repeats: int = 3) -> int:
    """The most bytes that a step holds at a time, as torch's allocator counts them: activations, gradients, results.

    Parameters and optimizer state, which are there before, do not count, so that the ratio of two steps shows them
    alone. A count, not a sample; the profiler now and then misses a block, so the highest of some counts is taken.
    """
    step()  # optimizer state
    return max(_held(step) for _ in range(repeats))


def _held(step: Step) -> int:
    with _hushed(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        step()
    kineto: Any = record.profiler
    events = [event for event in kineto.kineto_results.events() if event.name() == "[memory]"]
    live = most = 0
    for event in sorted(events, key=lambda event: int(event.start_ns())):
        live += int(event.nbytes())
        most = max(most, live)
    return most


@contextmanager
def _hushed() -> Iterator[None]:
    """Keep away what torch's profiler writes to the process's own stderr, past Python's."""
    own, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    try:
        yield
    finally:
        os.dup2(own, 2)
        os.close(own)
        os.close(nothing)


def multiply_adds(model: nn.Module, image: Tensor) -> int:
    """Of one forward pass over one image."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(image[:1])
    return int(counter.get_total_flops()) // 2


def parameters(model: nn.Module) -> int:
    """How many there are."""
    return sum(p.numel() for p in model.parameters())
