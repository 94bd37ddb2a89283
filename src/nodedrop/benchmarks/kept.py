"""What the cuts of a run keep for a checker, beside one of its checkpoints: weights and Adam's two numbers for each."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ..experiments.data import TEXT, load
from ..experiments.networks import build
from ..training import Checkpoints, NodeDrop
from ..verify.run import verify_run
from .harness import Figure, Settings, document, single

LIMIT = 0.75
Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Case:
    """A network, its data, and how it is trained: steps, those between two cuts, λ and the learning rate."""

    make: Callable[[], tuple[nn.Module, Callable[[], Batch]]]
    steps: int
    every: int
    lam: float
    lr: float = 2e-3


def dense(width: int = 256, layers: int = 6) -> tuple[nn.Module, Callable[[], Batch]]:
    """ReLU without normalisation: a proof needs all weights behind a unit."""
    sizes = [64] + [width] * (layers - 1)
    parts: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        parts += [nn.Linear(inputs, outputs), nn.ReLU()]

    def batch() -> Batch:
        x = torch.rand(64, 64)
        return x, (x[:, :32].sum(1) > x[:, 32:].sum(1)).long()

    return nn.Sequential(*parts, nn.Linear(sizes[-1], 2)), batch


def decoder(width: float = 1.0) -> tuple[nn.Module, Callable[[], Batch]]:
    """The transformer of three blocks on the text that Python brings along."""
    data = load(TEXT)
    model = build("text-transformer", classes=data.classes, size=data.train_images.shape[1], width=width)

    def batch() -> Batch:
        chosen = torch.randint(len(data.train_images), (16,))
        return data.train_images[chosen].long(), data.train_labels[chosen]

    return model, batch


CASES = {
    "6 dense layers with ReLU": Case(dense, 450, 45, 1e-6),
    "text transformer": Case(decoder, 160, 20, 1e-3),
}
QUICK = {
    "6 dense layers with ReLU": Case(lambda: dense(64), 200, 20, 1e-5, 5e-3),
    "text transformer": Case(lambda: decoder(0.2), 24, 4, 3e-2, 2e-2),
}


def run(settings: Settings) -> dict[str, Any]:
    """Train, cut, check, and weigh the files."""
    cases, rows = QUICK if settings.quick else CASES, list[dict[str, Any]]()
    for number, (title, case) in enumerate(cases.items()):
        settings.tell(title, number / len(cases))
        rows.append({"case": title, **measured(case)})
    return document("kept", settings, [_figure(row) for row in rows], runs=rows)


def measured(case: Case) -> dict[str, Any]:
    """One run: bytes that its cuts kept, and bytes of its first checkpoint."""
    torch.manual_seed(0)
    model, batch = case.make()
    first, example = copy.deepcopy(model), batch()[0][:2]
    optimizer = torch.optim.Adam(model.parameters(), case.lr)
    with TemporaryDirectory() as name:
        folder = Path(name)
        drop = NodeDrop(model, optimizer, example, lam=case.lam, ledger=folder / "ledger.jsonl")
        checkpoints = Checkpoints(folder / "checkpoint", model, optimizer=optimizer)
        size = 0
        for step in range(1, case.steps + 1):
            x, y = batch()
            loss = cross_entropy(model(x), y) + drop.penalty()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step == 1:
                size = checkpoints.write(step).stat().st_size
            if step % case.every == 0:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # a layer of which one unit is left is kept like any other
                    drop.drop()
        files = sorted((folder / "cuts").glob("*.safetensors"))
        verdict = verify_run(first, model, torch.zeros_like(example), folder / "ledger.jsonl")
        return {
            "parameters": sum(p.numel() for p in first.parameters()),
            "parameters_left": sum(p.numel() for p in model.parameters()),
            "units": verdict.units, "cuts": len(files), "kept_bytes": [path.stat().st_size for path in files],
            "ledger_bytes": (folder / "ledger.jsonl").stat().st_size, "checkpoint_bytes": size,
            "verdict": verdict.status, "reason": verdict.reason,
        }  # fmt: skip


def _figure(row: dict[str, Any]) -> Figure:
    share = sum(row["kept_bytes"]) / row["checkpoint_bytes"]
    return single(f"{row['case']}: what all {row['cuts']} cuts of a run kept beside one checkpoint", share, LIMIT)
