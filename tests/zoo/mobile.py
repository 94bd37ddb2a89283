"""Networks made cheap by depthwise and grouped convolutions: MobileNet v1-v3, ShuffleNet v1-v2, GhostNet."""

from __future__ import annotations

from collections.abc import Callable

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
    stuck,
    uniform,
)


class MobileNetV1(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = ConvBnAct(3, 8)
        self.dw1, self.pw1 = ConvBnAct(8, 8, groups=8), ConvBnAct(8, 12, 1)
        self.dw2, self.pw2 = ConvBnAct(12, 12, stride=2, groups=12), ConvBnAct(12, 16, 1)
        self.fc = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pw1(self.dw1(self.stem(x)))
        return self.fc(self.pw2(self.dw2(x)).mean((2, 3)))


class Inverted(nn.Module):
    """Expand, depthwise, [squeeze-excite], and project without activation; a residual when shapes agree."""

    def __init__(self, cin: int, hidden: int, cout: int, *, stride: int = 1, se: bool = False,
                 act: Callable[[], nn.Module] = nn.ReLU6) -> None:  # fmt: skip
        super().__init__()
        self.expand = ConvBnAct(cin, hidden, 1, act=act)
        self.depthwise = ConvBnAct(hidden, hidden, stride=stride, groups=hidden, act=act)
        self.se = SqueezeExcite(hidden, 6, nn.Hardsigmoid) if se else nn.Identity()
        self.project = ConvBnAct(hidden, cout, 1, act=nn.Identity)
        self.residual = stride == 1 and cin == cout

    def forward(self, x: Tensor) -> Tensor:
        out = self.project(self.se(self.depthwise(self.expand(x))))
        return x + out if self.residual else out


class MobileNetV2(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = ConvBnAct(3, 8, act=nn.ReLU6)
        self.blocks = nn.Sequential(Inverted(8, 12, 6), Inverted(6, 12, 6), Inverted(6, 14, 8, stride=2))
        self.head = ConvBnAct(8, 16, 1, act=nn.ReLU6)
        self.classifier = nn.Sequential(nn.Dropout(0.0), nn.Linear(16, 10))

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.adaptive_avg_pool2d(self.head(self.blocks(self.stem(x))), (1, 1))
        return self.classifier(torch.flatten(x, 1))


class MobileNetV3(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = ConvBnAct(3, 8, act=nn.Hardswish)
        self.block1 = Inverted(8, 12, 8, se=True, act=nn.ReLU)
        self.block2 = Inverted(8, 14, 10, stride=2, se=True, act=nn.Hardswish)
        self.head = ConvBnAct(10, 16, 1, act=nn.Hardswish)
        self.fc1 = nn.Linear(16, 12)
        self.fc2 = nn.Linear(12, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.head(self.block2(self.block1(self.stem(x)))).mean((2, 3))
        return self.fc2(nn.functional.hardswish(self.fc1(x)))


class EfficientNet(nn.Module):
    """SiLU has no zero region: only the hidden units of squeeze-excite can be proved dead."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = ConvBnAct(3, 8, act=nn.SiLU)
        self.block = Inverted(8, 12, 8, se=True, act=nn.SiLU)
        self.fc = nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.block(self.stem(x)).mean((2, 3)))


def shuffle(x: Tensor, groups: int) -> Tensor:
    """Unit w of group a moves to position w·groups + a."""
    batch, channels, height, width = x.shape
    x = x.view(batch, groups, channels // groups, height, width)
    return x.transpose(1, 2).contiguous().view(batch, channels, height, width)


class ShuffleUnitV1(nn.Module):
    """Grouped 1×1, shuffle, depthwise, grouped 1×1; then add, or average pool and concatenate."""

    def __init__(self, cin: int, hidden: int, cout: int, *, stride: int = 1, first_groups: int = 2) -> None:
        super().__init__()
        self.squeeze = ConvBnAct(cin, hidden, 1, groups=first_groups)
        self.depthwise = ConvBnAct(hidden, hidden, stride=stride, groups=hidden, act=nn.Identity)
        self.expand = ConvBnAct(hidden, cout, 1, groups=2, act=nn.Identity)
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        out = self.expand(self.depthwise(shuffle(self.squeeze(x), 2)))
        if self.stride == 1:
            return torch.relu(x + out)
        pooled = nn.functional.avg_pool2d(x, 3, self.stride, 1)
        return torch.relu(torch.cat([pooled, out], 1))


class ShuffleNetV1(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = ConvBnAct(3, 8)
        self.down = ShuffleUnitV1(8, 16, 8, stride=2, first_groups=1)
        self.unit = ShuffleUnitV1(16, 16, 16)
        self.fc = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.unit(self.down(self.stem(x))).mean((2, 3)))


class ShuffleNetV2(nn.Module):
    """One unit with two strided branches, one that splits the channels; both concatenate and shuffle."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = ConvBnAct(3, 8)
        self.left = nn.Sequential(ConvBnAct(8, 8, stride=2, groups=8, act=nn.Identity), ConvBnAct(8, 8, 1))
        self.right = nn.Sequential(
            ConvBnAct(8, 8, 1), ConvBnAct(8, 8, stride=2, groups=8, act=nn.Identity), ConvBnAct(8, 8, 1)
        )
        self.branch = nn.Sequential(ConvBnAct(8, 8, 1), ConvBnAct(8, 8, groups=8, act=nn.Identity), ConvBnAct(8, 8, 1))
        self.shuffle = nn.ChannelShuffle(2)
        self.head = ConvBnAct(16, 12, 1)
        self.fc = nn.Linear(12, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = self.shuffle(torch.cat((self.left(x), self.right(x)), dim=1))
        keep, work = x.chunk(2, dim=1)
        x = self.shuffle(torch.cat((keep, self.branch(work)), dim=1))
        return self.fc(self.head(x).mean((2, 3)))


class GhostNet(nn.Module):
    """Half of the channels are cheap depthwise copies of the other half."""

    def __init__(self) -> None:
        super().__init__()
        self.primary = ConvBnAct(3, 8)
        self.cheap = ConvBnAct(8, 8, groups=8)
        self.conv = nn.Conv2d(16, 12, 3, stride=2)
        self.fc = nn.Linear(12, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.primary(x)
        x = torch.cat([x, self.cheap(x)], dim=1)
        return self.fc(self.conv(x).relu().mean((2, 3)))


ENTRIES = (
    net("mobilenet_v1", MobileNetV1, uniform(2, 3, 8, 8), UNIT,
        dead_blocks("stem", "dw1", at=(1, 5)),
        killing("dw2.bn", removes="pw1.conv dw2.conv", at=(0, 7, 11)),  # nobody but a dead unit reads pw1's
        dead_blocks("pw2", at=(3, 14)),
        pinned=("fc",), tags="depthwise batchnorm"),
    net("mobilenet_v2", MobileNetV2, normalised(2, 3, 8, 8), NORMALISED,
        dead_blocks("stem", at=(0, 6)),
        dead_blocks("blocks.0.expand", "blocks.0.depthwise", at=(2, 9)),
        dead_blocks("blocks.1.expand", "blocks.1.depthwise", at=(1, 11)),
        dead_blocks("blocks.2.expand", "blocks.2.depthwise", at=(0, 5, 13)),
        dead_blocks("blocks.0.project", "blocks.1.project", at=(4,), how="null"),
        dead_blocks("blocks.2.project", at=(1, 3), how="null"),
        dead_blocks("head", at=(7, 8)),
        pinned=("classifier.1",), tags="depthwise batchnorm residual relu6 per-channel-domain"),
    net("mobilenet_v3", MobileNetV3, uniform(2, 3, 8, 8), UNIT,
        dead_blocks("stem", "block1.project", at=(2, 5), how="null"),
        killing("block1.expand.bn block1.depthwise.bn",
                removes="block1.expand.conv block1.depthwise.conv block1.se.fc2", at=(0, 8)),
        killing("block2.expand.bn block2.depthwise.bn",
                removes="block2.expand.conv block2.depthwise.conv block2.se.fc2", at=(3, 12), level=-4.0),
        dead("block1.se.fc1", at=(1, 4)), dead("block2.se.fc1", at=(0, 5)),
        dead_blocks("block2.project", at=(6,), how="null"),
        dead_blocks("head", at=(1, 10), level=-3.5),
        dead("fc1", at=(2, 7), level=-3.5),
        pinned=("fc2",), tags="depthwise batchnorm squeeze-excite hardswish hardsigmoid"),
    net("efficientnet", EfficientNet, uniform(2, 3, 8, 8), UNIT,
        dead("block.se.fc1", at=(0, 3)),
        stuck("block.se.fc2", at=(1, 8), level=-4.0),  # the hidden units read what these gate
        pinned=("fc",), tags="depthwise batchnorm squeeze-excite no-zero-region stuck"),
    net("shufflenet_v1", ShuffleNetV1, uniform(2, 3, 8, 8), UNIT,
        dead_blocks("stem", "down.expand", at=(2, 6)),
        dead_blocks("unit.expand", at=(2, 6, 10, 14)),
        dead_blocks("down.squeeze", at=(1, 5, 9, 13)),
        dead_blocks("down.depthwise", at=(2, 3, 10, 11), how="null"),
        killing("unit.depthwise.bn", at=(2, 3, 10, 11), how="null",
                removes="unit.depthwise.conv unit.squeeze.conv",
                removed_at={"unit.squeeze.conv": (1, 5, 9, 13)}),
        pinned=("fc",), tags="depthwise grouped channel-shuffle batchnorm residual concat"),
    net("shufflenet_v2", ShuffleNetV2, uniform(2, 3, 8, 8), UNIT,
        dead_blocks("stem", at=(0, 6)),
        dead_blocks("left.0", at=(0, 6), how="null"),
        dead_blocks("left.1", "right.2", at=(1, 5)),
        dead_blocks("right.0", at=(3, 4)),
        dead_blocks("right.1", at=(3, 4), how="null"),
        killing("branch.1.bn", removes="branch.0.conv branch.1.conv", at=(1, 7), how="null"),
        dead_blocks("branch.2", at=(2, 3)),
        dead_blocks("head", at=(5, 9)),
        pinned=("fc",), tags="depthwise channel-shuffle chunk batchnorm concat"),
    net("ghostnet", GhostNet, uniform(2, 3, 8, 8), UNIT,
        dead_blocks("primary", "cheap", at=(2, 4, 7)),
        dead("conv", at=(0, 9)),
        pinned=("fc",), tags="depthwise batchnorm concat"),
)  # fmt: skip
