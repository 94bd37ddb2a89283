"""Networks that concatenate: SqueezeNet, Inception, DenseNet, U-Net, feature pyramids."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nodedrop.activations import SoftClampedReLU

from .blocks import NORMALISED, UNIT, ConvBnAct, dead, dead_blocks, killing, net, normalised, uniform
from .planting import Plant


class Fire(nn.Module):
    def __init__(self, cin: int, squeeze: int, expand: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(cin, squeeze, 1)
        self.expand1 = nn.Conv2d(squeeze, expand, 1)
        self.expand3 = nn.Conv2d(squeeze, expand, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.squeeze(x).relu()
        return torch.cat([self.expand1(x).relu(), self.expand3(x).relu()], 1)


class SqueezeNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, stride=2)
        self.pool = nn.MaxPool2d(3, 2, ceil_mode=True)
        self.fire1 = Fire(8, 6, 8)
        self.fire2 = Fire(16, 6, 8)
        self.classifier = nn.Conv2d(16, 10, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.fire2(self.fire1(self.pool(self.stem(x).relu())))
        return self.classifier(x).relu().mean((2, 3))


class Mixed(nn.Module):
    """Four branches: 1×1, 3×3, two 3×3, and pooling; concatenated."""

    def __init__(self, cin: int) -> None:
        super().__init__()
        self.single = ConvBnAct(cin, 4, 1)
        self.medium = nn.Sequential(ConvBnAct(cin, 6, 1), ConvBnAct(6, 4))
        self.wide = nn.Sequential(ConvBnAct(cin, 6, 1), ConvBnAct(6, 6), ConvBnAct(6, 4))
        self.pool = nn.Sequential(nn.MaxPool2d(3, 1, 1), ConvBnAct(cin, 4, 1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.single(x), self.medium(x), self.wide(x), self.pool(x)], dim=1)


class Aux(nn.Module):
    """The head that training uses and evaluation skips."""

    def __init__(self, cin: int) -> None:
        super().__init__()
        self.conv = ConvBnAct(cin, 6, 1)
        self.fc1 = nn.Linear(24, 12)
        self.fc2 = nn.Linear(12, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(nn.functional.avg_pool2d(x, 4))
        return self.fc2(self.fc1(x.flatten(1)).relu())


class Inception(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = ConvBnAct(3, 8)
        self.mixed1 = Mixed(8)
        self.aux = Aux(16)
        self.mixed2 = Mixed(16)
        self.fc = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        x = self.mixed1(self.stem(x))
        aux = self.aux(x) if self.training else None
        out = self.fc(self.mixed2(nn.functional.max_pool2d(x, 2)).mean((2, 3)))
        return out if aux is None else (out, aux)


class DenseLayer(nn.Module):
    """bn-relu-conv1×1-bn-relu-conv3×3, appended to what it read."""

    def __init__(self, cin: int, growth: int) -> None:
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(cin), nn.Conv2d(cin, 8, 1, bias=False)
        self.bn2, self.conv2 = nn.BatchNorm2d(8), nn.Conv2d(8, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        new = self.conv2(self.bn2(self.conv1(self.bn1(x).relu())).relu())
        return torch.cat([x, new], 1)


class DenseNet(nn.Module):
    """Raw features are read through one batch norm per reader: they go when every one of these is dead."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.layer1, self.layer2 = DenseLayer(8, 4), DenseLayer(12, 4)
        self.bn, self.transition = nn.BatchNorm2d(16), nn.Conv2d(16, 10, 1, bias=False)
        self.layer3 = DenseLayer(10, 4)
        self.norm = nn.BatchNorm2d(14)
        self.fc = nn.Linear(14, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer2(self.layer1(self.conv(x)))
        x = nn.functional.avg_pool2d(self.transition(self.bn(x).relu()), 2)
        x = self.norm(self.layer3(x)).relu()
        return self.fc(x.mean((2, 3)))


class PaperDenseNet(nn.Module):
    """conv → activation → concatenate; a transition is a linear 1×1 convolution and average pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.block1 = nn.ModuleList([nn.Conv2d(8, 4, 3, padding=1), nn.Conv2d(12, 4, 3, padding=1)])
        self.transition = nn.Conv2d(16, 16, 1)
        self.block2 = nn.ModuleList([nn.Conv2d(16, 4, 3, padding=1), nn.Conv2d(20, 4, 3, padding=1)])
        self.act = SoftClampedReLU()
        self.fc = nn.Linear(24, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.stem(x))
        for conv in self.block1:
            x = torch.cat([x, self.act(conv(x))], 1)
        x = nn.functional.avg_pool2d(self.transition(x), 2)
        for conv in self.block2:
            x = torch.cat([x, self.act(conv(x))], 1)
        return self.fc(x.mean((2, 3)))


class UNet(nn.Module):
    """Transposed convolutions up, skips concatenated."""

    def __init__(self) -> None:
        super().__init__()
        self.enc1 = nn.Conv2d(3, 8, 3, padding=1)
        self.enc2 = nn.Conv2d(8, 12, 3, padding=1)
        self.mid = nn.Conv2d(12, 16, 3, padding=1)
        self.up2 = nn.ConvTranspose2d(16, 12, 2, stride=2)
        self.dec2 = nn.Conv2d(24, 12, 3, padding=1)
        self.up1 = nn.ConvTranspose2d(12, 8, 2, stride=2)
        self.dec1 = nn.Conv2d(16, 8, 3, padding=1)
        self.out = nn.Conv2d(8, 2, 1)
        self.pool = nn.MaxPool2d(2)

    def forward(self, x: Tensor) -> Tensor:
        one = self.enc1(x).relu()
        two = self.enc2(self.pool(one)).relu()
        x = self.mid(self.pool(two)).relu()
        x = self.dec2(torch.cat([two, self.up2(x).relu()], dim=1)).relu()
        x = self.dec1(torch.cat([one, self.up1(x).relu()], dim=1)).relu()
        return self.out(x)


class UNetUpsample(nn.Module):
    """Bilinear and nearest upsampling, batch norm, a sigmoid map as output."""

    def __init__(self) -> None:
        super().__init__()
        self.enc1, self.enc2, self.mid = ConvBnAct(3, 8), ConvBnAct(8, 12), ConvBnAct(12, 12)
        self.dec2, self.dec1 = ConvBnAct(24, 8), ConvBnAct(16, 8)
        self.out = nn.Conv2d(8, 1, 1)
        self.smooth = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)
        self.repeat = nn.Upsample(scale_factor=2, mode="nearest")

    def forward(self, x: Tensor) -> Tensor:
        one = self.enc1(x)
        two = self.enc2(nn.functional.avg_pool2d(one, 2))
        x = self.mid(nn.functional.avg_pool2d(two, 2))
        x = self.dec2(torch.cat([self.smooth(x), two], dim=1))
        x = self.dec1(torch.cat([self.repeat(x), one], dim=1))
        return torch.sigmoid(self.out(x))


class Pyramid(nn.Module):
    """Top-down additions, one shared head on both levels, two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.fine = nn.Conv2d(3, 8, 3, padding=1)
        self.coarse = nn.Conv2d(8, 12, 3, stride=2, padding=1)
        self.lateral1, self.lateral2 = nn.Conv2d(8, 8, 1), nn.Conv2d(12, 8, 1)
        self.head = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 3, 1))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        fine = self.fine(x).relu()
        coarse = self.coarse(fine).relu()
        top = self.lateral2(coarse).relu()
        below = self.lateral1(fine).relu() + nn.functional.interpolate(top, scale_factor=2.0, mode="nearest")
        return self.head(below), self.head(top)


