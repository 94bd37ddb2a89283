"""Measurements behind the figures in the documentation, each run by `nodedrop bench`."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

NAMES = {
    "activation": "SoftClampedReLU beside ReLU, and other ways to compute it",
    "analysis": "a repeated analysis beside a training step, and its growth with the network",
    "cost": "penalty and drop beside a plain training step; steps after a cut",
}


def benchmark(name: str) -> Callable[[int], dict[str, Any]]:
    """The function that measures; it takes the number of rounds and returns a record."""
    found: Callable[[int], dict[str, Any]] = import_module(f"{__name__}.{name}").run
    return found
