"""What was rounded stays rounded: an operator of higher precision, or of larger numbers, does not undo it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.oracle import Tape, check_tape
from torch import Tensor, nn
from torch.nn import functional as F

import nodedrop as nd
from nodedrop.verify import verify

Change = Callable[[Tensor, dict[str, Tensor]], Tensor]


class Changed(nn.Module):
    """A unit that sums a normalised row of four, which makes 4 at most before anything is rounded."""

    def __init__(self, change: Change, numbers: dict[str, Tensor], dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.change, self.names, wide = change, list(numbers), torch.promote_types(dtype, torch.float32)
        self.norm, self.fc, self.out = nn.RMSNorm(4, eps=1e-6).to(dtype), nn.Linear(4, 3), nn.Linear(3, 2)
        for name, number in numbers.items():
            self.register_buffer(name, number)
        with torch.no_grad():
            self.fc.weight[0], self.out.weight[:, 0] = 1.0, 1000.0
        self.fc.to(wide)
        self.out.to(wide)

    def before(self, x: Tensor) -> Tensor:
        rows = self.change(self.norm(x.to(self.norm.weight.dtype)), dict(self.named_buffers()))
        found: Tensor = self.fc(rows)
        return found

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.out(torch.relu(self.before(x)))
        return found


def without_first(model: Any) -> Any:
    """The pair that a bound below 0 of the first unit would allow."""
    small = copy.deepcopy(model)
    small.fc.weight, small.fc.bias = (nn.Parameter(part[1:]) for part in (small.fc.weight, small.fc.bias))
    small.out.weight = nn.Parameter(small.out.weight[:, 1:])
    return small


def row(number: float) -> Tensor:
    return torch.full((4,), number)


CHANGES: dict[str, tuple[Change, dict[str, Tensor], torch.dtype]] = {
    "moved away and back": (lambda x, n: (x + n["a"]) + n["b"], {"a": row(1e4), "b": row(-1e4)}, torch.float32),
    "moved in a wider type": (lambda x, n: x + n["a"], {"a": row(0.0)}, torch.bfloat16),
    "scaled in a wider type": (lambda x, n: x * n["a"], {"a": row(1.0)}, torch.bfloat16),
    "moved away and back by numbers": (lambda x, n: 0.5 * ((x + 16384.0) + -16384.0) * 2.0, {}, torch.float32),
    "widened": (lambda x, n: x.float(), {}, torch.float16),
    "made small and large": (
        lambda x, n: x * n["a"] * n["b"] * n["c"],
        {"a": torch.tensor(2.0**-138), "b": torch.tensor(2.0**100), "c": torch.tensor(2.0**38)}, torch.float32,
    ),
}  # fmt: skip


def changed(name: str, inputs: int = 20000) -> tuple[Changed, Tensor]:
    """A model whose first unit fires, by no more than is rounded on the way, at the input that is returned."""
    change, numbers, dtype = CHANGES[name]
    model = Changed(change, numbers, dtype)
    x = 1 - 0.03 * torch.rand(inputs, 4, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        model.fc.bias[0] = 0.0
        sums = model.before(x)[:, 0]
        model.fc.bias[0] = -(float(sums.max()) - float(sums.max() - 4) / 2)
        best = x[int(sums.argmax())][None]
        assert float(model.before(best)[0, 0]) > 0, "the case shows nothing"
        assert float(model.fc.bias[0]) < -4 * (1 + 2.0**-21)
    return model, best


@pytest.mark.parametrize("name", CHANGES)
def test_a_unit_that_rounding_makes_fire_is_not_proved_dead(name: str) -> None:
    model, x = changed(name)
    small = without_first(model)
    assert not torch.equal(model(x), small(x))
    verdict = verify(model, small, torch.rand(1, 4), modes="eval", tries=1)
    assert verdict.status != "proved", verdict


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("below", [0.1, 40.0, 1e6])
def test_what_is_stated_of_a_rounded_row_is_what_its_weights_give(name: str, below: float, tmp_path: Path) -> None:
    model, _ = changed(name)
    with torch.no_grad():
        model.fc.bias[0] -= below
    before, ledger = copy.deepcopy(model), tmp_path / "ledger.jsonl"
    removed = nd.compact_(model, torch.rand(1, 4), ledger=ledger, on_collapse="keep").removed
    assert below < 1e6 or 0 in {unit.index for unit in removed if unit.layer == "fc"}
    if removed:
        verdict = verify(before, model, torch.rand(1, 4), ledger=ledger)
        assert verdict.status == "proved", verdict


class Large(nn.Module):
    """A row whose elements, or whose sums, leave the range of their type."""

    def __init__(self, rows: float, weights: list[float], bias: float, dtype: torch.dtype) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fc, self.out = nn.Linear(4, 2).to(dtype), nn.Linear(2, 1).to(dtype)
        self.register_buffer("rows", row(rows).to(dtype))
        with torch.no_grad():
            self.fc.weight[0], self.fc.bias[0] = torch.tensor(weights), bias

    def before(self, x: Tensor) -> Tensor:
        found: Tensor = self.fc(F.layer_norm(x, [4], eps=1e-4) * self.rows)
        return found

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.out(torch.relu(self.before(x)))
        return found


ROWS = {
    "an element": (6e4, [1e-4, 0.0, 0.0, 0.0], -100.0, [1.0, 0.0, 0.0, 0.0], torch.float16),
    "a sum": (1.0, [2e38, 2e38, 2e38, 1.9e38], -1e38, [1.0, 1.0, 0.0, 0.0], torch.float32),
}


@pytest.mark.parametrize("name", ROWS)
def test_a_row_that_may_overflow_has_no_bound(name: str) -> None:
    rows, weights, bias, numbers, dtype = ROWS[name]
    model, x = Large(rows, weights, bias, dtype), torch.tensor([numbers], dtype=dtype)
    assert float(model.before(x)[0, 0].detach()) == float("inf")
    verdict = verify(model, without_first(model), x, modes="eval", tries=1)
    assert verdict.status != "proved", verdict


def test_rows_of_values_may_leave_their_ball_by_what_was_rounded() -> None:
    def write(t: Tape) -> None:
        rows = t("aten.rms_norm.default", t.input(2, 4, lo=0.9, hi=1.0), [4], None, 1e-6)
        for number in (-3e4, 3e4):
            rows = t("aten.add.Tensor", rows, t.parameter(row(number)))

    check_tape(write, torch.float32)
