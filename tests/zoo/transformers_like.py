"""Feed-forward units behind layer norms: ConvNeXt, MLP-Mixer, ViT, GPT, BERT, T5, and torch's own layers."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from .blocks import NORMALISED, UNIT, by_name, dead, killing, net, normalised, tokens, uniform
from .planting import Plant


class FeedForward(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.fc1(x).relu())


class ConvNeXtBlock(nn.Module):
    """Depthwise 7×7, layer norm over channels, dense feed-forward, layer scale."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dw = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width)
        self.ffn = FeedForward(width, 16)
        self.gamma = nn.Parameter(0.5 + torch.rand(width))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.dw(x).permute(0, 2, 3, 1))
        return x + (self.gamma * self.ffn(y)).permute(0, 3, 1, 2)


class ConvNeXt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 2, stride=2)
        self.block1 = ConvNeXtBlock(8)
        self.norm1, self.down = nn.LayerNorm(8), nn.Conv2d(8, 12, 2, stride=2)
        self.block2 = ConvNeXtBlock(12)
        self.norm2, self.head = nn.LayerNorm(12), nn.Linear(12, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.block1(self.stem(x))
        x = self.down(self.norm1(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2))
        return self.head(self.norm2(self.block2(x).mean((-2, -1))))


class MixerBlock(nn.Module):
    def __init__(self, width: int, count: int) -> None:
        super().__init__()
        self.norm1, self.token = nn.LayerNorm(width), FeedForward(count, 12)
        self.norm2, self.channel = nn.LayerNorm(width), FeedForward(width, 16)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.token(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channel(self.norm2(x))


class Mixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 8, 2, stride=2)
        self.block1, self.block2 = MixerBlock(8, 16), MixerBlock(8, 16)
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        return self.head(self.norm(self.block2(self.block1(x))).mean(1))


class FusedAttention(nn.Module):
    """One projection for queries, keys and values; scaled_dot_product_attention."""

    def __init__(self, width: int, heads: int, causal: bool = False) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.heads, self.causal = heads, causal

    def forward(self, x: Tensor) -> Tensor:
        batch, count, width = x.shape
        q, k, v = self.qkv(x).reshape(batch, count, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        out = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.proj(out.transpose(1, 2).reshape(batch, count, width))


class PreNormBlock(nn.Module):
    def __init__(self, width: int, hidden: int, causal: bool = False) -> None:
        super().__init__()
        self.ln1, self.attn = nn.LayerNorm(width), FusedAttention(width, 2, causal)
        self.ln2, self.ffn = nn.LayerNorm(width), FeedForward(width, hidden)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln1(x))
        return x + self.ffn(self.ln2(x))


class ViT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 8, 4, stride=4)
        self.cls = nn.Parameter(torch.randn(1, 1, 8) * 0.2)
        self.pos = nn.Parameter(torch.randn(1, 5, 8) * 0.2)
        self.blocks = nn.Sequential(PreNormBlock(8, 16), PreNormBlock(8, 16))
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(x.shape[0], -1, -1), x], dim=1) + self.pos
        x = self.norm(self.blocks(x))
        return self.head(x[:, 0] + x[:, 1:].mean(1))


