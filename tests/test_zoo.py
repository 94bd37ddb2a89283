"""The whole compiler on every network of the zoo."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch

import nodedrop as nd

from .exactness import assert_same_outputs, removed_units, values
from .planted import assert_exact, planted
from .zoo import ZOO


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("name", ZOO)
def test_exact(name: str, tmp_path: Path) -> None:
    assert_exact(ZOO[name], tmp_path)


FAINT = [name for name, entry in ZOO.items() if any(item.how == "faint" for item in entry.plants)]


@pytest.mark.parametrize("name", FAINT)
def test_declared_batch_size_lets_faint_units_go(name: str) -> None:
    entry = ZOO[name]
    model, example, expected = planted(entry, torch.float64)
    for item in entry.plants:
        for layer in item.stays if item.how == "faint" else ():
            expected.setdefault(layer, set()).update(item.at(layer))
    before = copy.deepcopy(model)
    ledger = nd.compact_(model, example, entry.domain, batch_size=len(values(example)[0]))
    assert removed_units(ledger) == expected
    assert_same_outputs(before, model, entry, example)
