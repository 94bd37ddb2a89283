"""A network for the command line, and a short run of it that can be killed."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

import nodedrop as nd


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nd.SoftClampedReLU(), nn.Flatten(), nn.Linear(8 * 16, 12),
        nd.SoftClampedReLU(), nn.Linear(12, 10), nd.SoftClampedReLU(), nn.Linear(10, 2),
    )  # fmt: skip


def train(folder: Path, *, stop: int = 60, checkpoint: int = 20) -> nn.Module:
    """Sixty steps with a cut every second one; weights drift, and units are pushed down."""
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    drop = nd.NodeDrop(
        model, optimizer, torch.rand(4, 1, 4, 4), lam=0.02, batch_size=8, on_collapse="keep",
        ledger=folder / "ledger.jsonl",
    )  # fmt: skip
    checkpoints = nd.Checkpoints(folder / "checkpoint", model, optimizer=optimizer, drop=drop, ledger=drop.ledger)
    state = checkpoints.resume() or {"step": 0}
    for step in range(state["step"], stop):
        x = torch.rand(8, 1, 4, 4)
        loss = (model(x).mean(1) - x.mean((1, 2, 3))).square().mean() + drop.penalty()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 2:
            drop.drop()
        if step % checkpoint == checkpoint - 1:
            checkpoints.write(step + 1)
    nd.save(model, folder / "model.safetensors")
    return model