class Gpt(nn.Module):
    """Causal, with the token embedding tied to the output."""

    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(20, 8), nn.Embedding(6, 8)
        self.blocks = nn.ModuleList([PreNormBlock(8, 16, causal=True), PreNormBlock(8, 16, causal=True)])
        self.norm, self.lm_head = nn.LayerNorm(8), nn.Linear(8, 20, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.lm_head(self.norm(x))


class BertLayer(nn.Module):
    """Norms after the additions; softmax written out, with a padding mask."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.proj, self.norm1 = nn.Linear(width, width), nn.LayerNorm(width)
        self.ffn, self.norm2 = FeedForward(width, 16), nn.LayerNorm(width)
        self.heads = heads

    def split(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], x.shape[1], self.heads, -1).transpose(1, 2)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        scores = scores.masked_fill(mask[:, None, None, :] == 0, -1e4)
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        x = self.norm1(x + self.proj(mixed))
        return self.norm2(x + self.ffn(x))


class Bert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(20, 8), nn.Parameter(torch.randn(6, 8))
        self.norm = nn.LayerNorm(8)
        self.layers = nn.ModuleList([BertLayer(8, 2), BertLayer(8, 2)])
        self.pooler, self.head = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        x = self.norm(self.words(ids) + self.places[: ids.shape[1]])
        for layer in self.layers:
            x = layer(x, mask)
        return self.head(torch.tanh(self.pooler(x[:, 0])))


class T5Norm(nn.Module):
    """RMS norm written out, as T5 does."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.5 + torch.rand(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class T5Attention(nn.Module):
    """No biases, no scaling; a learned bias per relative position."""

    def __init__(self, width: int, heads: int, reach: int) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.relative = nn.Embedding(2 * reach + 1, heads)
        self.heads, self.reach = heads, reach

    def forward(self, x: Tensor, memory: Tensor, causal: bool = False) -> Tensor:
        q, k, v = (
            proj(y).view(y.shape[0], y.shape[1], self.heads, -1).transpose(1, 2)
            for proj, y in ((self.q, x), (self.k, memory), (self.v, memory))
        )
        offset = torch.arange(memory.shape[1])[None, :] - torch.arange(x.shape[1])[:, None]
        bias = self.relative(offset.clamp(-self.reach, self.reach) + self.reach).permute(2, 0, 1)
        scores = torch.matmul(q, k.transpose(2, 3)) + bias
        if causal:
            scores = scores.masked_fill(offset > 0, float("-inf"))
        return self.o(torch.matmul(scores.softmax(-1), v).transpose(1, 2).reshape(x.shape[0], x.shape[1], -1))


class T5Encoder(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.attn = T5Norm(width), T5Attention(width, 2, 3)
        self.norm2 = T5Norm(width)
        self.wi, self.wo = nn.Linear(width, 16, bias=False), nn.Linear(16, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        x = x + self.attn(y, y)
        return x + self.wo(self.wi(self.norm2(x)).relu())


class T5Decoder(nn.Module):
    """Self and cross attention; a gated feed-forward, as in T5 v1.1, with ReLU as the gate."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.attn = T5Norm(width), T5Attention(width, 2, 3)
        self.norm2, self.cross = T5Norm(width), T5Attention(width, 2, 3)
        self.norm3 = T5Norm(width)
        self.gate, self.up = nn.Linear(width, 16, bias=False), nn.Linear(width, 16, bias=False)
        self.wo = nn.Linear(16, width, bias=False)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        y = self.norm1(x)
        x = x + self.attn(y, y, causal=True)
        x = x + self.cross(self.norm2(x), memory)
        y = self.norm3(x)
        return x + self.wo(self.gate(y).relu() * self.up(y))


class T5(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Embedding(20, 8)
        self.encoder, self.encoder_norm = T5Encoder(8), T5Norm(8)
        self.decoder, self.decoder_norm = T5Decoder(8), T5Norm(8)
        self.lm_head = nn.Linear(8, 20, bias=False)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory = self.encoder_norm(self.encoder(self.shared(source)))
        return self.lm_head(self.decoder_norm(self.decoder(self.shared(target), memory)))


def behind_norm(layer: str, norm: str, *, at: tuple[int, ...]) -> tuple[Plant, Plant]:
    """Two of each kind in a layer fed by `norm`: below the norm's ball, and with a zero row."""
    half = len(at) // 2
    return dead(layer, at=at[:half], how="norm", norm=norm), dead(layer, at=at[half:])


def padding(generator: torch.Generator) -> tuple[Tensor]:
    return (torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]]),)


STREAM = ("blocks.0.attn.proj", "blocks.0.ffn.fc2", "blocks.1.attn.proj", "blocks.1.ffn.fc2")

ENTRIES = (
    net("convnext", ConvNeXt, normalised(2, 3, 8, 8), NORMALISED,
        *behind_norm("block1.ffn.fc1", "block1.norm", at=(0, 3, 7, 12)),
        *behind_norm("block2.ffn.fc1", "block2.norm", at=(5, 6, 10, 15)),
        pinned=("stem", "block1.dw", "block1.ffn.fc2", "down", "block2.dw", "block2.ffn.fc2", "head"),
        tags="layernorm depthwise residual per-channel-domain"),
    net("mlp_mixer", Mixer, uniform(2, 3, 8, 8), UNIT,
        dead("block1.token.fc1", at=(1, 7)), dead("block2.token.fc1", at=(0, 11)),
        *behind_norm("block1.channel.fc1", "block1.norm2", at=(2, 4, 8, 9)),
        *behind_norm("block2.channel.fc1", "block2.norm2", at=(0, 13, 14, 15)),
        pinned=("patch", "block1.channel.fc2", "block2.channel.fc2", "head"),
        tags="layernorm residual transpose"),
    net("vit", ViT, normalised(2, 3, 8, 8), NORMALISED,
        *behind_norm("blocks.0.ffn.fc1", "blocks.0.ln2", at=(1, 5, 7, 11)),
        *behind_norm("blocks.1.ffn.fc1", "blocks.1.ln2", at=(0, 2, 8, 14)),
        pinned=("patch", *STREAM, "head"),
        tags="layernorm attention residual per-channel-domain"),
    net("gpt", Gpt, tokens(20, 4, 6), None,
        *behind_norm("blocks.0.ffn.fc1", "blocks.0.ln2", at=(3, 4, 9, 10)),
        *behind_norm("blocks.1.ffn.fc1", "blocks.1.ln2", at=(0, 6, 12, 15)),
        pinned=STREAM,
        tags="layernorm attention residual tokens tied"),
    net("bert", Bert, by_name(ids=tokens(20, 2, 6), mask=padding), {"ids": None, "mask": None},
        *behind_norm("layers.0.ffn.fc1", "layers.0.norm1", at=(2, 6, 7, 13)),
        *behind_norm("layers.1.ffn.fc1", "layers.1.norm1", at=(0, 1, 9, 11)),
        pinned=("layers.0.proj", "layers.0.ffn.fc2", "layers.1.proj", "layers.1.ffn.fc2", "head"),
        tags="layernorm attention residual tokens dict-input"),
    net("t5", T5, by_name(source=tokens(20, 2, 5), target=tokens(20, 2, 4)), {"source": None, "target": None},
        dead("encoder.wi", at=(1, 4, 15)),
        killing("decoder.gate", removes="decoder.gate decoder.up", at=(0, 8, 9)),
        pinned=("encoder.attn.o", "encoder.wo", "decoder.attn.o", "decoder.cross.o", "decoder.wo", "lm_head"),
        tags="rmsnorm attention residual tokens no-bias gate dict-input"),
)  # fmt: skip
