"""What each process of tests/training/test_ddp.py runs; under torchrun: python ddp_target.py TASK FOLDER."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch._dynamo  # here, so that processes forked from one that has it start at once
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import nodedrop as nd

STEPS, BATCH, EVERY = 60, 16, 10


def make() -> nn.Sequential:
    """A network of which some units are dead, or will be soon."""
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Conv1d(2, 6, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(24, 14), nn.ReLU(), nn.Linear(14, 3)
    ).double()
    with torch.no_grad():
        for layer, units in ((model[0], [1]), (model[3], [3, 7])):
            for unit in units:
                layer.weight[unit] = -layer.weight[unit].abs()
                layer.bias[unit] = 1e-3 if unit == 7 else -0.5
    return model


def data(step: int) -> tuple[Tensor, Tensor]:
    x = torch.rand(BATCH, 2, 4, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
    return x, (x.sum((1, 2)) > 4).long() + (x[:, 0, 0] > 0.7).long()


def train(
    model: nn.Module, share: slice, *, timeout: float = 30.0, late: bool = False, folder: Path | None = None
) -> nd.NodeDrop:
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    drop = nd.NodeDrop(model, optimizer, data(0)[0][:2], lam=1e-3, timeout=timeout)
    start, stop = 0, STEPS
    if folder is not None:
        checkpoints = nd.Checkpoints(folder / "checkpoint", drop.model, optimizer=optimizer, drop=drop)
        start = (checkpoints.resume() or {"step": 0})["step"]
        stop = STEPS if start else STEPS // 2
    for step in range(start, stop):
        x, y = (part[share] for part in data(step))
        loss = nn.functional.cross_entropy(model(x), y) + drop.penalty()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % EVERY == EVERY - 1 and not late:
            drop.drop()
    if folder is not None and stop < STEPS:
        if dist.get_rank() == 0:
            checkpoints.write(stop)
        dist.barrier()
    return drop


def main(task: str, folder: Path) -> None:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    net = make()
    if task == "absent":
        net.register_buffer("statistics", torch.zeros(3))  # a buffer to be shared, but only among those who came
    dist.init_process_group("gloo")
    model: nn.Module = DistributedDataParallel(net)
    if task == "compiled":
        model = torch.compile(model, backend="eager")
    per = BATCH // world
    share = slice(rank * per, (rank + 1) * per)
    try:
        if task == "resume":
            drop = train(model, share, folder=folder)
            assert drop.events, "the model must be smaller before the run goes on"
            net = make()
            model = DistributedDataParallel(net)
        if task in ("train", "compiled", "resume"):
            drop = train(model, share, folder=folder if task == "resume" else None)
            torch.save((net.state_dict(), [e.step for e in drop.events]), folder / f"rank{rank}.pt")
        elif task == "disagree":
            drop = nd.NodeDrop(model, None, data(0)[0][:2], timeout=10.0)
            if rank == 1:
                with torch.no_grad():
                    net[3].bias[0] = -9.0
            drop.drop()
        elif task == "die":
            drop = nd.NodeDrop(model, None, data(0)[0][:2], timeout=10.0)
            if rank == 1:
                os._exit(7)
            drop.drop()
        elif task == "static":
            nd.NodeDrop(DistributedDataParallel(make(), static_graph=True), None, data(0)[0][:2])
        elif task == "absent":
            train(model, share, timeout=3.0, late=rank == 1)
    except nd.NodeDropError as error:
        (folder / f"rank{rank}.txt").write_text(f"{type(error).__name__}: {error}\n{net[3].weight.shape[0]}")
        sys.exit(3)
    except RuntimeError as error:
        (folder / f"rank{rank}.txt").write_text(f"{type(error).__name__}: {error}")
        sys.exit(4)
    dist.barrier()
    dist.destroy_process_group()


def process(task: str, folder: Path, rank: int, port: int) -> None:
    """One of two processes."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    main(task, folder)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
