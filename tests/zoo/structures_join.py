"""Small networks, each with one way of joining or parting values: add, concatenate, gate, split, write."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .blocks import UNIT, dead, killing, net, stuck, uniform


class AddBranches(nn.Module):
    """Two activated branches and their sum."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.out = nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.a(x).relu() + self.b(x).relu())


class ActivatedResidual(nn.Module):
    """x + relu(conv(x)): the stream holds activated values only."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.conv1, self.conv2 = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.fc = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).relu()
        x = x + self.conv1(x).relu()
        x = x + self.conv2(x).relu()
        return self.fc(x.mean((2, 3)))


class StackMaximum(nn.Module):
    """Elementwise maximum of two branches, then the sum of a stack with a third."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.out = nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        high = torch.maximum(self.a(x).relu(), self.b(x).relu())
        return self.out(torch.stack([high, self.c(x).relu()], dim=1).sum(1))


class ConcatFlatten(nn.Module):
    """Three maps of unlike widths, concatenated, flattened into a dense layer."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(3, 6, 1)
        self.c = nn.Conv2d(3, 5, 5, padding=2)
        self.fc1, self.fc2 = nn.Linear(15 * 9, 10), nn.Linear(10, 4)

    def forward(self, x: Tensor) -> Tensor:
        joined = torch.cat([self.a(x).relu(), self.b(x).relu(), self.c(x).relu()], dim=1)
        return self.fc2(self.fc1(joined.flatten(1)).relu())


class ChunkGate(nn.Module):
    """One layer makes value and gate: relu(first half) · second half."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(6, 16), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        gate, value = self.fc1(x).chunk(2, dim=-1)
        return self.fc2(gate.relu() * value)


