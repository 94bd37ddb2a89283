"""A whole NodeDrop run on CIFAR-10 beside a whole dense ReLU run of as many epochs."""

from __future__ import annotations

from typing import Any

from .harness import Settings
from .run import Case, races

# All images as they are, with values around 0, from which a deep network without batch norm learns faster than from
# [0, 1]. Pressed early, towards widths that are fast (in blocks of 8 units, and of 16), and narrow where images are
# small; then left to learn.
_WIDTHS = "conv4=48,conv5=96,conv[67]=80,conv8=96,conv9=64,conv1[0-3]=64,dense=64"
_CHANGES: dict[str, Any] = {
    "width": 0.5, "images": 0, "shift": 0, "mirror": False, "domain": "-2,2", "epochs": 8, "lr": 1e-3,
    "activation": "relu", "lam": 8e-3, "spare": 1.0, "spare_of": _WIDTHS, "multiple": 16, "quiet": 0.1, "rest": 7.7,
}  # fmt: skip
CASES = {"CIFAR-10 VGG16 without batch norm": Case("cifar10-vgg16", _CHANGES, 0.5, 1.0, {"lr": 1e-3})}


def run(settings: Settings) -> dict[str, Any]:
    """The data set's folder is the user's."""
    return races("cifar", CASES, settings)
