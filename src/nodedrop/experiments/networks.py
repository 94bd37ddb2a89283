"""The paper's networks by name. They take images with values in [0, 1] and return one logit per class."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from ..activations import ClampedReLU, SoftClampedReLU
from ..errors import InputError
from .transformer import Decoder

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "soft": SoftClampedReLU,
    "clamped": ClampedReLU,
    "relu": nn.ReLU,
}
POOL = 0


@dataclass(frozen=True)
class Options:
    """What `build` can be told.

    Without batch norm the paper's activation is "soft"; NodeDrop-BN needs no bounded input, and uses "relu". `width`
    scales the units of every layer. `init` is "xavier" (uniform, as published for all but DenseNet), "torch" (the
    layers' own, as published for DenseNet) or "kaiming", the default of the deep networks: without batch norm, the
    signal of the other two dies out on its way, by a factor of some 1000 in VGG16.
    """

    classes: int = 10
    batch_norm: bool = False
    activation: str | None = None
    width: float = 1.0
    init: str = "kaiming"
    in_channels: int = 3
    size: int = 32

    def activate(self) -> nn.Module:
        return ACTIVATIONS[self.activation or ("relu" if self.batch_norm else "soft")]()

    def scaled(self, units: int) -> int:
        return max(1, round(units * self.width))


@dataclass(frozen=True)
class Plain:
    """3×3 convolutions, each with its number of units, POOL halving the image; a hidden dense layer; the classes.

    Activations never fall, so that pooling before them gives the same, and leaves them a quarter of the values.
    """

    convolutions: tuple[int, ...]
    dense: int
    padding: int

    def __call__(self, options: Options) -> nn.Module:
        parts: OrderedDict[str, nn.Module] = OrderedDict()
        inputs, size, number = options.in_channels, options.size, 0
        for units in self.convolutions:
            if units == POOL:
                size //= 2
                name, activation = parts.popitem()
                parts[f"pool{number}"], parts[name] = nn.MaxPool2d(2), activation
                continue
            number, outputs = number + 1, options.scaled(units)
            convolution = nn.Conv2d(inputs, outputs, 3, padding=self.padding)
            parts.update(_layer(convolution, options, f"conv{number}"))
            inputs, size = outputs, size + 2 * self.padding - 2
        if size < 1:
            raise InputError(f"images of {options.size}×{options.size} are too small for the poolings of this network")
        parts["flatten"] = nn.Flatten()
        hidden = options.scaled(self.dense)
        parts.update(_layer(nn.Linear(inputs * size**2, hidden), options, "dense"))
        parts["head"] = nn.Linear(hidden, options.classes)
        return nn.Sequential(parts)


@dataclass(frozen=True)
class Dense:
    """DenseNet, activation after convolution: three blocks in which each layer reads all earlier ones of its block.

    The published transitions between blocks are linear, so the next block reads values outside [0, 1] and of both
    signs, where eq. 1 does not hold. With `active` ones every layer reads what an activation wrote, and the units of
    transitions can die too.
    """

    layers: int
    growth: int
    active: bool = False

    def __call__(self, options: Options) -> nn.Module:
        growth = options.scaled(self.growth)
        if options.size < 4:
            raise InputError(f"images of {options.size}×{options.size} are too small for the poolings of this network")
        width = 2 * growth
        parts = OrderedDict(_layer(nn.Conv2d(options.in_channels, width, 3, padding=1), options, "conv"))
        for block in (1, 2, 3):
            for layer in range(1, self.layers + 1):
                parts[f"block{block}_{layer}"] = Growing(width, growth, options)
                width += growth
            if block < 3:
                transition = _layer(nn.Conv2d(width, width, 1), options, f"transition{block}")
                parts.update(transition if self.active else islice(transition, 1))
                parts[f"pool{block}"] = nn.AvgPool2d(2)
        parts["pool3"] = nn.AdaptiveAvgPool2d(1)
        parts["flatten"] = nn.Flatten()
        parts["head"] = nn.Linear(width, options.classes)
        return nn.Sequential(parts)


class Growing(nn.Module):
    """Its input, with new features beside it."""

    def __init__(self, inputs: int, growth: int, options: Options) -> None:
        super().__init__()
        convolution = nn.Conv2d(inputs, growth, 3, padding=1, bias=not options.batch_norm)
        self.new = nn.Sequential(OrderedDict(_layer(convolution, options, "conv")))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.new(x)], 1)


@dataclass(frozen=True)
class Network:
    """A row of the table: how to build it, and the options it departs from."""

    make: Callable[[Options], nn.Module]
    defaults: Options
    reads: str = "images"


_MNIST = Options(in_channels=1, size=28, init="xavier")
_TEXT = Options(activation="relu", init="torch")
_VGG16 = (64, 64, POOL, 128, 128, POOL, 256, 256, 256, POOL, 512, 512, 512, POOL, 512, 512, 512, POOL)

NETWORKS: dict[str, Network] = {
    "mnist-dense160": Network(Plain((16, 16, POOL, 32, 32, POOL), dense=64, padding=0), _MNIST),
    "mnist-dense240": Network(Plain((24, 24, POOL, 48, 48, POOL), dense=96, padding=0), _MNIST),
    "mnist-dense320": Network(Plain((32, 32, POOL, 64, 64, POOL), dense=128, padding=0), _MNIST),
    "mnist-dense480": Network(Plain((48, 48, POOL, 96, 96, POOL), dense=192, padding=0), _MNIST),
    "mnist-dense640": Network(Plain((64, 64, POOL, 128, 128, POOL), dense=256, padding=0), _MNIST),
    "vgg16": Network(Plain(_VGG16, dense=512, padding=1), Options()),
    "densenet40": Network(Dense(layers=12, growth=12), Options()),
    "densenet40-active": Network(Dense(layers=12, growth=12, active=True), Options()),
    "text-transformer": Network(Decoder(blocks=3, width=96, heads=4), _TEXT, "texts"),
}


def build(name: str, **options: Any) -> nn.Module:
    """A freshly initialised network; the weights come from torch's global generator.

    >>> net = build("mnist-dense160")
    >>> sum(p.numel() for p in net.parameters())
    49850
    >>> build("vgg16", width=0.25, batch_norm=True, classes=100).head
    Linear(in_features=128, out_features=100, bias=True)
    """
    if name not in NETWORKS:
        raise InputError(f"there is no network '{name}'; there are {', '.join(NETWORKS)}")
    if strange := sorted(set(options) - set(Options.__dataclass_fields__)):
        raise InputError(f"{name} has no option '{strange[0]}'; there are {', '.join(Options.__dataclass_fields__)}")
    _check(options)
    chosen = replace(NETWORKS[name].defaults, **options)
    network = NETWORKS[name].make(chosen)
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            _STARTS[chosen.init](module)
    return network


def _layer(core: nn.Conv2d | nn.Linear, options: Options, name: str) -> Iterator[tuple[str, nn.Module]]:
    """Convolution or dense layer, its norm if there is one, its activation."""
    yield name, core
    if options.batch_norm:
        norm = nn.BatchNorm2d if isinstance(core, nn.Conv2d) else nn.BatchNorm1d
        yield f"{name}_norm", norm(len(core.weight))
    yield f"{name}_act", options.activate()


def _check(given: Mapping[str, Any]) -> None:
    for name, value in given.items():
        fine, wanted = _WANTED[name]
        if not fine(value):
            raise InputError(f"{name} must be {wanted}, got {value!r}")


def _xavier(core: nn.Conv2d | nn.Linear) -> None:
    nn.init.xavier_uniform_(core.weight)


def _kaiming(core: nn.Conv2d | nn.Linear) -> None:
    nn.init.kaiming_uniform_(core.weight, nonlinearity="relu")
    if core.bias is not None:
        nn.init.zeros_(core.bias)


_STARTS: dict[str, Callable[[nn.Conv2d | nn.Linear], None]] = {
    "xavier": _xavier,
    "kaiming": _kaiming,
    "torch": lambda core: None,
}


def _whole(value: Any) -> bool:
    return type(value) is int and value > 0


_WANTED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "classes": (_whole, "a whole number above 0"),
    "batch_norm": (lambda value: isinstance(value, bool), "True or False"),
    "activation": (lambda value: value is None or value in tuple(ACTIVATIONS), f"one of {', '.join(ACTIVATIONS)}"),
    "width": (lambda value: isinstance(value, int | float) and 0 < value <= 64, "a factor above 0 and up to 64"),
    "init": (lambda value: value in tuple(_STARTS), f"one of {', '.join(_STARTS)}"),
    "in_channels": (_whole, "a whole number above 0"),
    "size": (_whole, "a whole number above 0"),
}
