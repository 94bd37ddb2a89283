"""A small transformer that predicts the next letter of a text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention


class Wanted(Protocol):
    """What the network's builder is told."""

    @property
    def classes(self) -> int: ...
    @property
    def size(self) -> int: ...
    def activate(self) -> nn.Module: ...
    def scaled(self, units: int) -> int: ...


@dataclass(frozen=True)
class Decoder:
    """Blocks of causal attention and a feed-forward pair, each behind a layer norm, around a residual stream."""

    blocks: int
    width: int
    heads: int

    def __call__(self, wanted: Wanted) -> nn.Module:
        return _Decoder(self, wanted)


class _Decoder(nn.Module):
    def __init__(self, shape: Decoder, wanted: Wanted) -> None:
        super().__init__()
        self.letters = nn.Embedding(wanted.classes, shape.width)
        self.places = nn.Embedding(wanted.size, shape.width)
        self.blocks = nn.Sequential(*(_Block(shape, wanted) for _ in range(shape.blocks)))
        self.norm, self.head = nn.LayerNorm(shape.width), nn.Linear(shape.width, wanted.classes)
        for table in (self.letters, self.places):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits, sample × letter × place."""
        x = self.letters(tokens) + self.places.weight[: tokens.shape[1]]
        logits: Tensor = self.head(self.norm(self.blocks(x)))
        return logits.transpose(1, 2)


class _Block(nn.Module):
    def __init__(self, shape: Decoder, wanted: Wanted) -> None:
        super().__init__()
        self.heads, hidden = shape.heads, wanted.scaled(4 * shape.width)
        self.before, self.between = nn.LayerNorm(shape.width), nn.LayerNorm(shape.width)
        self.asked, self.joined = nn.Linear(shape.width, 3 * shape.width), nn.Linear(shape.width, shape.width)
        self.up, self.act, self.down = nn.Linear(shape.width, hidden), wanted.activate(), nn.Linear(hidden, shape.width)

    def forward(self, x: Tensor) -> Tensor:
        many, places, width = x.shape
        parts = self.asked(self.before(x)).view(many, places, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind(0)
        mixed = scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.joined(mixed.transpose(1, 2).reshape(many, places, width))
        result: Tensor = x + self.down(self.act(self.up(self.between(x))))
        return result
