"""A whole NodeDrop run on CIFAR-10 beside a whole dense ReLU run of as many epochs."""

from __future__ import annotations

from typing import Any

from .harness import Settings
from .run import Case, races

# All images as they are, with values around 0, from which a deep network without batch norm learns faster than from
# [0, 1]. Pressed early, towards widths that are fast, and narrow where images are small; then left to learn. The dense
# network has the learning rate that served it best of those tried, which is lower: it is wider.
_WIDTHS = "conv4=24,conv5=48,conv[67]=40,conv8=32,conv9=24,conv1?=24,dense=32"
_CHANGES: dict[str, Any] = {
    "width": 0.25, "images": 0, "shift": 0, "mirror": False, "domain": "-2,2", "epochs": 12, "lr": 1.4e-3,
    "activation": "relu", "lam": 8e-3, "spare": 1.0, "spare_of": _WIDTHS, "multiple": 8, "quiet": 0.1, "rest": 11.7,
}  # fmt: skip
CASES = {"CIFAR-10 VGG16 without batch norm": Case("cifar10-vgg16", _CHANGES, 0.5, 1.0, {"lr": 1e-3})}


def run(settings: Settings) -> dict[str, Any]:
    """The data set's folder is the user's."""
    return races("cifar", CASES, settings)
