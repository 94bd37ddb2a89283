"""Units inside attention, followed by the checker."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from tests.zoo import ZOO
from torch import nn

import nodedrop as nd
from nodedrop.verify import verify


@pytest.mark.parametrize("silent", ["q", "k"])
def test_queries_and_keys_go_together_whichever_is_zero(silent: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model: nn.Module = ZOO["attention_values"].build()
    with torch.no_grad():
        for parameter in model.get_submodule(silent).parameters():
            parameter[[1, 5]] = 0.0
    before, inputs = copy.deepcopy(model), torch.rand(2, 5, 6)
    removed = nd.compact_(model, inputs, ledger=tmp_path / "ledger.jsonl").removed
    assert {(unit.layer, unit.index) for unit in removed} == {("q", 1), ("q", 5), ("k", 1), ("k", 5)}
    verdict = verify(before, model, inputs, ledger=tmp_path / "ledger.jsonl")
    assert (verdict.status, verdict.units) == ("proved", 4), verdict
