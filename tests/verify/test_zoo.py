"""Every network of the zoo, with its ledger and without: proved, and as many units as were removed."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from tests.verify.forging import read
from tests.zoo import ZOO, plant
from tests.zoo.external import external_entries
from torch import nn

import nodedrop as nd
from nodedrop.verify import verify

ENTRIES = {**ZOO, **external_entries()}
# torch.export cannot read these in training mode: they branch on a number that they draw.
BRANCHING = {"transformers_opt", "transformers_whisper"}


@pytest.mark.parametrize("name", ENTRIES)
def test_a_cut_is_proved_with_its_ledger_and_without(name: str, tmp_path: Path) -> None:
    entry, path = ENTRIES[name], tmp_path / "ledger.jsonl"
    torch.manual_seed(0)
    model = entry.build()
    plant(model, entry)
    before, inputs = copy.deepcopy(model), entry.inputs(torch.Generator().manual_seed(0))
    mode, modes = ("eval", ("eval",)) if name in BRANCHING else ("both", ("eval", "train"))
    batch = 64 if "train" in modes else None
    removed = nd.compact_(model, inputs, entry.domain, mode=mode, batch_size=batch, ledger=path).removed
    told = [(line["layer"], line["index"]) for line in read(path) if line["line"] == "unit"]
    assert len(told) == len(removed)
    assert removed or not any(item.removed for item in entry.plants)
    verdict = verify(before, model, inputs, ledger=path)
    assert (verdict.status, verdict.units) == ("proved", len(told)), verdict
    verdict = verify(before, model, inputs, entry.domain, modes=modes, batch_size=batch, tries=1)
    assert (verdict.status, verdict.units) == ("proved", len(told)), verdict


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
