"""Layers that read a norm over one sample: their inputs are bounded whatever the network before does."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from nodedrop import functional
from nodedrop.training import NodeDrop


class ByHand(nn.Module):
    """RMS norm as many transformers write it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


class Block(nn.Module):
    """Attention and a feed-forward pair around a residual stream, each behind a norm."""

    def __init__(self, norm: Callable[[int], nn.Module], width: int = 8) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.first, self.second = norm(width), norm(width)
        self.up, self.down = nn.Linear(width, 24), nn.Linear(24, width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.down(torch.relu(self.up(self.second(x))))


NORMS: dict[str, tuple[Callable[[int], nn.Module], str, bool]] = {
    "layer": (nn.LayerNorm, "layer", False),
    "rms": (nn.RMSNorm, "rms", True),
    "rms by hand": (ByHand, "rms", True),
}


def shrinking(model: nn.Module, example: Tensor, lam: float = 1e-3) -> NodeDrop:
    return NodeDrop(model, torch.optim.Adam(model.parameters(), 0.02), example, lam=lam, domain=(-4.0, 4.0))


@pytest.mark.parametrize("name", NORMS)
def test_the_penalty_is_the_norms_own(name: str) -> None:
    torch.manual_seed(0)
    make, kind, rms = NORMS[name]
    model = Block(make)
    drop = shrinking(model, torch.randn(2, 5, 8).clamp(-4, 4))
    (target,) = drop.targets
    assert target.layer == "up"
    assert target.reads is not None
    assert target.reads.kind == kind
    shift = None if rms else model.second.bias
    expected = functional.penalty_ln(model.up.weight, model.up.bias, model.second.weight, shift, rms=rms)
    torch.testing.assert_close(drop.penalty(), 1e-3 * expected)


@pytest.mark.parametrize("name", NORMS)
def test_feed_forward_units_go_where_their_bound_says_so(name: str) -> None:
    torch.manual_seed(0)
    make, _, _rms = NORMS[name]
    model, example = Block(make), torch.randn(2, 5, 8).clamp(-4, 4)
    drop = shrinking(model, example, lam=0.05)
    optimizer = torch.optim.SGD(model.up.parameters(), 0.2)
    for _ in range(60):
        optimizer.zero_grad()
        drop.penalty().backward()
        optimizer.step()
    with torch.no_grad():
        model.up.bias[:10] = 2.0  # these are told to live
    before = model(example)
    event = drop.drop()
    assert event is not None
    assert {c.index for c in event.removed} <= set(range(10, 24))
    assert len(event.removed) >= 10
    assert {mode for c in event.removed for mode in c.modes} == {"eval", "train"}
    torch.testing.assert_close(model(example), before)


class Rectified(nn.Module):
    """Pre-activation: group norm, ReLU, convolution, ReLU."""

    def __init__(self, *, rectified: bool) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(1, 6, 3, padding=1), nn.GroupNorm(2, 6)
        self.conv, self.head = nn.Conv2d(6, 5, 1), nn.Linear(5, 2)
        self.rectified = rectified

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.stem(x))
        x = torch.relu(self.conv(torch.relu(x) if self.rectified else x))
        return self.head(x.mean((2, 3)))


@pytest.mark.parametrize("rectified", [True, False])
def test_group_norm(rectified: bool) -> None:
    torch.manual_seed(0)
    model, example = Rectified(rectified=rectified), torch.rand(2, 1, 6, 6)
    drop = shrinking(model, example)
    target = next(t for t in drop.targets if t.layer == "conv")
    assert target.reads is not None
    assert target.reads.count == 3 * 36
    term = functional.penalty_gn(
        model.conv.weight, model.conv.bias, model.norm.weight, model.norm.bias, 3 * 36, rectified=rectified
    )
    others = [t for t in drop.targets if t.layer != "conv"]
    rest = sum(functional.penalty(model.get_parameter(t.weight), model.get_parameter(str(t.bias))) for t in others)
    torch.testing.assert_close(drop.penalty(), 1e-3 * (term + rest))
    with torch.no_grad():
        model.conv.weight[:2] *= 1e-3
        model.conv.bias[:2] = -1.0
    assert {c.index for c in drop.drop().removed if c.layer == "conv"} == {0, 1}


class Mixing(nn.Module):
    """Rows of the normalised values are mixed: the weight is on the left, and sums over what the norm leaves apart."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 2)
        self.weight, self.bias = nn.Parameter(torch.randn(6, rows)), nn.Parameter(torch.randn(6, 1))
        self.back = nn.Parameter(torch.randn(rows, 6))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.back @ (self.weight @ self.norm(x) + self.bias).relu())  # type: ignore[no-any-return]


@pytest.mark.parametrize("rows", [4, 5])
def test_a_weight_on_the_left_does_not_sum_over_what_a_norm_bounds(rows: int) -> None:
    model = Mixing(rows, 5).double()
    drop = NodeDrop(model, None, torch.rand(2, rows, 5, dtype=torch.float64), lam=1.0)
    (target,) = drop.targets
    assert (target.layer, target.reads) == ("weight", None)
    expected = model.weight.clamp(min=0).sum() + (model.bias + 1).abs().sum()
    torch.testing.assert_close(drop.penalty(), expected)