def mixed_plants(name: str) -> tuple[Plant, ...]:
    return (
        dead_blocks(f"{name}.single", at=(1,)),
        dead_blocks(f"{name}.medium.0", at=(0, 4)), dead_blocks(f"{name}.medium.1", at=(2,)),
        dead_blocks(f"{name}.wide.0", at=(5,)), dead_blocks(f"{name}.wide.1", at=(1, 3)),
        dead_blocks(f"{name}.wide.2", at=(0, 3)), dead_blocks(f"{name}.pool.1", at=(2,)),
    )  # fmt: skip


ENTRIES = (
    net("squeezenet", SqueezeNet, uniform(2, 3, 12, 12), UNIT,
        dead("stem", at=(2, 6), how="bound"),
        dead("fire1.squeeze", at=(0, 5), how="nonpositive"),
        dead("fire1.expand1", at=(1, 7), how="nonpositive"), dead("fire1.expand3", at=(3, 4)),
        dead("fire2.squeeze", at=(1, 2)),
        dead("fire2.expand1", at=(0, 6)), dead("fire2.expand3", at=(2, 5)),
        pinned=("classifier",), tags="concat maxpool", gain=1.2),
    net("inception", Inception, normalised(2, 3, 8, 8), NORMALISED,
        dead_blocks("stem", at=(3, 5)),
        *mixed_plants("mixed1"), *mixed_plants("mixed2"),
        dead_blocks("aux.conv", at=(0, 4)), dead("aux.fc1", at=(2, 9)),
        pinned=("fc", "aux.fc2"), tags="concat batchnorm aux-head train-eval-differ per-channel-domain"),
    net("densenet", DenseNet, uniform(2, 3, 8, 8), UNIT,
        killing("layer1.bn1 layer2.bn1 bn", removes="conv", at=(3, 6)),
        killing("layer2.bn1 bn", removes="layer1.conv2", at=(9,), removed_at={"layer1.conv2": (1,)}),
        killing("bn", removes="layer2.conv2", at=(12, 14), removed_at={"layer2.conv2": (0, 2)}),
        killing("layer3.bn1 norm", removes="transition", at=(5, 8)),
        killing("norm", removes="layer3.conv2", at=(13,), removed_at={"layer3.conv2": (3,)}),
        killing("layer1.bn2", removes="layer1.conv1", at=(0, 7)),
        killing("layer2.bn2", removes="layer2.conv1", at=(2, 3)),
        killing("layer3.bn2", removes="layer3.conv1", at=(4, 6)),
        pinned=("fc",), tags="concat batchnorm preact avgpool"),
    net("densenet_paper", PaperDenseNet, uniform(2, 3, 8, 8), UNIT,
        dead("stem", at=(2, 7), how="bound"),
        dead("block1.0", at=(1,), how="bound", box=UNIT), dead("block1.1", at=(0, 3), how="nonpositive"),
        dead("transition", at=(4, 9), how="null"),
        dead("block2.0", at=(2,)), dead("block2.1", at=(1, 3)),
        pinned=("fc",), tags="concat soft-clamped avgpool", gain=1.0),
    net("unet_transposed", UNet, uniform(2, 3, 8, 8), UNIT,
        dead("enc1", at=(0, 5), how="bound"), dead("enc2", at=(3, 10), how="nonpositive"),
        dead("mid", at=(1, 8, 15), how="nonpositive"),
        dead("up2", at=(2, 11), how="nonpositive"), dead("up1", at=(4, 6)),
        dead("dec2", at=(0, 9)), dead("dec1", at=(3, 7)),
        pinned=("out",), tags="concat transposed maxpool"),
    net("unet_upsample", UNetUpsample, normalised(2, 3, 8, 8), NORMALISED,
        dead_blocks("enc1", at=(1, 6)), dead_blocks("enc2", at=(0, 8)), dead_blocks("mid", at=(5, 11)),
        dead_blocks("dec2", at=(2, 3)), dead_blocks("dec1", at=(4, 7)),
        pinned=("out",), tags="concat upsample batchnorm avgpool per-channel-domain"),
    net("pyramid", Pyramid, uniform(2, 3, 8, 8), UNIT,
        dead("fine", at=(1, 4), how="bound"), dead("coarse", at=(0, 7), how="nonpositive"),
        dead("lateral1", "lateral2", at=(3, 6)),
        dead("head.0", at=(2, 5)),
        pinned=("head.2",), tags="upsample residual shared-module multi-output"),
)  # fmt: skip
