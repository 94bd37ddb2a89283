"""Residual networks: streams whose units go only when every branch that adds to them agrees."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .blocks import (
    NORMALISED,
    UNIT,
    ConvBnAct,
    SqueezeExcite,
    dead,
    dead_blocks,
    killing,
    net,
    normalised,
    uniform,
)
from .planting import Plant


def conv3(cin: int, cout: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(cin, cout, 3, stride, 1, bias=False)


class BasicBlock(nn.Module):
    """conv-bn-relu-conv-bn, plus the shortcut, then ReLU in place."""

    def __init__(self, cin: int, cout: int, stride: int = 1, se: bool = False) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv3(cin, cout, stride), nn.BatchNorm2d(cout)
        self.conv2, self.bn2 = conv3(cout, cout), nn.BatchNorm2d(cout)
        self.se = SqueezeExcite(cout, 6) if se else nn.Identity()
        self.down = None
        if stride != 1 or cin != cout:
            self.down = nn.Sequential(nn.Conv2d(cin, cout, 1, stride, bias=False), nn.BatchNorm2d(cout))

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu_()))
        out = self.se(out)
        out += x if self.down is None else self.down(x)
        return out.relu_()


class ResNet(nn.Module):
    def __init__(self, se: bool = False) -> None:
        super().__init__()
        self.conv, self.bn = conv3(3, 8), nn.BatchNorm2d(8)
        self.layer1 = BasicBlock(8, 8, se=se)
        self.layer2 = BasicBlock(8, 12, 2, se=se)
        self.layer3 = BasicBlock(12, 12, se=se)
        self.fc = nn.Linear(12, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.bn(self.conv(x)).relu()
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.fc(x.mean((2, 3)))


class Bottleneck(nn.Module):
    """1×1, 3×3 (grouped in ResNeXt), 1×1."""

    def __init__(self, cin: int, width: int, cout: int, stride: int = 1, groups: int = 1) -> None:
        super().__init__()
        self.reduce = ConvBnAct(cin, width, 1)
        self.spatial = ConvBnAct(width, width, 3, stride=stride, groups=groups)
        self.expand = ConvBnAct(width, cout, 1, act=nn.Identity)
        self.down: nn.Module = nn.Identity()
        if stride != 1 or cin != cout:
            self.down = ConvBnAct(cin, cout, 1, stride=stride, act=nn.Identity)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.expand(self.spatial(self.reduce(x))) + self.down(x))


class BottleneckNet(nn.Module):
    def __init__(self, groups: int = 1) -> None:
        super().__init__()
        self.stem = ConvBnAct(3, 8)
        self.pool = nn.MaxPool2d(3, stride=2, padding=1)
        self.block1 = Bottleneck(8, 8, 12, groups=groups)
        self.block2 = Bottleneck(12, 8, 12, groups=groups)
        self.block3 = Bottleneck(12, 8, 16, stride=2, groups=groups)
        self.gap = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.block3(self.block2(self.block1(self.pool(self.stem(x)))))
        return self.fc(self.gap(x).flatten(1))


class PreActBlock(nn.Module):
    """Norm and activation in front of each convolution; the stream itself is never activated."""

    def __init__(self, cin: int, cout: int, stride: int = 1) -> None:
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(cin), conv3(cin, cout, stride)
        self.bn2, self.conv2 = nn.BatchNorm2d(cout), conv3(cout, cout)
        self.shortcut = nn.Conv2d(cin, cout, 1, stride, bias=False) if stride != 1 else None

    def forward(self, x: Tensor) -> Tensor:
        active = self.bn1(x).relu()
        skip = x if self.shortcut is None else self.shortcut(active)
        return self.conv2(self.bn2(self.conv1(active)).relu()) + skip


class PreActResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = conv3(3, 8)
        self.block1 = PreActBlock(8, 8)
        self.block2 = PreActBlock(8, 12, 2)
        self.block3 = PreActBlock(12, 12)
        self.bn = nn.BatchNorm2d(12)
        self.fc = nn.Linear(12, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.block3(self.block2(self.block1(self.conv(x))))
        x = nn.functional.avg_pool2d(self.bn(x).relu(), 4)
        return self.fc(x.view(x.shape[0], -1))


class PlainBlock(nn.Module):
    """Without norms: biases instead."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.conv2(self.conv1(x).relu()))


class PlainResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.blocks = nn.ModuleList(PlainBlock(8) for _ in range(2))
        self.fc = nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).relu()
        for block in self.blocks:
            x = block(x)
        return self.fc(x.amax((2, 3)))


INNER = tuple(
    killing(f"layer{i}.bn1", removes=f"layer{i}.conv1", at=at)
    for i, at in enumerate(((2, 7), (0, 5, 9), (3, 4)), start=1)
)


def bottleneck_plants(reduce: tuple[int, ...], spatial: tuple[int, ...]) -> tuple[Plant, ...]:
    """Streams of 8, 12 and 16 units, and the inside of each block."""
    blocks = ("block1", "block2", "block3")
    return (
        dead_blocks("stem", at=(0, 3)),
        dead_blocks("block1.expand", "block1.down", "block2.expand", at=(1, 6, 10)),
        dead_blocks("block3.expand", "block3.down", at=(4, 5, 15)),
        *(dead_blocks(f"{block}.reduce", at=reduce) for block in blocks),
        *(dead_blocks(f"{block}.spatial", at=spatial) for block in blocks),
    )


ENTRIES = (
    net("resnet_basic", ResNet, uniform(2, 3, 8, 8), UNIT,
        killing("bn layer1.bn2", removes="conv layer1.conv2", at=(1, 6)),
        killing("layer2.bn2 layer2.down.1 layer3.bn2", at=(0, 4, 11),
                removes="layer2.conv2 layer2.down.0 layer3.conv2"),
        *INNER,
        pinned=("fc",), tags="residual batchnorm inplace"),
    net("resnet_bottleneck", BottleneckNet, normalised(2, 3, 8, 8), NORMALISED,
        *bottleneck_plants(reduce=(2, 7), spatial=(0, 1)),
        pinned=("fc",), tags="residual batchnorm maxpool per-channel-domain"),
    net("resnext", lambda: BottleneckNet(groups=2), uniform(2, 3, 8, 8), UNIT,
        *bottleneck_plants(reduce=(1, 5), spatial=(2, 6)),
        pinned=("fc",), tags="residual batchnorm grouped"),
    net("preact_resnet", PreActResNet, uniform(2, 3, 8, 8), UNIT,
        killing("block1.bn1 block2.bn1", removes="conv block1.conv2", at=(3, 5)),
        killing("block3.bn1 bn", removes="block2.conv2 block2.shortcut block3.conv2", at=(0, 7, 8)),
        killing("block1.bn2", removes="block1.conv1", at=(1, 2)),
        killing("block2.bn2", removes="block2.conv1", at=(4, 10, 11)),
        killing("block3.bn2", removes="block3.conv1", at=(0, 6)),
        pinned=("fc",), tags="residual batchnorm preact avgpool"),
    net("se_resnet", lambda: ResNet(se=True), uniform(2, 3, 8, 8), UNIT,
        killing("bn", removes="conv", at=(1, 6)),
        killing("layer1.bn2", removes="layer1.conv2 layer1.se.fc2", at=(1, 6), how="null"),
        killing("layer2.down.1", removes="layer2.down.0", at=(0, 4, 11)),
        killing("layer2.bn2 layer3.bn2", removes="layer2.conv2 layer2.se.fc2 layer3.conv2 layer3.se.fc2",
                at=(0, 4, 11), how="null"),
        *INNER,
        dead("layer1.se.fc1", at=(0, 4)), dead("layer2.se.fc1", at=(2, 3)), dead("layer3.se.fc1", at=(5,)),
        pinned=("fc",), tags="residual batchnorm squeeze-excite"),
    net("resnet_no_norm", PlainResNet, normalised(2, 3, 8, 8), NORMALISED,
        dead("stem", at=(2, 5), how="bound"),
        dead("blocks.0.conv2", "blocks.1.conv2", at=(2, 5)),
        dead("blocks.0.conv1", at=(0, 7), how="nonpositive"),
        dead("blocks.1.conv1", at=(3, 4)),
        pinned=("fc",), tags="residual per-channel-domain", gain=1.5),
)  # fmt: skip
