"""Measurements behind the figures in the documentation, each run by `nodedrop bench`."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from ..experiments.memory import keep_memory
from .harness import Settings

NAMES = {
    "imports": "seconds that `import nodedrop` adds to `import torch`",
    "activation": "SoftClampedReLU beside ReLU, and other ways to compute it",
    "step": "a NodeDrop training step beside a plain one while nothing is cut: time and memory",
    "analysis": "a repeated analysis beside a training step, and its growth with the network",
    "cost": "penalty and drop beside a plain training step; steps after a cut",
    "data": "loading and augmenting batches beside the step that uses them",
    "inference": "a compact network beside the dense one and its share of multiply-adds",
    "widths": "training steps at odd widths and at multiples of 8",
    "active": "ReLU units that are always on, and how many of them could be merged",
    "growth": "steps, memory, analysis and cuts as networks grow",
    "demo": "the demonstration: size, error and time",
    "run": "a whole NodeDrop run beside a whole dense one: MNIST",
    "cifar": "a whole NodeDrop run beside a whole dense one: CIFAR-10",
    "kept": "what the cuts of a run keep for a checker beside one checkpoint",
    "peers": "NodeDrop beside the paper's procedure, Torch-Pruning and network slimming",
}


def benchmark(name: str) -> Callable[[Settings], dict[str, Any]]:
    """The function that measures and returns a record; what pages of memory cost to fetch is no part of it."""
    keep_memory()
    found: Callable[[Settings], dict[str, Any]] = import_module(f"{__name__}.{name}").run
    return found
