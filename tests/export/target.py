"""Networks of a user's own, for the commands that take package.module:factory."""

import torch
from torch import Tensor, nn

import nodedrop as nd


def planted() -> nn.Module:
    """Of eight units, one is dead, one constant and one read by nobody."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    with torch.no_grad():
        net[0].bias.fill_(0.5)
        net[0].weight[1], net[0].bias[1] = 0.25, -1.5
        net[0].weight[2], net[0].bias[2] = 0.0, 0.75
        net[2].weight[:, 3] = 0.0
        net[0].weight[4], net[0].bias[4] = 1.0, -3.9  # fires only where all inputs are nearly 1
    return net


def convolutional() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nd.SoftClampedReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(4 * 14 * 14, 8), nd.ClampedReLU(), nn.Linear(8, 10),
    )  # fmt: skip


def smooth() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.GELU(), nn.Linear(6, 2))


def all_dead() -> nn.Module:
    net = planted()
    with torch.no_grad():
        net[0].bias.fill_(-9.0)
    return net


class Pair(nn.Module):
    """Two inputs, one of them indices; two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.layer = nn.Embedding(5, 6), nn.Linear(4, 6)

    def forward(self, x: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        hidden = nd.functional.soft_clamped_relu(self.layer(x) + self.table(index).mean(1))
        return hidden.sum(1), hidden


class OneBatchSize(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 6)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x).view(2, 6)
        return out


class Counting(nn.Module):
    """Returns how many rows there were, too."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 6)

    def forward(self, x: Tensor) -> tuple[Tensor, int]:
        return self.layer(x), x.shape[0]


class Branching(nn.Module):
    """Goes another way for other data."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 6)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x)
        if out.sum() > 0:
            return out * 2
        return out


class Fickle(nn.Module):
    """Computes something else while it is traced."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 6)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x)
        return out * 1.001 if torch.compiler.is_exporting() else out


class Exponential(nn.Module):
    """Has no place in ONNX."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.linalg.matrix_exp(x)


INSTANCE = planted()


def normed() -> nn.Module:
    """A batch norm whose unit 1 is dead in both modes, in train mode for batches of at most 64."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 2))
    nn.init.constant_(net[1].bias[1:2], -8.0)
    return net


def three() -> Tensor:
    return torch.rand(60, 4, generator=torch.Generator().manual_seed(3))


def correlated() -> nn.Module:
    """Unit 0 of the second layer computes 0.5 − (x + 2) + ReLU(x), which is never above 0; intervals allow 0.5."""
    net = nn.Sequential(nn.Linear(1, 2), nn.ReLU(), nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1)).double()
    with torch.no_grad():
        net[0].weight.fill_(1.0)
        net[0].bias.copy_(torch.tensor([2.0, 0.0]))
        net[2].weight.copy_(torch.tensor([[-1.0, 1.0], [1.0, 1.0]]))
        net[2].bias.copy_(torch.tensor([0.5, 0.0]))
        net[4].weight.fill_(1.0)
    return net


def wide() -> Tensor:
    return torch.tensor([[-3.0, 0.0, 0.0, 3.0]] * 4)
