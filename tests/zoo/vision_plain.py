"""Plain convolutional chains: VGG, LeNet with clamped activations, AlexNet, one and three dimensions."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from nodedrop.activations import SoftClampedReLU

from .blocks import NORMALISED, UNIT, ConvBnAct, dead, dead_blocks, killing, net, normalised, uniform


class Vgg(nn.Module):
    """3×3 convolutions, max pooling, flatten to a dense head (4 positions per unit)."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(inplace=True),
            nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2),
            nn.Conv2d(8, 12, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2),
        )  # fmt: skip
        self.classifier = nn.Sequential(nn.Linear(48, 16), nn.ReLU(inplace=True), nn.Linear(16, 10))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(torch.flatten(self.features(x), 1))


class VggBn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            ConvBnAct(3, 8),
            ConvBnAct(8, 8),
            nn.MaxPool2d(2),
            ConvBnAct(8, 12),
            ConvBnAct(12, 16),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x))


class LeNet(nn.Module):
    """The paper's MNIST network in small: no padding, a clamped activation everywhere."""

    def __init__(self, act: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 3)
        self.conv2 = nn.Conv2d(6, 8, 3)
        self.pool = nn.MaxPool2d(2)
        self.fc1 = nn.Linear(72, 16)
        self.fc2 = nn.Linear(16, 12)
        self.fc3 = nn.Linear(12, 10)
        self.act = act()

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.act(self.conv2(self.act(self.conv1(x)))))
        x = self.act(self.fc1(x.view(x.size(0), -1)))
        return self.fc3(self.act(self.fc2(x)))


class AlexNet(nn.Module):
    """Strided first layer, overlapping and adaptive pooling, dropout in the head."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 5, stride=2, padding=2)
        self.conv2 = nn.Conv2d(8, 12, 3, padding=1)
        self.pool = nn.MaxPool2d(3, 2)
        self.avgpool = nn.AdaptiveAvgPool2d((2, 2))
        self.drop = nn.Dropout(p)
        self.fc1 = nn.Linear(48, 16)
        self.fc2 = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(torch.relu(self.conv1(x)))
        x = self.avgpool(self.conv2(x).relu()).flatten(1)
        return self.fc2(self.fc1(self.drop(x)).relu())


class AudioNet(nn.Module):
    """One-dimensional convolutions with batch norm on a waveform."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(1, 8, 9, stride=2)
        self.bn1 = nn.BatchNorm1d(8)
        self.conv2 = nn.Conv1d(8, 12, 3, dilation=2)
        self.pool = nn.AvgPool1d(2)
        self.fc = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.bn1(self.conv1(x)).relu())
        return self.fc(self.conv2(x).relu().mean(-1))


class VideoNet(nn.Module):
    """Three-dimensional convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv3d(2, 6, 3, padding=1)
        self.conv2 = nn.Conv3d(6, 8, 3, padding=1)
        self.bn2 = nn.BatchNorm3d(8)
        self.fc = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.max_pool3d(self.conv1(x).relu(), 2)
        x = self.bn2(self.conv2(x)).relu()
        return self.fc(nn.functional.adaptive_avg_pool3d(x, 1).flatten(1))


class AllConv(nn.Module):
    """No bias anywhere, strides instead of pooling, channel means as output."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.ReLU(),
            nn.Conv2d(8, 12, 3, stride=2, padding=1, bias=False), nn.ReLU(),
            nn.Conv2d(12, 12, 1, bias=False), nn.ReLU(),
            nn.Conv2d(12, 6, 1, bias=False),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x).mean(dim=(2, 3))


def clamped() -> nn.Module:
    return nn.Hardtanh(0.0, 1.0)


