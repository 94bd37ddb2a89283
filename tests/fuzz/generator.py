"""Random networks: a drawn description, the module it describes, and units planted in it at random.

A network is a chain of blocks over a map [N, C, H, W] that may turn into a vector [N, F] on the way. Widths are even,
so that every block fits every width. What a description does not say (weights, planted units) follows from its seed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

import nodedrop as nd

from ..zoo.blocks import NORMS, WEIGHTED, SqueezeExcite

BATCH, CHANNELS, SIDE, OUTPUTS = 3, 2, 4, 3
EPSILON = 1e-2  # a norm multiplies the rounding of a value that does not vary by up to 1/√ε

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "relu6": nn.ReLU6,
    "clamped": nd.ClampedReLU,
    "soft": nd.SoftClampedReLU,
    "hardtanh": partial(nn.Hardtanh, 0.0, 1.0),
    "threshold": partial(nn.Threshold, 0.1, 0.0),
    "hardswish": nn.Hardswish,
    "hardsigmoid": nn.Hardsigmoid,
    "gelu": nn.GELU,
    "tanh": nn.Tanh,
    "leaky": nn.LeakyReLU,
    "none": nn.Identity,
}
RECTIFYING = ("relu", "relu6", "clamped", "soft", "hardtanh", "threshold")
MAP_NORMS = ("none", "batch", "batch", "group", "instance")
VECTOR_NORMS = ("none", "batch", "layer", "rms")
DOMAINS = ((0.0, 1.0), (-1.0, 1.0), (-2.0, -0.5), (0.5, 3.0), (-3.0, 0.0))


@dataclass(frozen=True)
class Block:
    """One step of a network. `option` chooses among the variants of its kind."""

    kind: str
    width: int
    activation: str
    norm: str
    option: int


@dataclass(frozen=True)
class Description:
    """A whole network, as drawn."""

    blocks: tuple[Block, ...]
    vector: bool  # whether the input is one
    domain: tuple[float, float]
    tap: bool  # whether what the last layer reads is returned as well
    scale: float  # of all weights
    seed: int


class Unit(nn.Module):
    """A weighted layer, a norm and an activation; the place where a unit's value can be watched."""

    def __init__(self, layer: nn.Module, width: int, block: Block, *, axis: int = 1) -> None:
        super().__init__()
        self.axis, self.layer = axis, layer
        self.norm = make_norm(block.norm, width, axis)
        self.act = ACTIVATIONS[block.activation]()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.norm(self.layer(x)))


def make_norm(name: str, width: int, axis: int) -> nn.Module:
    """Group and instance norms are drawn for maps, layer and RMS norms for vectors."""
    if name == "batch":
        return (nn.BatchNorm2d if axis == 1 else nn.BatchNorm1d)(width, eps=EPSILON)
    return {
        "none": nn.Identity,
        "layer": lambda: nn.LayerNorm(width, eps=EPSILON),
        "rms": lambda: nn.RMSNorm(width, eps=EPSILON),
        "group": lambda: nn.GroupNorm(2, width, eps=EPSILON),
        "instance": lambda: nn.InstanceNorm2d(width, eps=EPSILON, affine=True),
    }[name]()


def conv(cin: int, cout: int, block: Block) -> Unit:
    kernel = (1, 3)[block.option % 2]
    return Unit(nn.Conv2d(cin, cout, kernel, padding=kernel // 2, bias=block.option % 3 != 0), cout, block)


def dense(cin: int, cout: int, block: Block) -> Unit:
    return Unit(nn.Linear(cin, cout, bias=block.option % 3 != 0), cout, block, axis=-1)


def depthwise(cin: int, block: Block) -> Unit:
    width = cin * (1 + block.option % 2)
    return Unit(nn.Conv2d(cin, width, 3, padding=1, groups=cin), width, block)


class Residual(nn.Module):
    """x + f(x), activated behind the sum or within the branch."""

    def __init__(self, make: Callable[..., Unit], cin: int, block: Block) -> None:
        super().__init__()
        self.axis = 1 if make is conv else -1
        self.first, self.second = make(cin, block.width, block), make(block.width, cin, block)
        self.behind = block.option % 2 == 0
        if self.behind:
            self.second.act = nn.Identity()
            self.act = ACTIVATIONS[block.activation]()

    def forward(self, x: Tensor) -> Tensor:
        y = x + self.second(self.first(x))
        return self.act(y) if self.behind else y


class Concat(nn.Module):
    """Two branches side by side, or a branch beside its input."""

    def __init__(self, make: Callable[..., Unit], cin: int, block: Block) -> None:
        super().__init__()
        self.axis = 1 if make is conv else -1
        self.a = make(cin, block.width, block)
        self.b = make(cin, 4, block) if block.option % 2 else None

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.a(x), x if self.b is None else self.b(x)], self.axis)


