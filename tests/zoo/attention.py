"""torch's own attention layers, and cuts inside attention: value units, query-key pairs, whole heads."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .blocks import UNIT, dead, killing, net, stuck, together, uniform
from .transformers_like import behind_norm


class TorchEncoder(nn.Module):
    def __init__(self, norm_first: bool) -> None:
        super().__init__()
        self.embed = nn.Linear(6, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, norm_first=norm_first)
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.layer(self.embed(x))).mean(1))


class TorchDecoder(nn.Module):
    """Two sequences; the second is memory."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(6, 8)
        self.layer = nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        return self.head(self.layer(self.embed(x), self.embed(memory)))


class TorchAttention(nn.Module):
    """nn.MultiheadAttention asserts its width, so the units in front of it stay; those behind it can go."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(6, 8)
        self.attn = nn.MultiheadAttention(8, 2, batch_first=True)
        self.fc1 = nn.Linear(8, 12)
        self.fc2 = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x).relu()
        x, _ = self.attn(x, x, x, need_weights=False)
        return self.fc2(self.fc1(x).relu().mean(1))


class OpenAttention(nn.Module):
    """Attention whose code takes any width per head (`-1`), or any number of heads."""

    def __init__(self, heads: int, size: int, by_size: bool) -> None:
        super().__init__()
        width = heads * size
        self.q, self.k, self.v = (nn.Linear(6, width) for _ in range(3))
        self.out = nn.Linear(width, 5)
        self.heads = (-1, size) if by_size else (heads, -1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (proj(x).unflatten(-1, self.heads).transpose(1, 2) for proj in (self.q, self.k, self.v))
        weights = torch.softmax(q @ k.mT * 0.5, dim=-1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))


SIGNED = (-1.0, 1.0)

ENTRIES = (
    net("torch_encoder", lambda: TorchEncoder(False), uniform(2, 5, 6), UNIT,
        *behind_norm("layer.linear1", "layer.norm1", at=(1, 4, 8, 15)),
        pinned=("embed", "layer.linear2", "head"), tags="layernorm attention torch-transformer"),
    net("torch_encoder_pre", lambda: TorchEncoder(True), uniform(2, 5, 6), UNIT,
        *behind_norm("layer.linear1", "layer.norm2", at=(0, 2, 9, 11)),
        pinned=("embed", "layer.linear2", "head"), tags="layernorm attention torch-transformer"),
    net("torch_decoder", TorchDecoder, together(uniform(2, 4, 6), uniform(2, 5, 6, lo=-1.0)), [UNIT, SIGNED],
        *behind_norm("layer.linear1", "layer.norm2", at=(3, 5, 6, 10)),
        pinned=("layer.linear2", "head"), tags="layernorm attention torch-transformer multi-input"),
    net("multihead_attention", TorchAttention, uniform(2, 5, 6), UNIT,
        stuck("embed", at=(1, 6), how="bound"),
        dead("fc1", at=(0, 5, 11)),
        pinned=("fc2",), tags="attention torch-transformer stuck", gain=1.0),
    net("attention_values", lambda: OpenAttention(2, 4, by_size=False), uniform(2, 5, 6, lo=-1.0), SIGNED,
        dead("v", at=(1, 5), how="null"),
        killing("q", removes="q k", at=(2, 6), how="null"),
        pinned=("out",), tags="attention attention-inner"),
    net("attention_heads", lambda: OpenAttention(3, 4, by_size=True), uniform(2, 5, 6, lo=-1.0), SIGNED,
        killing("v", removes="q k v", at=(4, 5, 6, 7), how="null"),
        pinned=("out",), tags="attention attention-inner"),
)  # fmt: skip
