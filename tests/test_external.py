"""The same exactness on networks that others wrote: pytorchcv and transformers."""

from __future__ import annotations

import copy
import os

import pytest
import torch

import nodedrop as nd

from .exactness import assert_accounted, assert_same_outputs, cast, removed_units, widths
from .zoo import plant
from .zoo.external import external_entries, installed

ENTRIES = external_entries()


@pytest.mark.parametrize("package", ["pytorchcv", "transformers"])
def test_package_is_there(package: str) -> None:
    if not installed(package):
        message = f"{package} is not installed, so its networks are not tested; `make setup` installs it"
        pytest.fail(message) if os.environ.get("CI") == "true" else pytest.skip(message)
    assert any(name.startswith(package) for name in ENTRIES)


@pytest.mark.parametrize("name", ENTRIES)
def test_exact(name: str) -> None:
    entry = ENTRIES[name]
    torch.manual_seed(0)
    model = entry.build()
    expected = plant(model, entry)
    model = model.double()
    example = cast(entry.inputs(torch.Generator().manual_seed(0)), torch.float64)
    before = copy.deepcopy(model)
    # in training these drop whole layers by a branch on random data, so only their eval mode can be traced as a whole
    mode = "eval" if name in ("transformers_opt", "transformers_whisper") else "both"
    ledger = nd.compact_(model, example, entry.domain, mode=mode)
    assert removed_units(ledger) == expected
    assert_accounted(ledger, widths(before), widths(model))
    pinned = {(unit.layer, unit.index) for unit in ledger.units if unit.status == "pinned"}
    for layer in entry.pinned_layers:
        assert {(layer, index) for index in range(widths(before).get(layer, 0))} <= pinned
    assert_same_outputs(before, model, entry, example)
