"""SoftClampedReLU beside ReLU, forward and backward, on the activations of Dense320 at batch 256."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from .. import kernels
from ..activations import SoftClampedReLU
from ..experiments.networks import build
from ..functional import soft_clamped_relu
from ..kernels import eager
from .harness import Figure, Settings, Times, document, interleaved, ratio, threads
from .steps import images

NETWORK, BATCH = "mnist-dense320", 256
LAYOUTS = {"contiguous": torch.contiguous_format, "channels last": torch.channels_last}
LIMIT = 1.5
BETA = 10.0
REPEATS = 5  # in a round: a pass takes milliseconds

Activation = Callable[[Tensor], Tensor]
Shape = tuple[int, ...]


class TorchOperators(torch.autograd.Function):
    """What the package computes with where there is no compiler."""

    @staticmethod
    def forward(ctx: Any, v: Tensor) -> Tensor:
        y = eager.blockwise(eager.forward, BETA, v)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return eager.blockwise(eager.backward, BETA, grad, *ctx.saved_tensors)


def softplus(v: Tensor) -> Tensor:
    """The definition, left to autograd."""
    return torch.relu(1 - torch.nn.functional.softplus(1 - v, BETA))


def direct(v: Tensor) -> Tensor:
    """The formulation that torch.compile makes the fastest code of."""
    return (v.clamp(max=1) - torch.log1p(torch.exp(-BETA * (v - 1).abs())) / BETA).clamp(0, 1)


def run(settings: Settings) -> dict[str, Any]:
    """The figure for both layouts on one and two threads; other ways to compute it, on the largest map."""
    torch.manual_seed(0)
    figures: list[Figure] = []
    times: dict[str, Times] = {}
    fastest: dict[str, Times] = {}
    sides: dict[str, Activation] = {"soft": soft_clamped_relu, "relu": torch.relu}
    rounds, shapes = settings.rounds, activated(NETWORK, 4 if settings.quick else BATCH)
    for count in (1, 2):
        for layout, memory_format in LAYOUTS.items():
            case = f"{layout}, threads {count}"
            settings.tell(f"beside ReLU, {case}", len(times) / (2 * len(LAYOUTS) + 1))
            with threads(count):
                maps = [passes(sides, shape, memory_format, rounds * REPEATS) for shape in shapes]
            times[case] = together(maps)
            fastest[case] = {side: [min(taken[side]) for taken in maps] for side in sides}
            title = f"Dense320, batch {BATCH}, {case}: SoftClampedReLU beside ReLU, forward and backward"
            figures.append(ratio(title, times[case], "soft", "relu", LIMIT))
    settings.tell("other ways to compute it", len(times) / (len(times) + 1))
    ways, others = tried(rounds, shapes[0], compiled=not settings.quick)
    status = kernels.status()
    built = {"native": status.native, "threads": status.threads}
    details = {"kernels": built, "seconds": times, "fastest": fastest, "ways": ways}
    return document("activation", settings, figures + others, **details)


def activated(name: str, batch: int) -> list[Shape]:
    """The shapes of a network's activations, in forward order."""
    shapes = list[Shape]()
    model = build(name)
    for part in model.modules():
        if isinstance(part, SoftClampedReLU):
            part.register_forward_hook(lambda part, args, y: shapes.append(tuple(y.shape)))
    with torch.no_grad():
        model(images(name, batch))
    return shapes


def tried(rounds: int, shape: Shape, *, compiled: bool) -> tuple[list[dict[str, Any]], list[Figure]]:
    """Ways to compute it on the largest map, one thread: their times, memory and the cost of a call.

    Each runs beside ReLU alone: what one way frees would have to be fetched again by the next.
    """
    ways: dict[str, Activation] = {
        "compiled C": soft_clamped_relu,
        "torch operators, output kept": TorchOperators.apply,
        "softplus and autograd": softplus,
    }
    if compiled:
        ways["torch.compile with dynamic shapes"] = torch.compile(direct, dynamic=True)
    rows, figures = [], []
    where = f"{'×'.join(map(str, shape))}, contiguous, threads 1"
    with threads(1):
        for name, way in ways.items():
            sides = {name: way, "ReLU": torch.relu}
            times = passes(sides, shape, torch.contiguous_format, rounds)
            calls = passes(sides, (1,), torch.contiguous_format, 100 * rounds)
            figures.append(ratio(f"{where}: {name} beside ReLU", times, name, "ReLU"))
            rows += [
                {"name": side, "seconds": times[side], "call": min(calls[side]), "bytes": allocated(sides[side], shape)}
                for side in sides
            ]
    return rows, figures


def passes(ways: Mapping[str, Activation], shape: Shape, memory_format: torch.memory_format, rounds: int) -> Times:
    """Forward and backward over one map."""
    v, grad = (drawn(shape, memory_format) for _ in range(2))
    v.requires_grad_()

    def both(way: Activation) -> None:
        torch.autograd.grad(way(v), v, grad)

    return interleaved({name: partial(both, way) for name, way in ways.items()}, rounds)


def drawn(shape: Shape, memory_format: torch.memory_format) -> Tensor:
    x = torch.randn(shape)
    return x.to(memory_format=memory_format) if x.dim() == 4 else x


def together(maps: list[Times]) -> Times:
    """The times of a round, summed over the maps."""
    return {side: [sum(parts) for parts in zip(*(taken[side] for taken in maps), strict=True)] for side in maps[0]}


def allocated(way: Activation, shape: Shape) -> int:
    """Bytes that one forward and backward pass over a map allocates."""
    v, grad = (drawn(shape, torch.contiguous_format) for _ in range(2))
    v.requires_grad_()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        torch.autograd.grad(way(v), v, grad)
    return sum(max(event.self_cpu_memory_usage, 0) for event in record.events())