class Gate(nn.Module):
    """One half of the units scales the other half."""

    def __init__(self, make: Callable[..., Unit], cin: int, block: Block) -> None:
        super().__init__()
        self.axis = 1 if make is conv else -1
        self.both = make(cin, 2 * block.width, block)
        self.gate = (nn.Sigmoid, nn.Hardsigmoid, nn.ReLU, nn.Identity)[block.option % 4]()

    def forward(self, x: Tensor) -> Tensor:
        value, gate = self.both(x).chunk(2, self.axis)
        return value * self.gate(gate)


class Shared(nn.Module):
    """One layer used twice, in a row or on two versions of its input."""

    def __init__(self, make: Callable[..., Unit], cin: int, block: Block) -> None:
        super().__init__()
        self.unit = make(cin, cin, block)
        self.parallel = block.option % 2 == 0

    def forward(self, x: Tensor) -> Tensor:
        return self.unit(x) + self.unit(-x) if self.parallel else self.unit(self.unit(x))


class Scaled(nn.Module):
    """Raw parameters per unit, a fixed slice, and dropout."""

    def __init__(self, cin: int, block: Block, *, ends: tuple[int, ...]) -> None:
        super().__init__()
        self.gain, self.shift = nn.Parameter(torch.ones(cin, *ends)), nn.Parameter(torch.zeros(cin, *ends))
        self.act, self.dropout, self.option = ACTIVATIONS[block.activation](), nn.Dropout(0.5), block.option

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(x * self.gain + self.shift)
        if self.option % 3 == 0:
            return self.dropout(x)
        return torch.cat([x[:, 2:], x[:, :2]], 1) if self.option % 3 == 1 else x


class Tokens(nn.Module):
    """Positions as a sequence, a feed-forward block behind a norm, and back to a map."""

    def __init__(self, cin: int, block: Block) -> None:
        super().__init__()
        self.norm = (nn.LayerNorm if block.option % 2 else nn.RMSNorm)(cin, eps=EPSILON)
        self.up = dense(cin, block.width, block)
        self.down = nn.Linear(block.width, cin)

    def forward(self, x: Tensor) -> Tensor:
        y = x.flatten(2).transpose(1, 2)
        y = y + self.down(self.up(self.norm(y)))
        return y.transpose(1, 2).reshape(x.shape)


def pool(block: Block) -> nn.Module:
    """Pooling that keeps the map's size, or an upsampling that is pooled back."""
    kinds = (nn.MaxPool2d(3, 1, 1), nn.AvgPool2d(3, 1, 1), nn.Sequential(nn.Upsample(scale_factor=2), nn.AvgPool2d(2)))
    return kinds[block.option % 3]


class Shuffle(nn.Module):
    """Channel shuffle in two groups."""

    def forward(self, x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        return x.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)


class Vector(nn.Module):
    """A map becomes a vector: flattened either way, or pooled."""

    def __init__(self, block: Block) -> None:
        super().__init__()
        self.option = block.option

    def forward(self, x: Tensor) -> Tensor:
        if self.option % 4 == 0:
            return x.flatten(1)
        if self.option % 4 == 1:
            return x.permute(0, 2, 3, 1).reshape(x.shape[0], -1)
        return x.mean((2, 3)) if self.option % 4 == 2 else x.amax((2, 3))


