"""The checker follows regions without gradients and those that cast nothing, and knows by which names results go."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import nodedrop as nd
from nodedrop.verify import verify
from nodedrop.verify.program import read

from ..test_regions import KINDS, REGIONS, Regions
from ..test_writes import Uses


@pytest.mark.parametrize("region", REGIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_cut_behind_a_region_is_proved(kind: str, region: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = Regions(kind, REGIONS[region]), torch.rand(4, 6)
    before, ledger = copy.deepcopy(model), tmp_path / "ledger.jsonl"
    nd.compact_(model, x, ledger=ledger)
    assert verify(before, model, x, ledger=ledger).status == "proved"
    assert verify(before, copy.deepcopy(before), x).status == "proved"


@pytest.mark.parametrize("region", REGIONS)
def test_a_unit_that_fires_is_missed_behind_a_region(region: str) -> None:
    model = Regions("values", REGIONS[region])
    x, other = torch.rand(4, 6), copy.deepcopy(model)
    with torch.no_grad():
        other.second.weight[0, 0] += 1.0
    assert verify(model, other, x).status != "proved"


def casting(a: Tensor, _b: Tensor, _: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        same = F.dropout(a, 0.5, training=False)
        a.relu_()
    return same


def test_a_write_in_a_region_shows_in_what_an_idle_dropout_returned() -> None:
    program = read(Uses(casting), torch.rand(3, 4), "eval")
    assert [program.steps[place].op for place in program.outputs] == ["relu.default"]


class Named(nn.Module):
    """A layer whose result is returned in some form."""

    def __init__(self, wrap: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.wrap, self.layer = wrap, nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Any:
        return self.wrap(self.layer(x))


FORMS: dict[str, Callable[[Tensor], Any]] = {
    "another name": lambda y: {"scores": y},
    "another order": lambda y: {"more": {"b": y + 1, "a": y}},
    "a list": lambda y: [y],
    "a tuple": lambda y: (y,),
}


@pytest.mark.parametrize("name", FORMS)
def test_results_by_other_names_are_others(name: str) -> None:
    wrap = FORMS[name]
    before = Named(lambda y: {"more": {"a": y, "b": y + 1}} if name == "another order" else {"logits": y})
    after = Named(wrap)
    after.load_state_dict(before.state_dict())
    verdict = verify(before, after, torch.rand(4, 3))
    assert verdict.status == "refuted"
    assert verify(after, copy.deepcopy(after), torch.rand(4, 3)).status == "proved"
