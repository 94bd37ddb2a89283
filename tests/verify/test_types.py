"""Operands of several types: they are converted to the type of the result before anything is computed."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import nodedrop as nd
from nodedrop.verify import verify
from nodedrop.verify.casts import holds
from nodedrop.verify.pairs import Assumptions
from nodedrop.verify.program import read
from nodedrop.verify.relation import Walk

Meets = Callable[[Tensor, Tensor], Tensor]
BIG = torch.tensor([2**24 + 1])
NEAR = torch.tensor(1 + 5e-8, dtype=torch.float64)
# What units meet, which makes each of them at most 1; each would be below 0 if the number were met as it is.
CASES: dict[str, tuple[Meets, Tensor, torch.dtype]] = {
    "larger than a number of a wider type": (
        lambda z, t: 400.0 * (1.0 - torch.maximum(z.clamp(max=0.5), t)) + 1.0, torch.tensor(1.003), torch.bfloat16,
    ),
    "less a number of a wider type": (lambda z, t: 1e8 * (z.clamp(max=1.0) - t) + 1.0, NEAR, torch.float32),
    "larger than a whole number": (
        lambda z, t: 400.0 * (2.0**24 - torch.maximum(z.clamp(max=0.5), t)) + 1.0, BIG, torch.float32,
    ),
    "plus a whole number": (lambda z, t: (z + 0.5).clamp(0.5, 1.0) + t + (1.0 - 2.0**24), BIG - 2, torch.float32),
    "beside whole numbers": (
        lambda z, t: 400.0 * (2.0**24 - torch.cat([t, t])[:1]) + z.clamp(max=1.0), BIG, torch.float32,
    ),
}  # fmt: skip
# Whole numbers and truths that are not what real numbers would be.
OTHERS: dict[str, tuple[Meets, Tensor, torch.dtype]] = {
    "one of two": (lambda z, t: torch.where(z > -9.0, t, z), BIG, torch.float32),
    "one of two types": (lambda z, t: torch.where(z > -9.0, t, z), NEAR, torch.float32),
    "filled": (lambda z, t: torch.zeros_like(z).fill_(t), NEAR, torch.float32),
    "masked": (lambda z, t: z.masked_fill(z > -9.0, t), NEAR, torch.float32),
    "joined": (lambda z, t: torch.cat([z.reshape(-1), t]), BIG, torch.float32),
    "a mean": (lambda z, t: z + t.mean(0, dtype=torch.float32), NEAR.reshape(1), torch.float32),
    "a sum of truths": (lambda z, t: z + t.sum(dtype=torch.bool), torch.ones(8, dtype=torch.bool), torch.float32),
    "truths": (lambda z, t: z + (t + t), torch.ones(4, dtype=torch.bool), torch.float32),
    "a fraction": (lambda z, t: z + torch.full_like(t, 1.9), BIG, torch.float32),
    "a whole mask": (lambda z, t: z + t.masked_fill(t > 0, 1.9), BIG, torch.float32),
    "cut off": (lambda z, t: z + t.long(), torch.full((4,), 1.9), torch.float32),
    "wrapped": (lambda z, t: z + (t + t), torch.full((4,), 100, dtype=torch.int8), torch.float32),
    "wrapped by a cast": (lambda z, t: z + t.to(torch.uint8), torch.full((4,), 300), torch.float32),
}


class Mixed(nn.Module):
    def __init__(self, meets: Meets, number: Tensor, dtype: torch.dtype) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.meets, self.fc, self.out = meets, nn.Linear(4, 4).to(dtype), nn.Linear(4, 2).to(dtype)
        self.register_buffer("number", number)
        with torch.no_grad():
            self.fc.weight.copy_(torch.eye(4))
            self.fc.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.out(torch.relu(self.meets(self.fc(x), self.number)))
        return found


def without_first(model: Any) -> Any:
    small = copy.deepcopy(model)
    small.fc.weight, small.fc.bias = (nn.Parameter(part[1:]) for part in (small.fc.weight, small.fc.bias))
    small.out.weight = nn.Parameter(small.out.weight[:, 1:])
    return small


@pytest.mark.parametrize("name", CASES)
def test_a_unit_that_conversion_makes_fire_is_not_proved_dead(name: str) -> None:
    model = Mixed(*CASES[name])
    small, x = without_first(model), torch.ones(1, 4, dtype=CASES[name][2])
    assert not torch.equal(model(x), small(x)), "the case shows nothing"
    verdict = verify(model, small, x, modes="eval", tries=1)
    assert verdict.status != "proved", verdict


class Only(Mixed):
    def forward(self, x: Tensor) -> Tensor:
        return self.meets(self.fc(x), self.number)


@pytest.mark.parametrize("lowest", [None, torch.bfloat16])
@pytest.mark.parametrize("name", [*CASES, *OTHERS])
def test_values_of_several_types_lie_in_their_intervals(name: str, lowest: torch.dtype | None) -> None:
    case = (CASES | OTHERS)[name]
    model = Only(*case).eval()
    x = torch.cat([torch.rand(20, 4), torch.zeros(1, 4), torch.ones(1, 4)]).to(case[2])
    program = read(model, x, "eval")
    box = (np.zeros((1, 1)), np.ones((1, 1)))
    walk = Walk(program, program, Assumptions(dict.fromkeys(program.inputs, box), 1.0, lowest), {})
    for place in range(len(program.steps)):
        walk.values.append(walk.step(place))
    found = walk.values[program.outputs[0]][0].value
    with torch.no_grad(), torch.autocast("cpu", lowest, enabled=lowest is not None):
        y = model(x).double().numpy()
    assert bool((found.lo <= y).all())
    assert bool((y <= found.hi).all())


HONEST: dict[str, tuple[Meets, Tensor]] = {
    "a number that the type has": (lambda z, t: 3.0 * z + t, torch.tensor(0.5)),
    "a number that it has not": (lambda z, t: z * 1.003 - t, torch.tensor(1.003)),
    "a whole number": (lambda z, t: z * t, torch.tensor(257)),
    "a number everywhere": (lambda z, t: z + torch.zeros_like(z).fill_(t), torch.tensor(0.5)),
}


@pytest.mark.parametrize("name", HONEST)
def test_what_is_stated_of_units_that_meet_other_types_is_proved(name: str, tmp_path: Path) -> None:
    model = Mixed(*HONEST[name], torch.bfloat16)
    with torch.no_grad():
        model.fc.weight.fill_(0.25)
        model.fc.bias[0] = -9.0
    before, x, ledger = copy.deepcopy(model), torch.rand(1, 4).bfloat16(), tmp_path / "ledger.jsonl"
    assert {unit.index for unit in nd.compact_(model, x, ledger=ledger).removed} >= {0}
    verdict = verify(before, model, x, ledger=ledger)
    assert verdict.status == "proved", verdict


TYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
         torch.uint8, torch.bool)  # fmt: skip


@pytest.mark.parametrize("wide", TYPES[:4])
@pytest.mark.parametrize("narrow", TYPES)
def test_a_type_holds_what_it_leaves_as_it_was(wide: torch.dtype, narrow: torch.dtype) -> None:
    if narrow is torch.bool:
        numbers = torch.tensor([False, True])
    elif narrow.is_floating_point:
        kind = torch.finfo(narrow)
        numbers = torch.tensor([kind.max, kind.min, 1 + kind.eps, kind.tiny], dtype=torch.float64).to(narrow)
    else:
        least, most = torch.iinfo(narrow).min, torch.iinfo(narrow).max
        numbers = torch.tensor([least, least + 1, most, most - 1], dtype=narrow)
    assert holds(wide, narrow) == (numbers.to(wide).tolist() == numbers.tolist())


def test_weights_of_zero_may_count_as_rounded(tmp_path: Path) -> None:
    """The prover counts every input of a sum, the checker those that are read."""
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)).bfloat16()
    with torch.no_grad():
        model[0].weight.copy_(torch.eye(4))
        model[0].bias[0] = -9.0
    before, example = copy.deepcopy(model), torch.rand(1, 4).bfloat16()
    nd.compact_(model, example, ledger=tmp_path / "l.jsonl")
    assert nd.verify(before, model, example, ledger=tmp_path / "l.jsonl").status == "proved"