class ChunkConv(nn.Module):
    """Halves of an activated map go different ways: as many units must go from each."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 12, 3, padding=1)
        self.a, self.b, self.fc = nn.Conv2d(6, 8, 1), nn.Conv2d(6, 8, 3, padding=1), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        first, second = torch.chunk(self.conv(x).relu(), 2, dim=1)
        x = torch.cat([self.a(first).relu(), self.b(second).relu()], 1)
        return self.fc(x.mean((2, 3)))


class UnequalSplit(nn.Module):
    """Parts as wide as their readers say."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 13)
        self.a, self.b, self.out = nn.Linear(5, 6), nn.Linear(8, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        first, second = self.fc(x).relu().split([self.a.in_features, self.b.in_features], dim=1)
        return self.out((self.a(first) + self.b(second)).relu())


class SigmoidGate(nn.Module):
    """value · hardsigmoid(gate): a gate that is always shut takes the value along."""

    def __init__(self) -> None:
        super().__init__()
        self.value, self.gate = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(3, 8, 1)
        self.out = nn.Conv2d(8, 2, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.value(x) * nn.functional.hardsigmoid(self.gate(x)))


class ShutGate(nn.Module):
    """The value is read before it is gated as well, so a shut gate does not free it."""

    def __init__(self) -> None:
        super().__init__()
        self.value, self.gate = nn.Linear(6, 8), nn.Linear(8, 8)
        self.fc, self.out = nn.Linear(8, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.value(x).relu()
        return self.out(self.fc(x * nn.functional.hardsigmoid(self.gate(x))).relu())


class InPlace(nn.Module):
    """relu_, += and writes through views."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.fc = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv1(x).relu_()
        y = self.conv2(x)
        y += x
        y = y.relu_() * 0.5
        y[:, :, 0] = 0.0
        y[:, :, 1:].mul_(2.0)
        return self.fc(y.mean((2, 3)))


class SliceWrite(nn.Module):
    """The first four channels are overwritten by position; units behind them may go."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2, self.fc = nn.Conv2d(3, 10, 3, padding=1), nn.Conv2d(10, 8, 1), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv1(x).relu() * 1.5
        x[:, :4] = x[:, :4] * 3.0 + 1.0
        return self.fc(self.conv2(x).relu().mean((2, 3)))


class FirstAndRest(nn.Module):
    """x[:, :k] and x[:, k:] with a fixed k: units of the rest may go."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(6, 10)
        self.a, self.b, self.out = nn.Linear(3, 6), nn.Linear(7, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc1(x).relu()
        return self.out((self.a(x[:, :3]) + self.b(x[:, 3:])).relu())


VECTOR = uniform(2, 6)
IMAGE = uniform(2, 3, 6, 6)

ENTRIES = (
    net("add_relu_branches", AddBranches, VECTOR, UNIT,
        dead("a", "b", at=(1, 4, 7), how="bound"),
        pinned=("out",), tags="add"),
    net("add_dead_with_live", AddBranches, VECTOR, UNIT,
        dead("a", "b", at=(0, 5), how="nonpositive"),
        stuck("a", at=(2,), how="bound"),
        stuck("b", at=(6, 7), how="nonpositive"),
        pinned=("out",), tags="add stuck"),
    net("activated_residual", ActivatedResidual, IMAGE, UNIT,
        dead("stem", "conv1", "conv2", at=(3, 6), how="nonpositive"),
        stuck("conv1", at=(0,)),
        pinned=("fc",), tags="add residual stuck"),
    net("stack_maximum", StackMaximum, VECTOR, UNIT,
        dead("a", "b", "c", at=(2, 3), how="bound"),
        stuck("b", at=(6,)),
        pinned=("out",), tags="add stack maximum stuck"),
    net("concat_flatten", ConcatFlatten, uniform(2, 3, 3, 3), UNIT,
        dead("a", at=(1,), how="bound"), dead("b", at=(0, 5), how="nonpositive"),
        dead("c", at=(2, 3), how="bound"),
        dead("fc1", at=(4, 8), how="nonpositive"),
        pinned=("fc2",), tags="concat flatten"),
    net("chunk_relu_gate", ChunkGate, VECTOR, UNIT,
        killing("fc1", removes="fc1", at=(1, 6), removed_at={"fc1": (1, 6, 9, 14)}, how="bound"),
        pinned=("fc2",), tags="chunk gate"),
    net("chunk_conv", ChunkConv, IMAGE, UNIT,
        dead("conv", at=(0, 4, 7, 8), how="bound"),
        dead("a", at=(2, 5), how="nonpositive"), dead("b", at=(7,), how="nonpositive"),
        pinned=("fc",), tags="chunk concat"),
    net("chunk_uneven", ChunkConv, IMAGE, UNIT,
        stuck("conv", at=(2, 3), how="bound"),
        dead("a", at=(4,), how="nonpositive"), dead("b", at=(0, 1), how="nonpositive"),
        pinned=("fc",), tags="chunk concat stuck"),
    net("split_unequal", UnequalSplit, VECTOR, UNIT,
        dead("fc", at=(1, 7, 8, 12), how="bound"),
        dead("a", "b", at=(3, 5)),
        pinned=("out",), tags="split"),
    net("hardsigmoid_gate", SigmoidGate, IMAGE, UNIT,
        killing("gate", removes="gate value", at=(0, 3), how="bound", level=-3.5),
        killing("gate", removes="gate value", at=(6,), level=-4.0),
        pinned=("out",), tags="gate hardsigmoid"),
    net("hardsigmoid_gate_shut", ShutGate, VECTOR, UNIT,
        dead("value", at=(1,), how="bound"), killing("gate", removes="gate", at=(1,), level=-4.0),
        stuck("gate", at=(4, 5), level=-4.0),
        dead("fc", at=(0, 2)),
        pinned=("out",), tags="gate hardsigmoid stuck"),
    net("in_place", InPlace, IMAGE, UNIT,
        dead("conv1", at=(2, 7), how="bound"), dead("conv2", at=(2, 7), how="nonpositive"),
        pinned=("fc",), tags="inplace add"),
    net("slice_write", SliceWrite, IMAGE, UNIT,
        dead("conv1", at=(5, 9), how="bound"),
        dead("conv2", at=(0, 4)),
        pinned=("fc",), tags="inplace slice"),
    net("first_and_rest", FirstAndRest, VECTOR, UNIT,
        dead("fc1", at=(4, 8), how="bound"),
        stuck("fc1", at=(1,), how="nonpositive"),
        dead("a", "b", at=(0, 3)),
        pinned=("out",), tags="slice stuck"),
)  # fmt: skip
