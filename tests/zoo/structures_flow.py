"""Small networks about who reads whom: sharing, tying, inputs and outputs, constants, unread units."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

from .blocks import (
    NORMALISED,
    UNIT,
    by_name,
    dead,
    killing,
    net,
    normalised,
    stuck,
    together,
    tokens,
    uniform,
)


class Mlp(nn.Module):
    """Dense layers with one activation each; `acts` may repeat."""

    def __init__(self, widths: tuple[int, ...], *acts: nn.Module, bias: bool = True) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, b, bias=bias) for a, b in pairwise(widths))
        self.acts = nn.ModuleList(acts)

    def forward(self, x: Tensor) -> Tensor:
        for layer, act in zip(self.layers, self.acts, strict=False):
            x = act(layer(x))
        return self.layers[-1](x)


class Clamp(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.clamp(min=0.0).clamp_max(2.0)


class SharedTwice(nn.Module):
    """One layer after itself: its inputs are units of two layers, its own among them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.shared, self.out = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).relu()
        for _ in range(2):
            x = self.shared(x).relu()
        return self.out(x)


class Siamese(nn.Module):
    """The same features of two inputs, and how far they are apart."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3)
        self.out = nn.Linear(8, 2)

    def features(self, x: Tensor) -> Tensor:
        return self.conv2(self.conv1(x).relu()).relu().mean((2, 3))

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.out((self.features(a) - self.features(b)).abs())


class TiedAutoencoder(nn.Module):
    """The decoder is the encoder's weight, transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.enc1, self.enc2 = nn.Linear(8, 10), nn.Linear(10, 6)
        self.bias1, self.bias2 = nn.Parameter(torch.rand(8)), nn.Parameter(0.1 + torch.rand(10) * 0.2)

    def forward(self, x: Tensor) -> Tensor:
        code = self.enc2(self.enc1(x).relu()).relu()
        hidden = (nn.functional.linear(code, self.enc2.weight.t()) + self.bias2).relu()
        return nn.functional.linear(hidden, self.enc1.weight.t(), self.bias1)


class TiedLayers(nn.Module):
    """Two layers with one weight and a bias each: a unit goes when both are dead."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.out = nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(16, 3)
        self.b.weight = self.a.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.cat([self.a(x).relu(), self.b(1 - x).relu()], 1))


class BagOfWords(nn.Module):
    """The mean of embeddings, activated: an embedding's columns are units too."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.fc1, self.fc2 = nn.Embedding(20, 8), nn.Linear(8, 10), nn.Linear(10, 4)

    def forward(self, ids: Tensor) -> Tensor:
        return self.fc2(self.fc1(self.embed(ids).mean(1).relu()).relu())


class TwoInputs(nn.Module):
    """An image and a vector, each with a domain of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 8, 3), nn.Linear(5, 6)
        self.mix, self.out = nn.Linear(14, 10), nn.Linear(10, 3)

    def forward(self, image: Tensor, facts: Tensor) -> Tensor:
        joined = torch.cat([self.conv(image).relu().mean((2, 3)), self.fc(facts).relu()], dim=-1)
        return self.out(self.mix(joined).relu())


class TwoOutputs(nn.Module):
    """A common trunk, two heads, and an inner value that is an output itself."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.shown = nn.Linear(6, 10), nn.Linear(10, 6)
        self.head1, self.out1, self.out2 = nn.Linear(6, 8), nn.Linear(8, 3), nn.Linear(10, 2)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        x = self.trunk(x).relu()
        shown = self.shown(x).relu()
        return {"shown": shown, "one": self.out1(self.head1(shown).relu()), "two": self.out2(x)}


