"""`nodedrop demo`: analyze and compact_ on a small residual network with planted dead units."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from .. import Analysis, Ledger, SoftClampedReLU, analyze, compact_


class DemoNet(nn.Module):
    """Convolutions with a residual sum, a depthwise convolution, and a dense head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.branch = nn.Conv2d(16, 16, 3, padding=1)
        self.depthwise = nn.Conv2d(16, 16, 3, padding=1, groups=16)
        self.wide = nn.Conv2d(16, 32, 1)
        self.hidden = nn.Linear(32 * 16, 64)
        self.head = nn.Linear(64, 10)
        self.act = SoftClampedReLU()

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.stem(x))
        x = x + self.act(self.branch(x))
        x = self.act(self.wide(torch.relu(self.depthwise(x))))
        x = nn.functional.max_pool2d(x, 4).flatten(1)
        logits: Tensor = self.head(self.act(self.hidden(x)))
        return logits


@dataclass(frozen=True)
class Outcome:
    """What the demonstration found, did and measured."""

    analysis: Analysis
    ledger: Ledger
    model: nn.Module
    difference: float

    def to_json(self) -> dict[str, Any]:
        return {**self.ledger.to_json(), "largest_logit_change": self.difference}

    def show(self, console: Console) -> None:
        units = len(self.analysis.units)
        console.print("[bold]1. analyze[/] proves which units can never matter, for every input in \\[0, 1]")
        console.print(_table(self.analysis))
        removed = len(self.ledger.removed)
        before, after = self.ledger.parameters_before, self.ledger.parameters_after
        console.print(f"[bold]2. compact_[/] removed {removed} of {units} units in place")
        console.print(f"   {before:,} → {after:,} parameters, {before / after:.2f}× smaller")
        console.print(f"   largest change of any logit on 1,000 random inputs: {self.difference:.1e} (rounding)")
        console.print("[bold]3. the network now[/]")
        console.print(str(self.model), highlight=False)


def run(seed: int) -> Outcome:
    """Build the network, plant units that can go, remove them, compare."""
    torch.manual_seed(seed)
    model = DemoNet()
    _plant(model)
    example = torch.rand(2, 3, 16, 16)
    analysis = analyze(model, example)
    original = copy.deepcopy(model)
    ledger = compact_(model, example)
    with torch.no_grad():
        inputs = torch.rand(1000, 3, 16, 16)
        difference = float((model(inputs) - original(inputs)).abs().max())
    return Outcome(analysis, ledger, model, difference)


@torch.no_grad()
def _plant(model: DemoNet) -> None:
    """Biases below what the weights can reach, as training with the NodeDrop penalty leaves them."""
    for layer, units in ((model.stem, range(5)), (model.branch, range(7)), (model.depthwise, range(5))):
        for unit in units:
            layer.bias[unit] = -layer.weight[unit].clamp(min=0).sum() * 2 - 0.1  # type: ignore[index]
    for unit in range(10):
        model.wide.bias[unit] = -model.wide.weight[unit].abs().sum() * 20 - 0.1  # type: ignore[index]
    for unit in range(20):
        model.hidden.bias[unit] = -model.hidden.weight[unit].clamp(min=0).sum() - 0.1
    model.hidden.weight[20:24] = 0  # constant units: folded into the biases that read them
    model.head.weight[:, 24:30] = 0  # units that nobody reads


def _table(analysis: Analysis) -> Table:
    table = Table("layer", "units", "can go", "alive", "pinned", "kind", "why pinned")
    for account in analysis.accounts:
        kinds = dict.fromkeys(unit.certificate.kind for unit in account.units if unit.certificate is not None)
        reason = max(account.reasons, key=account.reasons.__getitem__, default="")
        counts = [account.count("removed"), account.count("alive"), account.count("pinned")]
        table.add_row(account.layer, str(len(account.units)), *map(str, counts), ", ".join(kinds), reason)
    totals = [analysis.count(status) for status in ("removed", "alive", "pinned")]
    table.add_row("all", str(len(analysis.units)), *map(str, totals), style="bold")
    return table
