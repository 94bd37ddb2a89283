"""Small networks that move the unit axis about: flatten, permute, groups, depthwise, pixel shuffle."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .blocks import UNIT, balanced, dead, killing, net, stuck, uniform


class Flatten(nn.Module):
    """Every unit of the convolution is 12 inputs of the dense layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc1, self.fc2 = nn.Conv2d(2, 6, 3), nn.Linear(72, 10), nn.Linear(10, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.fc1(self.conv(x).relu().reshape(x.shape[0], -1)).relu())


class FlattenLast(nn.Module):
    """Channels last before flattening, so that a unit's inputs are interleaved with the others'."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc1, self.fc2 = nn.Conv2d(2, 6, 3), nn.Linear(72, 10), nn.Linear(10, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.fc1(self.conv(x).relu().permute(0, 2, 3, 1).flatten(1)).relu())


class FixedView(nn.Module):
    """view(-1, 96) would fold the batch if a unit went: the width is written into the code."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(2, 8, 3, padding=1), nn.Conv2d(8, 6, 3, padding=1)
        self.fc1, self.fc2 = nn.Linear(96, 10), nn.Linear(10, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv2(self.conv1(x).relu()).relu()
        return self.fc2(self.fc1(x.view(-1, 96)).relu())


class Patches(nn.Module):
    """A map as a sequence of positions, dense layers on the channels, and back to a map."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.fc1, self.fc2 = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8, 10), nn.Linear(10, 6)
        self.conv2 = nn.Conv2d(6, 2, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        batch, _, height, width = x.shape
        x = self.conv1(x).relu().permute(0, 2, 3, 1).reshape(batch, height * width, -1)
        x = self.fc2(self.fc1(x).relu()).relu()
        return self.conv2(x.transpose(1, 2).reshape(batch, -1, height, width))


class DepthMultiplier(nn.Module):
    """Depthwise with two outputs per input: both belong to their input."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, padding=1)
        self.depthwise = nn.Conv2d(6, 12, 3, padding=1, groups=6)
        self.point, self.fc = nn.Conv2d(12, 8, 1), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.point(self.depthwise(self.conv(x).relu()).relu()).relu()
        return self.fc(x.mean((2, 3)))


class Grouped(nn.Module):
    """A convolution in three groups between two plain ones."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 12, 3, padding=1)
        self.conv2 = nn.Conv2d(12, 9, 3, padding=1, groups=3)
        self.conv3, self.fc = nn.Conv2d(9, 8, 1), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv2(self.conv1(x).relu()).relu()
        return self.fc(self.conv3(x).relu().mean((2, 3)))


class GroupedTransposed(nn.Module):
    """Transposed convolutions, one in two groups."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.up1 = nn.ConvTranspose2d(8, 12, 4, stride=2, padding=1, groups=2)
        self.up2 = nn.ConvTranspose2d(12, 6, 3, stride=2, padding=1, output_padding=1)
        self.out = nn.Conv2d(6, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.up2(self.up1(self.conv(x).relu()).relu()).relu())


class SuperResolution(nn.Module):
    """Pixel shuffle: four units of the convolution are one of the map behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1)
        self.shuffle, self.conv3 = nn.PixelShuffle(2), nn.Conv2d(4, 2, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv3(self.shuffle(self.conv2(self.conv1(x).relu()).relu()))


class SpaceToDepth(nn.Module):
    """Pixel unshuffle: one unit becomes four neighbouring inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.shuffle = nn.Conv2d(3, 6, 3, padding=1), nn.PixelUnshuffle(2)
        self.conv2, self.fc = nn.Conv2d(24, 8, 1), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv2(self.shuffle(self.conv1(x).relu())).relu()
        return self.fc(x.mean((2, 3)))


class Focus(nn.Module):
    """Space to depth by strided slices and concatenation, as in YOLO."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2, self.fc = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(24, 8, 1), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv1(x).relu()
        x = torch.cat([x[..., ::2, ::2], x[..., 1::2, ::2], x[..., ::2, 1::2], x[..., 1::2, 1::2]], 1)
        return self.fc(self.conv2(x).relu().mean((2, 3)))


class Pools(nn.Module):
    """Every kind of pooling in a row, with padding where it can be."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 8, 3, padding=1, padding_mode="replicate"), nn.Conv2d(8, 8, 3)
        self.conv3, self.fc = nn.Conv2d(8, 8, 3, padding=1), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.max_pool2d(self.conv1(x).relu(), 3, 2, 1)
        x = nn.functional.avg_pool2d(self.conv2(nn.functional.pad(x, (1, 1, 1, 1))).relu(), 3, 1, 1)
        x = self.conv3(x).relu()
        mean, top = nn.functional.adaptive_avg_pool2d(x, 1), nn.functional.adaptive_max_pool2d(x, 1)
        return self.fc(torch.cat([mean, top], 1).flatten(1))


def weights(*shape: int, transposed: bool = False) -> nn.Parameter:
    weight = balanced(torch.randn(shape)) * 0.5
    return nn.Parameter(weight.t().contiguous() if transposed else weight)


class Einsum(nn.Module):
    """Raw parameters contracted by einsum, a matrix product, F.linear and F.conv1d."""

    def __init__(self) -> None:
        super().__init__()
        self.w1, self.b1 = weights(10, 6), nn.Parameter(0.2 + torch.rand(10) * 0.3)
        self.w2, self.b2 = weights(8, 10, transposed=True), nn.Parameter(0.2 + torch.rand(8) * 0.3)
        self.w3, self.b3 = weights(8, 8), nn.Parameter(0.2 + torch.rand(8) * 0.3)
        self.w4, self.b4 = weights(6, 8, 1), nn.Parameter(0.2 + torch.rand(6) * 0.3)
        self.out = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = (torch.einsum("btd,od->bto", x, self.w1) + self.b1).relu()
        x = (x @ self.w2 + self.b2).relu()
        x = nn.functional.linear(x, self.w3, self.b3).relu()
        x = nn.functional.conv1d(x.mT, self.w4, self.b4).relu()
        return self.out(x.mean(-1))


SMALL = uniform(2, 2, 6, 5)
IMAGE = uniform(2, 3, 6, 6)

ENTRIES = (
    net("flatten_dense", Flatten, SMALL, UNIT,
        dead("conv", at=(1, 4), how="bound"), dead("fc1", at=(0, 6, 9), how="nonpositive"),
        pinned=("fc2",), tags="flatten"),
    net("flatten_channels_last", FlattenLast, SMALL, UNIT,
        dead("conv", at=(0, 5), how="bound"), dead("fc1", at=(2, 3), how="nonpositive"),
        pinned=("fc2",), tags="flatten permute"),
    net("view_fixed_width", FixedView, uniform(2, 2, 4, 4), UNIT,
        dead("conv1", at=(0, 3), how="bound"),
        stuck("conv2", at=(1, 2, 5), how="nonpositive"),
        dead("fc1", at=(4, 7), how="nonpositive"),
        pinned=("fc2",), tags="flatten fixed-width stuck", gain=1.2),
    net("reshape_permute", Patches, IMAGE, UNIT,
        dead("conv1", at=(2, 6), how="bound"),
        dead("fc1", at=(0, 9), how="nonpositive"), dead("fc2", at=(3, 5), how="nonpositive"),
        pinned=("conv2",), tags="permute reshape"),
    net("depthwise_multiplier", DepthMultiplier, IMAGE, UNIT,
        dead("conv", at=(1, 4), how="bound"),
        dead("depthwise", at=(2, 3, 8, 9), how="nonpositive"),
        stuck("depthwise", at=(0,), how="nonpositive"),
        dead("point", at=(5, 7)),
        pinned=("fc",), tags="depthwise stuck"),
    net("grouped", Grouped, IMAGE, UNIT,
        dead("conv1", at=(1, 5, 9), how="bound"),
        dead("conv2", at=(2, 5, 8), how="nonpositive"),
        dead("conv3", at=(0, 6)),
        pinned=("fc",), tags="grouped"),
    net("grouped_whole", Grouped, IMAGE, UNIT,
        dead("conv1", at=(4, 5, 6, 7), how="bound"), dead("conv2", at=(3, 4, 5), how="nonpositive"),
        dead("conv3", at=(1, 7)),
        pinned=("fc",), tags="grouped"),
    net("grouped_uneven", Grouped, IMAGE, UNIT,
        stuck("conv1", at=(0, 7), how="bound"),
        stuck("conv2", at=(1, 2), how="nonpositive"),
        dead("conv3", at=(3,)),
        pinned=("fc",), tags="grouped stuck"),
    net("transposed_grouped", GroupedTransposed, uniform(2, 3, 8, 8), UNIT,
        dead("conv", at=(0, 4), how="bound"),
        dead("up1", at=(2, 5, 8, 11), how="nonpositive"), dead("up2", at=(1, 3)),
        pinned=("out",), tags="transposed grouped"),
    net("pixel_shuffle", SuperResolution, IMAGE, UNIT,
        dead("conv1", at=(3, 5), how="bound"), dead("conv2", at=(4, 5, 6, 7), how="nonpositive"),
        stuck("conv2", at=(8, 10), how="nonpositive"),
        pinned=("conv3",), tags="pixel-shuffle stuck"),
    net("pixel_unshuffle", SpaceToDepth, IMAGE, UNIT,
        dead("conv1", at=(0, 4), how="bound"), dead("conv2", at=(2, 7), how="nonpositive"),
        pinned=("fc",), tags="pixel-shuffle"),
    net("focus_slices", Focus, IMAGE, UNIT,
        dead("conv1", at=(2, 3), how="bound"), dead("conv2", at=(1, 6), how="nonpositive"),
        pinned=("fc",), tags="slice concat"),
    net("pools", Pools, uniform(2, 3, 8, 8), UNIT,
        dead("conv1", at=(1, 6), how="bound"), dead("conv2", at=(0, 3), how="nonpositive"),
        dead("conv3", at=(5, 7), how="nonpositive"),
        pinned=("fc",), tags="maxpool avgpool adaptive-pool padding"),
    net("raw_parameters", Einsum, uniform(2, 4, 6), UNIT,
        killing("w1 b1", removes="w1", at=(2, 7)),
        dead("w2", at=(1, 5), axis=1), killing("b2", removes="", at=(1, 5)),
        killing("w3 b3", removes="w3", at=(0, 6)),
        killing("w4 b4", removes="w4", at=(3,)),
        pinned=("out",), tags="raw-parameter einsum"),
)  # fmt: skip