class ConvPair(nn.Module):
    """conv → clamp to [0, 1] → conv → clamp → flatten → dense, with or without padding and bias."""

    def __init__(self, padding: int, bias: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3)
        self.conv2 = nn.Conv2d(8, 6, 3, padding=padding, bias=bias)
        self.fc = nn.Linear(6 * (2 + 2 * padding) ** 2, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv2(self.conv1(x).clamp(0, 1)).clamp(0, 1)
        return self.fc(x.flatten(1))


class Normed(nn.Module):
    """conv → norm → ReLU → conv → ReLU → dense."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.conv1, self.norm = nn.Conv2d(3, 8, 3, padding=1), norm
        self.conv2, self.fc = nn.Conv2d(8, 8, 3), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.conv2(self.norm(self.conv1(x)).relu()).relu().mean((2, 3)))


class RmsMlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = nn.Linear(6, 8), nn.RMSNorm(8)
        self.fc1, self.fc2 = nn.Linear(8, 12), nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.fc1(self.norm(self.embed(x))).relu())


class Sorted(nn.Module):
    """Sorting along the unit axis mixes all units: nothing in front of it can go."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(6, 8), nn.Linear(8, 10), nn.Linear(10, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc3(self.fc2(self.fc1(x).relu().sort(dim=-1).values).relu())


VECTOR = uniform(2, 6)
IMAGE = uniform(2, 3, 6, 6)
RELU = nn.ReLU()
SIGNED = (-1.0, 1.0)

ENTRIES = (
    net("mlp", lambda: Mlp((6, 12, 10, 8, 3), RELU, RELU, RELU), VECTOR, UNIT,
        dead("layers.0", at=(0, 5, 11), how="bound"),
        dead("layers.1", at=(2, 3), how="nonpositive"),
        dead("layers.2", at=(1, 7)),
        pinned=("layers.3",), tags="mlp"),
    net("mlp_no_bias", lambda: Mlp((6, 12, 10, 3), RELU, RELU, bias=False), VECTOR, UNIT,
        dead("layers.0", at=(4, 8), how="nonpositive"),
        dead("layers.1", at=(0, 1), how="nonpositive"), dead("layers.1", at=(9,)),
        pinned=("layers.2",), tags="mlp no-bias"),
    net("mlp_negative_domain", lambda: Mlp((6, 12, 10, 3), RELU, RELU),
        uniform(2, 6, lo=-3.0, hi=-1.0), (-3.0, -1.0),
        dead("layers.0", at=(1, 6, 10), how="bound"), dead("layers.1", at=(2, 5), how="nonpositive"),
        pinned=("layers.2",), tags="mlp negative-domain"),
    net("mlp_per_feature_domain", lambda: Mlp((3, 12, 10, 3), RELU, RELU),
        uniform(2, 3, lo=torch.tensor([0.0, -1.0, 0.5]), hi=torch.tensor([1.0, 0.5, 2.0])),
        (torch.tensor([0.0, -1.0, 0.5]), torch.tensor([1.0, 0.5, 2.0])),
        dead("layers.0", at=(0, 2, 3), how="bound"), dead("layers.1", at=(7, 8), how="nonpositive"),
        pinned=("layers.2",), tags="mlp per-channel-domain"),
    net("zero_regions",
        lambda: Mlp((6, 8, 8, 8, 8, 8, 3),
                    nn.ReLU6(), nn.Hardtanh(0, 1), nn.Threshold(0.1, 0.0), Clamp(), nn.Hardswish()),
        VECTOR, UNIT,
        dead("layers.0", at=(1, 2), how="bound"), dead("layers.1", at=(0, 7), how="bound", box=(0.0, 6.0)),
        dead("layers.2", at=(3, 5), how="bound", box=UNIT, level=0.05), dead("layers.3", at=(4, 6)),
        dead("layers.4", at=(2, 3), how="bound", box=(0.0, 2.0), level=-3.1),
        pinned=("layers.5",), tags="mlp relu6 hardtanh threshold clamp hardswish", gain=1.5),
    net("no_zero_region",
        lambda: Mlp((6, 8, 8, 8, 8, 3), nn.GELU(), nn.SiLU(), nn.LeakyReLU(), nn.ELU()), VECTOR, UNIT,
        pinned=("layers.4",), tags="mlp no-zero-region nothing"),
    net("dead_follows", lambda: Mlp((6, 10, 8, 6, 3), RELU, RELU, RELU), VECTOR, UNIT,
        dead("layers.0", at=(2, 3), how="bound"),
        dead("layers.1", at=(0, 5), how="follows", fed=(2, 3)),
        dead("layers.2", at=(1,), how="follows", fed=(0, 5)),
        pinned=("layers.3",), tags="mlp fixed-point"),
    net("unread", lambda: Mlp((6, 10, 8, 3), RELU, nn.GELU()), VECTOR, UNIT,
        killing("layers.1", removes="layers.0", at=(0, 9), how="unread"),
        killing("layers.2", removes="layers.1", at=(3, 4), how="unread"),
        pinned=("layers.2",), tags="mlp unread"),
    net("unread_but_by_dead", lambda: Mlp((6, 10, 8, 3), RELU, RELU), VECTOR, UNIT,
        killing("layers.1", removes="layers.0", at=(1, 7), how="unread"),
        dead("layers.1", at=(2, 6), how="nonpositive"),
        pinned=("layers.2",), tags="mlp unread fixed-point"),
    net("unread_flatten", lambda: ConvPair(0, True), IMAGE, UNIT,
        killing("conv2", removes="conv1", at=(1, 6), how="unread"),
        killing("fc", removes="conv2", at=(0, 4), how="unread", spread=4),
        pinned=("fc",), tags="unread flatten"),
    net("constant_folded", lambda: ConvPair(0, True), IMAGE, UNIT,
        dead("conv1", at=(0, 5), how="saturate"), dead("conv1", at=(2,), how="bound"),
        dead("conv2", at=(3,), how="saturate", box=UNIT), dead("conv2", at=(4,), how="nonpositive"),
        pinned=("fc",), tags="constant clamp flatten", gain=0.6),
    net("constant_padded", lambda: ConvPair(1, True), IMAGE, UNIT,
        stuck("conv1", at=(0, 5), how="saturate"), dead("conv1", at=(2,), how="bound"),
        dead("conv2", at=(3,), how="saturate", box=UNIT),
        pinned=("fc",), tags="constant clamp padding stuck", gain=0.6),
    net("constant_no_bias", lambda: ConvPair(0, False), IMAGE, UNIT,
        stuck("conv1", at=(1,), how="saturate"), dead("conv1", at=(6,), how="bound"),
        dead("conv2", at=(2,), how="nonpositive"),
        pinned=("fc",), tags="constant clamp no-bias stuck", gain=1.5),
    net("shared_twice", SharedTwice, VECTOR, UNIT,
        dead("first", at=(1, 6), how="bound"), dead("shared", at=(1, 6), how="nonpositive"),
        stuck("shared", at=(3,), how="nonpositive"),
        pinned=("out",), tags="shared-module stuck"),
    net("siamese", Siamese, together(normalised(2, 3, 6, 6), uniform(2, 3, 6, 6)), [NORMALISED, UNIT],
        dead("conv1", at=(2, 7), how="bound", box=NORMALISED), dead("conv2", at=(0, 4), how="nonpositive"),
        pinned=("out",), tags="shared-module multi-input per-channel-domain"),
    net("tied_autoencoder", TiedAutoencoder, uniform(2, 8), UNIT,
        dead("enc2", at=(0, 4), how="nonpositive"),
        stuck("enc1", at=(3,), how="bound"),
        pinned=(), tags="tied stuck"),
    net("tied_layers", TiedLayers, VECTOR, UNIT,
        dead("a", at=(2, 5), how="nonpositive"), killing("b", removes="", at=(2, 5), how="nonpositive"),
        stuck("a", at=(0,), how="bound"),
        pinned=("out",), tags="tied stuck"),
    net("bag_of_words", BagOfWords, tokens(20, 2, 6), None,
        dead("embed", at=(1, 6), how="nonpositive"), dead("fc1", at=(0, 8), how="nonpositive"),
        pinned=("fc2",), tags="tokens embedding"),
    net("two_inputs", TwoInputs,
        together(normalised(2, 3, 6, 6), uniform(2, 5, lo=-1.0)), [NORMALISED, SIGNED],
        dead("conv", at=(0, 3), how="bound", box=NORMALISED), dead("fc", at=(1, 5), how="bound", box=SIGNED),
        dead("mix", at=(2, 8), how="nonpositive"),
        pinned=("out",), tags="multi-input concat per-channel-domain"),
    net("dict_inputs", TwoInputs, by_name(image=IMAGE, facts=uniform(2, 5, hi=4.0)),
        {"image": UNIT, "facts": (0.0, 4.0)},
        dead("conv", at=(4, 7), how="bound", box=UNIT), dead("fc", at=(0, 2), how="bound", box=(0.0, 4.0)),
        dead("mix", at=(5, 9), how="nonpositive"),
        pinned=("out",), tags="multi-input dict-input concat"),
    net("two_outputs", TwoOutputs, VECTOR, UNIT,
        dead("trunk", at=(1, 8), how="bound"), stuck("shown", at=(3,), how="nonpositive"),
        dead("head1", at=(0, 6), how="nonpositive"),
        pinned=("shown", "out1", "out2"), tags="multi-output stuck"),
    net("group_norm", lambda: Normed(nn.GroupNorm(2, 8)), IMAGE, UNIT,
        killing("norm", removes="", at=(1, 5), stays=("conv1",)),
        dead("conv2", at=(0, 6)),
        pinned=("conv1", "fc"), tags="groupnorm stuck"),
    net("instance_norm", lambda: Normed(nn.InstanceNorm2d(8, affine=True)), IMAGE, UNIT,
        killing("norm", removes="conv1", at=(2, 3)),
        dead("conv2", at=(1, 7)),
        pinned=("fc",), tags="instancenorm"),
    net("rms_norm", RmsMlp, VECTOR, UNIT,
        dead("fc1", at=(0, 4), how="norm", norm="norm"), dead("fc1", at=(10,)),
        pinned=("embed", "fc2"), tags="rmsnorm"),
    net("unknown_operator", Sorted, VECTOR, UNIT,
        stuck("fc1", at=(2, 5), how="bound"),
        dead("fc2", at=(0, 7)),
        pinned=("fc1", "fc3"), tags="unknown-operator stuck"),
)  # fmt: skip
