"""A user's own network and data, for runs that take no time."""

import torch
from torch import Tensor, nn

from nodedrop.experiments.data import Data


def net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 3))


def wide() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 48), nn.ReLU(), nn.Linear(48, 3))


class Broken(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        if len(x) == 40:  # the size of a training batch, and of nothing else
            raise RuntimeError("out of luck")
        out: Tensor = super().forward(x)
        return out


def broken() -> nn.Module:
    return Broken(*net())


def five() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 5), nn.ReLU())


def narrow() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(15, 3))


def fails() -> nn.Module:
    raise KeyError("no such thing")


def data() -> Data:
    """Is the picture dark, grey or bright?"""
    generator = torch.Generator().manual_seed(0)
    level = torch.randint(3, (500,), generator=generator)
    images = torch.randint(86, (500, 1, 4, 4), generator=generator) + 85 * level.view(-1, 1, 1, 1)
    images = images.to(torch.uint8)
    return Data("levels", images[:400], level[:400], images[400:], level[400:], 3)


def floats() -> Data:
    good = data()
    return Data("levels", good.train_images.float(), good.train_labels, good.test_images, good.test_labels, 3)


def labels() -> Data:
    good = data()
    return Data("levels", good.train_images, good.train_labels + 1, good.test_images, good.test_labels, 3)


value = 5
OWN = {"network": f"{__name__}:net", "data": f"{__name__}:data", "epochs": 2, "batch": 40}