MAP_BLOCKS: dict[str, Callable[[int, Block], nn.Module]] = {
    "conv": lambda c, b: conv(c, b.width, b),
    "grouped": lambda c, b: Unit(nn.Conv2d(c, b.width, 3, padding=1, groups=2), b.width, b),
    "depthwise": depthwise,
    "transposed": lambda c, b: Unit(nn.ConvTranspose2d(c, b.width, 3, padding=1, groups=1 + b.option % 2), b.width, b),
    "residual": lambda c, b: Residual(conv, c, b),
    "concat": lambda c, b: Concat(conv, c, b),
    "gate": lambda c, b: Gate(conv, c, b),
    "shared": lambda c, b: Shared(conv, c, b),
    "scaled": lambda c, b: Scaled(c, b, ends=(1, 1)),
    "excite": lambda c, b: SqueezeExcite(c, 4, nn.Hardsigmoid if b.option % 2 else nn.Sigmoid),
    "tokens": Tokens,
    "pool": lambda c, b: pool(b),
    "shuffle": lambda c, b: Shuffle(),
    "vector": lambda c, b: Vector(b),
}
VECTOR_BLOCKS: dict[str, Callable[[int, Block], nn.Module]] = {
    "dense": lambda c, b: dense(c, b.width, b),
    "residual": lambda c, b: Residual(dense, c, b),
    "concat": lambda c, b: Concat(dense, c, b),
    "gate": lambda c, b: Gate(dense, c, b),
    "shared": lambda c, b: Shared(dense, c, b),
    "scaled": lambda c, b: Scaled(c, b, ends=()),
}
BRANCHING_VECTOR = 24  # a wider vector goes through a dense layer first


class Network(nn.Module):
    """The module of a description, with weights and planted units."""

    def __init__(self, description: Description) -> None:
        super().__init__()
        torch.manual_seed(description.seed)
        self.tap = description.tap
        x = example(description, torch.Generator().manual_seed(0)).float()
        blocks: list[nn.Module] = []
        for block in description.blocks:
            made = (VECTOR_BLOCKS if x.dim() == 2 else MAP_BLOCKS)[block.kind](x.shape[1], block)
            blocks.append(made)
            x = made(x).detach()
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(x.shape[1], OUTPUTS) if x.dim() == 2 else nn.Conv2d(x.shape[1], OUTPUTS, 1)
        self.double()
        plant_(self, description)

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        x = self.blocks(x)
        return (self.head(x), x) if self.tap else self.head(x)


class Networks(nn.Module):
    """Several networks side by side, each with its own input: tracing costs most for the first operator."""

    def __init__(self, descriptions: list[Description]) -> None:
        super().__init__()
        self.nets = nn.ModuleList(map(Network, descriptions))

    def forward(self, *inputs: Tensor) -> list[Tensor | tuple[Tensor, Tensor]]:
        return [net(x) for net, x in zip(self.nets, inputs, strict=True)]


def example(description: Description, generator: torch.Generator) -> Tensor:
    """A random input inside the domain."""
    lo, hi = description.domain
    shape = (BATCH, 6) if description.vector else (BATCH, CHANNELS, SIDE, SIDE)
    return lo + (hi - lo) * torch.rand(shape, generator=generator, dtype=torch.float64)


@torch.no_grad()
def plant_(network: nn.Module, description: Description) -> None:
    """Weights of the drawn scale, real biases and statistics; then every third unit is made special, or nearly so."""
    generator = torch.Generator().manual_seed(description.seed)
    normal = partial(torch.randn, generator=generator, dtype=torch.float64)
    for module in network.modules():
        if isinstance(module, WEIGHTED):
            fan = max(module.weight[0].numel(), 1)
            module.weight.copy_(normal(module.weight.shape) * description.scale / fan**0.5)
            if module.bias is not None:
                module.bias.copy_(0.5 * normal(module.bias.shape))
        elif isinstance(module, NORMS) and module.weight is not None:
            module.weight.copy_(1 + 0.5 * normal(module.weight.shape))
            if getattr(module, "bias", None) is not None:
                module.bias.copy_(0.5 * normal(module.bias.shape))
        elif isinstance(module, Scaled):
            module.gain.copy_(1 + 0.5 * normal(module.gain.shape))
            module.shift.copy_(0.5 * normal(module.shift.shape))
            _each(module.gain, module.shift, generator, description)
        if getattr(module, "running_mean", None) is not None:
            module.running_mean.copy_(0.3 * normal(module.running_mean.shape))
            module.running_var.copy_(0.3 + normal(module.running_var.shape).square())
    for module in network.modules():
        if isinstance(module, nn.modules.conv._ConvTransposeNd):
            if module.groups == 1:
                _each(module.weight.transpose(0, 1), module.bias, generator, description)
        elif isinstance(module, (*WEIGHTED, *NORMS)) and module.weight is not None:
            _each(module.weight, getattr(module, "bias", None), generator, description)
        if isinstance(module, WEIGHTED):
            for column in range(module.weight.shape[1]):
                if torch.rand((), generator=generator) < 0.1:
                    module.weight[:, column] = 0.0


