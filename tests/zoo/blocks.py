"""What the networks of the zoo are made of: blocks, lively weights, inputs, short names for plants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .planting import Entry, Plant

# Images in [0, 1] after subtracting the mean and dividing by the standard deviation of each colour.
MEAN = torch.tensor([0.4914, 0.4822, 0.4465]).reshape(3, 1, 1)
STD = torch.tensor([0.2470, 0.2435, 0.2616]).reshape(3, 1, 1)
NORMALISED = ((0 - MEAN) / STD, (1 - MEAN) / STD)

UNIT = (0.0, 1.0)


class ConvBnAct(nn.Module):
    """Convolution without bias, batch norm, activation."""

    def __init__(self, cin: int, cout: int, kernel: int = 3, *, stride: int = 1, groups: int = 1,
                 act: Callable[[], nn.Module] = nn.ReLU) -> None:  # fmt: skip
        super().__init__()
        self.conv = nn.Conv2d(cin, cout, kernel, stride, kernel // 2, groups=groups, bias=False)
        self.bn = nn.BatchNorm2d(cout)
        self.act = act()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.bn(self.conv(x)))


class SqueezeExcite(nn.Module):
    """Scales each channel by a gate computed from the means of all."""

    def __init__(self, channels: int, hidden: int, gate: Callable[[], nn.Module] = nn.Sigmoid) -> None:
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc1 = nn.Conv2d(channels, hidden, 1)
        self.fc2 = nn.Conv2d(hidden, channels, 1)
        self.gate = gate()

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gate(self.fc2(self.fc1(self.pool(x)).relu()))


WEIGHTED = (nn.Linear, nn.modules.conv._ConvNd)
NORMS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


def balanced(weight: Tensor) -> Tensor:
    """Rows of mean zero: on inputs ≥ 0 a unit fires on some and not on others."""
    rows = weight.flatten(1)
    return (rows - rows.mean(1, keepdim=True)).view_as(weight) if rows.shape[1] > 2 else weight


@torch.no_grad()
def enliven(model: nn.Module, gain: float = 2.0) -> nn.Module:
    """Weights `gain` times as large as torch makes them, positive biases, running statistics not (0, 1).

    A fresh network hides errors: its biases and running means are zero and its residual branches faint.
    Balanced rows and positive biases keep units from being dead by accident.
    """
    for module in model.modules():
        if isinstance(module, WEIGHTED) or type(module).__name__ == "Conv1D":
            weight = module.weight.t() if type(module).__name__ == "Conv1D" else module.weight
            weight.copy_(balanced(weight))
            weight.mul_(gain / (3 * weight[0].numel()) ** 0.5 / weight.std())
            if module.bias is not None:
                module.bias.uniform_(0.2, 0.6)
        elif isinstance(module, NORMS) and module.weight is not None:
            module.weight.uniform_(0.5, 1.5)
            if getattr(module, "bias", None) is not None:
                module.bias.normal_(0.1, 0.2)
        if getattr(module, "running_mean", None) is not None:
            module.running_mean.normal_(0.0, 0.3)
            module.running_var.uniform_(0.5, 2.0)
        if isinstance(module, nn.MultiheadAttention):
            module.in_proj_bias.uniform_(-0.3, 0.3)
    return model


def net(name: str, make: Callable[[], nn.Module], inputs: Callable[..., Any], domain: object, *plants: Plant,
        pinned: tuple[str, ...] = (), tags: str = "", gain: float = 2.0) -> Entry:  # fmt: skip
    """An entry with lively weights; `tags` are separated by spaces."""
    return Entry(name, lambda: enliven(make(), gain), inputs, domain, plants, pinned, frozenset(tags.split()))


def dead(*layers: str, at: tuple[int, ...], how: str = "auto", **more: Any) -> Plant:
    """The killed layers are the ones that lose units."""
    return Plant(kill=layers, removed=layers, indices=at, how=how, **more)


def dead_blocks(*blocks: str, at: tuple[int, ...], **more: Any) -> Plant:
    """The same for `ConvBnAct` blocks: the batch norm is killed, the convolution loses units."""
    norms = tuple(f"{block}.bn" for block in blocks)
    return Plant(kill=norms, removed=tuple(f"{block}.conv" for block in blocks), indices=at, **more)


def killing(kill: str, *, removes: str, at: tuple[int, ...], **more: Any) -> Plant:
    """Other layers lose units than those that are killed; names are separated by spaces."""
    return Plant(kill=tuple(kill.split()), removed=tuple(removes.split()), indices=at, **more)


def stuck(*layers: str, at: tuple[int, ...], how: str = "auto", **more: Any) -> Plant:
    """Dead, and yet nothing may be removed."""
    return Plant(kill=layers, removed=(), indices=at, how=how, stays=layers, **more)


def uniform(*shape: int, lo: float | Tensor = 0.0, hi: float | Tensor = 1.0) -> Callable[..., tuple[Tensor]]:
    """One float input, uniform in the box."""
    return lambda generator: (torch.rand(shape, generator=generator) * (hi - lo) + lo,)


def normalised(*shape: int) -> Callable[..., tuple[Tensor]]:
    """Images in [0, 1], normalised per colour."""
    return lambda generator: ((torch.rand(shape, generator=generator) - MEAN) / STD,)


def tokens(vocabulary: int, *shape: int) -> Callable[..., tuple[Tensor]]:
    """One integer input."""
    return lambda generator: (torch.randint(vocabulary, shape, generator=generator),)


def together(*makers: Callable[..., tuple[Tensor]]) -> Callable[..., tuple[Tensor, ...]]:
    """Several inputs, by position."""
    return lambda generator: tuple(make(generator)[0] for make in makers)


def by_name(**makers: Callable[..., tuple[Tensor]]) -> Callable[..., dict[str, Tensor]]:
    """Several inputs, by keyword."""
    return lambda generator: {name: make(generator)[0] for name, make in makers.items()}
