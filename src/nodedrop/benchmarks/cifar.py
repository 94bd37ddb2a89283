"""A whole NodeDrop run on CIFAR-10 beside a whole dense ReLU run of as many epochs."""

from __future__ import annotations

from typing import Any

from .harness import Settings
from .run import Case, races

# A network with units to spare for what it has to learn: half of VGG16's width, and 10,000 images as they are.
_CHANGES: dict[str, Any] = {
    "width": 0.5, "images": 10_000, "shift": 0, "mirror": False, "epochs": 14, "lr": 5e-4, "activation": "relu",
    "lam": 2e-3, "spare": 0.7, "quiet": 1.5, "fade": 0.7,
}  # fmt: skip
CASES = {"CIFAR-10 VGG16 without batch norm, half of its width": Case("cifar10-vgg16", _CHANGES, 0.5, 1.0)}


def run(settings: Settings) -> dict[str, Any]:
    """The data set's folder is the user's."""
    return races("cifar", CASES, settings)
