"""A training run made to be killed.

`python kill_target.py FOLDER` trains, or goes on training, to the end. It leaves `metrics.jsonl` and `final.json`, the
digests of all that the run consists of. `python kill_target.py` serves: each line of JSON on its input is a run in a
process of its own, forked when everything has been imported, and killed where the line says.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import select
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from nodedrop import NodeDrop
from nodedrop.training.checkpoint import Checkpoints
from nodedrop.training.journal import Journal

STEPS, EVERY, BATCH, SAMPLES = 40, 5, 8, 20
Pause = Callable[[str], None]


class Net(nn.Module):
    """Two convolutions and two dense layers, with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 8, 3)
        self.dense, self.head = nn.Linear(32, 24), nn.Linear(24, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.max_pool2d(self.second(self.first(x).relu()).relu(), 2).flatten(1)
        return self.head(nn.functional.dropout(self.dense(x).relu(), 0.2, self.training))


def build() -> Net:
    """A network of which some units die within the first half of the run, at different steps."""
    torch.manual_seed(7)
    net = Net()
    with torch.no_grad():
        for layer, count in ((net.first, 3), (net.second, 3), (net.dense, 10)):
            for unit in range(count):
                layer.weight[unit] = -layer.weight[unit].abs()
                layer.bias[unit] = 0.03 * (unit + 1)
    return net


def train(folder: Path, pause: Pause = lambda stage: None) -> None:
    """The whole run, or the rest of it."""
    images = torch.rand(SAMPLES, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    labels = (images.mean((1, 2, 3)) * 30).long() % 3
    model = build()
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [12, 25], gamma=0.5)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=7)
    drop = NodeDrop(model, optimizer, images[:2], lam=3e-3, copies=[ema])
    batches = torch.Generator().manual_seed(3)
    random.seed(5)
    np.random.seed(6)
    journal = Journal(folder / "metrics.jsonl")
    checkpoints = Checkpoints(
        folder / "checkpoint", model, optimizer=optimizer, ema=ema, scheduler=scheduler, scaler=scaler, drop=drop,
        batches=batches, metrics=journal,
    )
    pause("built")
    state = checkpoints.resume() or {"step": 0, "order": torch.empty(0, dtype=torch.long), "best": float("inf")}
    pause("resumed")
    order, best = state["order"], state["best"]
    for step in range(state["step"] + 1, STEPS + 1):
        if len(order) < BATCH:
            order = torch.cat([order, torch.randperm(SAMPLES, generator=batches)])
        chosen, order = order[:BATCH], order[BATCH:]
        shift = random.random() * 0.1 * np.random.rand()
        loss = nn.functional.cross_entropy(model((images[chosen] - shift).clamp(0, 1)), labels[chosen])
        optimizer.zero_grad()
        scaler.scale(loss + drop.penalty()).backward()
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        ema.update_parameters(model)
        event = drop.drop() if step % 3 == 0 else None
        best = min(best, loss.item())
        removed = 0 if event is None else len(event.removed)
        journal.append({"step": step, "loss": loss.item(), "best": best, "removed": removed})
        pause("stepped")
        if step % EVERY == 0:
            pause("writing")
            checkpoints.write(step, {"order": order, "best": best})
            pause("written")
    parts = {
        "weights": model.state_dict(), "ema": ema.state_dict(), "optimizer": optimizer.state_dict(), "best": best,
        "scheduler": scheduler.state_dict(), "scaler": scaler.state_dict(), "drop": drop.state_dict(),
        "batches": batches.get_state(), "order": order, "torch": torch.get_rng_state(), "python": random.getstate(),
        "numpy": np.random.get_state(), "metrics": journal.path.read_bytes(), "sizes": repr(model),
    }
    (folder / "final.json").write_text(json.dumps({name: fingerprint(part) for name, part in parts.items()}))


def fingerprint(part: Any) -> str:
    return hashlib.sha256(b"\n".join(_bytes(part))).hexdigest()


def _bytes(part: Any) -> Iterator[bytes]:
    """Every bit of nested data."""
    if isinstance(part, dict):
        for key, value in part.items():
            yield repr(key).encode()
            yield from _bytes(value)
    elif isinstance(part, list | tuple):
        yield str(len(part)).encode()
        for value in part:
            yield from _bytes(value)
    elif isinstance(part, Tensor | np.ndarray):
        array = np.asarray(part.detach() if isinstance(part, Tensor) else part)
        yield f"{array.dtype} {array.shape}".encode() + array.tobytes()
    else:
        yield part if isinstance(part, bytes) else repr(part).encode()


def interrupt_writes(pause: Pause) -> None:
    """Pause at every stage of a write, also where a file is there by half."""
    save_file, fsync, replace, unlink = safetensors.torch.save_file, os.fsync, os.replace, Path.unlink

    def saved(tensors: Any, path: Path, metadata: Any) -> None:
        save_file(tensors, path, metadata)
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
        pause("half written")
        path.write_bytes(whole)

    def flushed(descriptor: int) -> None:
        pause("flushing")
        fsync(descriptor)

    def replaced(source: Path, target: Path) -> None:
        pause("renaming")
        replace(source, target)
        pause("renamed")

    def removed(self: Path, missing_ok: bool = False) -> None:
        pause("removing")
        unlink(self, missing_ok)

    safetensors.torch.save_file, os.fsync, os.replace, Path.unlink = saved, flushed, replaced, removed  # type: ignore


def serve() -> None:
    """Runs on demand: {"folder", "slow": length of a pause, "after": seconds to live, "at": [stage, occurrence]}."""
    with TemporaryDirectory() as folder:  # imports what torch imports when it is needed
        train(Path(folder))
    for line in sys.stdin:
        order = json.loads(line)
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            _child(order, writing)
        os.close(writing)
        seen = _watch(child, order, reading)
        os.close(reading)
        _, status = os.waitpid(child, 0)
        killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        reply = {"killed": killed, "code": 0 if killed else os.waitstatus_to_exitcode(status), "seen": seen}
        sys.stdout.write(json.dumps(reply) + "\n")
        sys.stdout.flush()


def _child(order: dict[str, Any], writing: int) -> None:
    """Train; where the order says so, stay until killed."""
    counts: dict[str, int] = {}

    def pause(stage: str) -> None:
        counts[stage] = counts.get(stage, 0) + 1
        os.write(writing, f"{stage}\n".encode())
        if order["at"] == [stage, counts[stage]]:
            time.sleep(60)
            os._exit(4)
        time.sleep(order["slow"])

    code = 3
    try:
        warnings.filterwarnings("error", message="a checkpoint was passed over")  # a kill must leave good ones only
        interrupt_writes(pause)
        train(Path(order["folder"]), pause)
        code = 0
    except BaseException as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
    finally:
        sys.stderr.flush()
        os._exit(code)


def _watch(child: int, order: dict[str, Any], reading: int) -> list[str]:
    """Kill the child when its time has come; the stages it announced until it ended."""
    text = ""
    deadline = None if order["after"] is None else time.monotonic() + order["after"]
    while True:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        ready, _, _ = select.select([reading], [], [], left)
        if not ready:
            os.kill(child, signal.SIGKILL)
            deadline = None
            continue
        if not (data := os.read(reading, 65536)):
            return text.split("\n")[:-1]
        text += data.decode()
        if order["at"] is not None and text.split("\n").count(order["at"][0]) >= order["at"][1]:
            os.kill(child, signal.SIGKILL)


if __name__ == "__main__":
    torch.set_num_threads(1)
    if len(sys.argv) > 1:
        train(Path(sys.argv[1]))
    else:
        serve()