def _each(weight: Tensor, bias: Tensor | None, generator: torch.Generator, description: Description) -> None:
    for unit in range(len(weight)):
        if torch.rand((), generator=generator) < 0.35:
            verb = VERBS[int(torch.randint(len(VERBS), (), generator=generator))]
            row, shift = verb(weight[unit], description.domain)
            weight[unit] = row
            if bias is not None:
                bias[unit] = shift


Verb = Callable[[Tensor, tuple[float, float]], tuple[Tensor, float]]


def _edge(row: Tensor, domain: tuple[float, float]) -> float:
    """The interval condition's Σ max(w·lo, w·hi), with 0 in the box for the sake of padding."""
    lo, hi = min(domain[0], 0.0), max(domain[1], 0.0)
    return float(torch.maximum(row * lo, row * hi).sum())


VERBS: tuple[Verb, ...] = (
    lambda row, box: (torch.zeros_like(row), -0.5),
    lambda row, box: (torch.zeros_like(row), -4.0),
    lambda row, box: (torch.zeros_like(row), 0.0),
    lambda row, box: (torch.zeros_like(row), 0.7),
    lambda row, box: (torch.zeros_like(row), 7.0),
    lambda row, box: (-row.abs() - 0.01, -0.1),
    lambda row, box: (-row.abs(), 0.0),
    lambda row, box: (row, -_edge(row, box) - 0.2),
    lambda row, box: (row, -_edge(row, box)),
    lambda row, box: (row, -_edge(row, box) * (1 - 1e-15)),
    lambda row, box: (row, -_edge(row, box) * (1 - 1e-3)),
    lambda row, box: (row, 20.0),
    lambda row, box: (row * 1e-6, -0.5),
    lambda row, box: (row, -20.0),
)


@st.composite
def descriptions(draw: st.DrawFn, longest: int = 3) -> Description:
    """A random network of a few blocks."""
    vector = draw(st.booleans())
    flat, width, blocks = vector, 6 if vector else CHANNELS, []
    for _ in range(draw(st.integers(1, longest))):
        kinds = list(VECTOR_BLOCKS if flat else MAP_BLOCKS)
        if flat and width > BRANCHING_VECTOR:
            kinds = ["dense"]
        block = Block(
            draw(st.sampled_from(kinds)),
            draw(st.sampled_from((4, 6, 8))),
            draw(st.sampled_from(RECTIFYING + tuple(ACTIVATIONS))),
            draw(st.sampled_from(VECTOR_NORMS if flat else MAP_NORMS)),
            draw(st.integers(0, 11)),
        )
        if block.kind == "tokens":
            block = replace(block, norm="none")
        blocks.append(block)
        width = _width(block, width)
        flat = flat or block.kind == "vector"
    return Description(
        tuple(blocks),
        vector,
        draw(st.sampled_from(DOMAINS)),
        draw(st.integers(0, 7)) == 7,
        draw(st.sampled_from((1.0, 0.3, 3.0))),
        draw(st.integers(0, 2**20)),
    )


def _width(block: Block, width: int) -> int:
    """How wide a block's result is."""
    if block.kind == "vector":
        return width * SIDE**2 if block.option % 4 < 2 else width
    if block.kind == "concat":
        return block.width + (4 if block.option % 2 else width)
    if block.kind == "depthwise":
        return width * (1 + block.option % 2)
    return block.width if block.kind in ("conv", "grouped", "transposed", "gate", "dense") else width
