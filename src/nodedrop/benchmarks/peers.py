"""NodeDrop beside what a user would do otherwise, at equal epochs and, for those that choose their size, equal size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from ..errors import InputError
from ..experiments.recipes import Recipe, changed, recipe
from . import rivals
from .harness import Figure, Settings, document, figure, installed
from .rivals import Outcome
from .run import pictures

CHANGES: dict[str, Any] = {
    "network": "mnist-dense320", "images": 20_000, "epochs": 6, "batch": 64, "lam": 3e-3, "spare": 0.8, "toll": 0.25,
    "quiet": 0.5,
}  # fmt: skip
NORM: dict[str, Any] = {"batch_norm": True, "evidence": "batch-proved", "m": "batch", "lam": 1e-3, "spare": 0.0}
NORM |= {"toll": 0.0}
NORM |= {"optimizer": "nesterov", "lr": 0.1}  # as the paper has it; with Adam hardly a scale gets to zero in this time
QUICK: dict[str, Any] = {"images": 300, "epochs": 3, "batch": 50, "least": 2, "width": 0.25}
PAPER = 1e-3  # λ of the paper's procedure, which presses on all units; not searched for
PLAIN, WITH_NORM = "Dense320", "Dense320 with batch norm"
OURS, DENSE = "NodeDrop", "the dense ReLU network"
TP = "Torch-Pruning: train, group sparsity, prune, fine-tune"
SLIMMING = "network slimming with Torch-Pruning: train, L1 on γ, prune, fine-tune"

Procedure = Callable[[Recipe, Any, Callable[[float], None]], Outcome]


def run(settings: Settings) -> dict[str, Any]:
    """Whole runs, one after another, on the network without and with batch norm."""
    changes = {**CHANGES, **settings.changes, **(QUICK if settings.quick else {})}
    plain = changed(recipe("mnist"), changes)
    rows: list[dict[str, Any]] = []
    missing: dict[str, str] = {}
    for network, made, norm in ((PLAIN, plain, False), (WITH_NORM, changed(plain, NORM), True)):
        for seed in range(made.seed, made.seed + settings.seeds):
            rows += compared(network, replace(made, seed=seed), settings, missing, norm=norm)
    return document("peers", settings, figures_of(rows), rows=rows, missing=missing, used=installed("torch-pruning"))


def compared(
    network: str, made: Recipe, settings: Settings, missing: dict[str, str], *, norm: bool
) -> list[dict[str, Any]]:
    """The procedures on one network with one seed; those that need a size take NodeDrop's."""
    data, rows = pictures(made, settings), list[dict[str, Any]]()

    def add(name: str, procedure: Procedure) -> Outcome:
        words = f"{network}, seed {made.seed}: {name}"
        outcome = procedure(made, data, lambda done: settings.tell(words, done))
        rows.append({"network": network, "seed": made.seed, "procedure": name, **outcome.to_json()})
        return outcome

    target = add(OURS, rivals.nodedrop).parameters
    add(DENSE, rivals.dense)
    if not norm:
        add("the paper's procedure, plainly: removal at the end", partial(rivals.paper, lam=PAPER))
    try:
        add(SLIMMING if norm else TP, partial(rivals.torch_pruning, target=target, slimming=norm))
    except InputError as error:
        missing[SLIMMING if norm else TP] = str(error)
    return rows


def figures_of(rows: list[dict[str, Any]]) -> list[Figure]:
    """NodeDrop beside each: wall-clock, which must not be more, and error, which must not be higher."""
    ours = {(row["network"], row["seed"]): row for row in rows if row["procedure"] == OURS}
    others: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        if row["procedure"] != OURS:
            others.setdefault((row["network"], row["procedure"]), []).append(row)
    found = []
    for (network, name), held in others.items():
        pairs = [(ours[network, row["seed"]], row) for row in held]
        fastest, fewest = (None, None) if name == DENSE else (1.0, 0.0)
        times = [mine["seconds"] / other["seconds"] for mine, other in pairs]
        excess = [mine["error"] - other["error"] for mine, other in pairs]
        found.append(figure(f"{network}: wall-clock of NodeDrop beside {name}", times, fastest))
        found.append(figure(f"{network}: test error of NodeDrop above that of {name}", excess, fewest, "points"))
    return found