ENTRIES = (
    net("vgg", Vgg, uniform(2, 3, 8, 8), UNIT,
        dead("features.0", at=(1, 4), how="bound"),
        dead("features.2", at=(0, 5), how="nonpositive"),
        dead("features.5", at=(3, 7, 11)),
        dead("classifier.0", at=(2, 9), how="nonpositive"),
        pinned=("classifier.2",), tags="flatten maxpool inplace", gain=1.2),
    net("vgg_bn", VggBn, normalised(2, 3, 8, 8), NORMALISED,
        dead_blocks("features.0", at=(0, 6)),
        dead_blocks("features.1", at=(2, 3)),
        dead_blocks("features.3", at=(5, 10)),
        dead_blocks("features.4", at=(1, 8, 15)),
        dead("classifier.1", at=(0, 7, 13)),
        pinned=("classifier.3",), tags="batchnorm flatten per-channel-domain"),
    net("vgg_bn_faint", VggBn, uniform(2, 3, 8, 8), UNIT,
        dead_blocks("features.0", at=(1, 4), how="faint"),
        # Deeper, the range is too wide for any batch; with a declared batch size these can go as well.
        killing("features.1.bn", removes="", stays=("features.1.conv",), at=(0, 7), how="faint"),
        dead_blocks("features.3", at=(2,)), dead_blocks("features.4", at=(5, 9)),
        dead("classifier.1", at=(3,)),
        pinned=("classifier.3",), tags="batchnorm batch-size-bound stuck"),
    net("lenet_soft", lambda: LeNet(SoftClampedReLU), uniform(2, 1, 10, 10), UNIT,
        dead("conv1", at=(0, 4), how="bound"),
        dead("conv2", at=(1, 6), how="bound", box=UNIT),
        dead("fc1", at=(3, 8, 15), how="bound", box=UNIT),
        dead("fc2", at=(0, 11), how="nonpositive"),
        pinned=("fc3",), tags="soft-clamped flatten", gain=1.0),
    net("lenet_clamped", lambda: LeNet(clamped), uniform(2, 1, 10, 10), UNIT,
        dead("conv1", at=(2,), how="bound"),
        dead("conv1", at=(5,), how="saturate"),
        dead("conv2", at=(0, 3), how="saturate", box=UNIT),
        dead("conv2", at=(7,), how="nonpositive"),
        dead("fc1", at=(1, 2), how="saturate", box=UNIT),
        dead("fc1", at=(9,), how="bound", box=UNIT),
        dead("fc2", at=(4,), level=1.5),
        dead("fc2", at=(6, 10)),
        pinned=("fc3",), tags="hardtanh constant flatten", gain=0.6),
    net("alexnet", lambda: AlexNet(0.0), normalised(2, 3, 16, 16), NORMALISED,
        dead("conv1", at=(3, 5), how="bound"),
        dead("conv2", at=(0, 2, 9), how="nonpositive"),
        dead("fc1", at=(4, 12)),
        pinned=("fc2",), tags="maxpool adaptive-pool per-channel-domain", gain=1.5),
    net("alexnet_dropout", lambda: AlexNet(0.3), uniform(2, 3, 16, 16), UNIT,
        dead("conv1", at=(0, 7), how="bound"),
        dead("conv2", at=(6, 11), how="nonpositive"),
        dead("fc1", at=(1, 15), how="nonpositive"),
        pinned=("fc2",), tags="dropout adaptive-pool"),
    net("conv1d", AudioNet, uniform(2, 1, 64, lo=-1.0), (-1.0, 1.0),
        killing("bn1", removes="conv1", at=(2, 5)),
        dead("conv2", at=(0, 7, 8), how="nonpositive"),
        pinned=("fc",), tags="conv1d batchnorm avgpool negative-domain"),
    net("conv3d", VideoNet, uniform(2, 2, 4, 4, 4), UNIT,
        dead("conv1", at=(1, 4), how="bound"),
        killing("bn2", removes="conv2", at=(0, 6)),
        pinned=("fc",), tags="conv3d batchnorm"),
    net("allconv_no_bias", AllConv, uniform(2, 3, 8, 8), UNIT,
        dead("body.0", at=(0, 3), how="nonpositive"),
        dead("body.2", at=(5, 9), how="nonpositive"),
        dead("body.4", at=(2, 7)),
        pinned=("body.6",), tags="no-bias"),
)  # fmt: skip
