"""A network of the zoo through the whole compiler: exactly the planted units go, and nothing else changes."""

from __future__ import annotations

import copy
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import nodedrop as nd
from nodedrop.intake import ModeChoice, Options
from nodedrop.ledger import LedgerFile
from nodedrop.session import Session
from nodedrop.verify import verify

from .exactness import (
    INDEX,
    Inputs,
    assert_accounted,
    assert_same_gradients,
    assert_same_outputs,
    cast,
    prepared_optimizer,
    removed_units,
    state_of,
    taken_indices,
    widths,
)
from .zoo import Entry, plant


def planted(entry: Entry, dtype: torch.dtype) -> tuple[nn.Module, Inputs, dict[str, set[int]]]:
    """The network with its dead units, an example, and the units that must go."""
    torch.manual_seed(0)
    model = entry.build()
    expected = plant(model, entry)
    return model.to(dtype), cast(entry.inputs(torch.Generator().manual_seed(0)), dtype), expected


# Units of such plants do fire, or are dead for batches of a known size only.
FIRING = ("saturate", "faint")


def assert_planted_units_go(ledger: nd.Ledger, entry: Entry, expected: dict[str, set[int]]) -> None:
    assert removed_units(ledger) == expected
    pinned = {(unit.layer, unit.index) for unit in ledger.units if unit.status == "pinned"}
    for item in entry.plants:
        for layer in () if item.how in FIRING or "tied" in entry.tags else item.stays:
            assert {(layer, unit) for unit in item.at(layer)} <= pinned
    for account in ledger.analysis.accounts:
        if account.layer in entry.pinned_layers:
            assert account.count("pinned") == len(account.units), account.layer
    assert set(entry.pinned_layers) <= {account.layer for account in ledger.analysis.accounts}


def assert_planted_everywhere(ledger: nd.Ledger, entry: Entry) -> None:
    """A layer whose units could go has some that are planted to go, or to show why they stay."""
    planted = {layer for item in entry.plants for layer in (*item.kill, *item.removed, *item.stays)}
    eligible = {account.layer.split("[")[0] for account in ledger.analysis.accounts if account.count("alive")}
    assert eligible <= planted, f"nothing is planted in {sorted(eligible - planted)}"


def assert_weights_survive(
    before: nn.Module, after: nn.Module, index: dict[str, Tensor], *, folded: bool
) -> None:
    """What stays is what it was; only a bias may have taken in a constant."""
    changed = []
    for (name, old), (same, new) in zip(before.named_parameters(), after.named_parameters(), strict=True):
        assert name == same
        assert old.requires_grad == new.requires_grad
        if not torch.equal(old.flatten()[index[name]], new.flatten()):
            changed.append(name)
    assert folded or not changed
    assert all(name.endswith("bias") for name in changed)


def assert_state_sliced(
    pair: tuple[nn.Module, Optimizer], old: dict[str, dict[str, Tensor]], index: dict[str, Tensor]
) -> None:
    """Adam's moments went the way of the weights, and another step works."""
    model, optimizer = pair
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state[parameter].items():
            if old[name][key].dim() == 0:
                assert torch.equal(value, old[name][key])
                continue
            assert value.shape == parameter.shape, (name, key)
            assert torch.equal(value.flatten(), old[name][key].flatten()[index[name]]), (name, key)
    example_gradients = {name: torch.ones_like(p) for name, p in model.named_parameters() if optimizer.state[p]}
    for name, gradient in example_gradients.items():
        model.get_parameter(name).grad = gradient
    optimizer.step()
    optimizer.zero_grad()


def assert_proved(
    pair: tuple[nn.Module, nn.Module], example: Inputs, entry: Entry, ledger: Path, units: int, modes: tuple[str, ...]
) -> None:
    """The checker finds as many units with the ledger and without it."""
    found = verify(*pair, example, ledger=ledger)
    assert (found.status, found.units) == ("proved", units), found
    found = verify(*pair, example, entry.domain, modes=modes, tries=1)
    assert (found.status, found.units) == ("proved", units), found


def assert_exact(entry: Entry, folder: Path, modes: ModeChoice = "both") -> None:
    """What goes is decided in single precision; outputs are compared in both, and gradients in double precision."""
    model, example, expected = planted(entry, torch.float32)
    before = copy.deepcopy(model)
    optimizer = prepared_optimizer(model, example)
    parameters, state = list(model.parameters()), state_of(model, optimizer)

    session = Session(model, example, Options(domain=entry.domain, mode=modes), optimizer)
    file = LedgerFile(folder / "ledger.jsonl", witness=False)
    file.follow(session)
    file.begin()
    outcome = session.cut_("error")

    ledger = nd.Ledger(outcome.analysis, 0, 0, outcome.difference)
    assert_planted_units_go(ledger, entry, expected)
    assert_planted_everywhere(ledger, entry)
    assert_accounted(ledger, widths(before), widths(model))
    assert_proved((before, model), example, entry, file.path, len(ledger.removed), session.options.modes)
    assert all(old is new for old, new in zip(parameters, model.parameters(), strict=True))
    assert all(set(state[n]) == set(optimizer.state[p]) and INDEX in state[n] for n, p in model.named_parameters())
    index = taken_indices(model, optimizer)
    folded = any(certificate.kind == "constant" for certificate in ledger.removed)
    assert_weights_survive(before, model, index, folded=folded)
    assert_state_sliced(copy.deepcopy((model, optimizer)), state, index)
    assert_same_outputs(before, model, entry, example)
    second = session.cut_("error").analysis
    assert not second.count("removed"), "something was left for a second pass"
    stayed = [(unit.layer, unit.index) for unit in ledger.units if unit.status != "removed"]
    assert [(unit.layer, unit.index) for unit in second.units] == stayed
    before, example = before.double(), cast(example, torch.float64)
    if folded:  # a constant in a bias was rounded
        model = copy.deepcopy(before)
        assert_planted_units_go(nd.compact_(model, example, entry.domain, mode=modes), entry, expected)
    model = model.double()
    assert_same_outputs(before, model, entry, example)
    assert_same_gradients(before, model, example, index)
