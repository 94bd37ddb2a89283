"""What checking a run of VGG16 costs: `python -m tests.verify.vgg` writes results/bench/verify.json.

The run is VGG16 for 32×32 images with SoftClampedReLU, 15 million parameters. Between cuts all weights are moved as
training would, and units are made to die at random in all layers. The check runs in a process of its own.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from nodedrop import NodeDrop, load, save
from nodedrop.experiments.machine import machine
from nodedrop.experiments.networks import build

CUTS, SHARE = 24, 0.04
RECORD = Path(__file__).parents[2] / "results" / "bench" / "verify.json"


def run(folder: Path) -> dict[str, Any]:
    """A run of many cuts in a folder."""
    torch.manual_seed(0)
    model = build("vgg16", activation="soft")
    dense = sum(p.numel() for p in model.parameters())
    drop = NodeDrop(model, None, torch.rand(2, 3, 32, 32), ledger=folder / "ledger.jsonl", on_collapse="keep")
    seconds = []
    for _ in range(CUTS):
        with torch.no_grad():
            for name, tensor in model.named_parameters():
                tensor.add_(torch.randn_like(tensor), alpha=1e-3)
                if name.endswith("bias") and "head" not in name:
                    dying = torch.rand(len(tensor)) < SHARE
                    weight = model.get_parameter(name.replace("bias", "weight"))
                    tops = weight.clamp(min=0).flatten(1).sum(1) + 0.1
                    tensor[dying] = -tops[dying]
        drop.step += 100
        start = time.perf_counter()
        drop.drop()
        seconds.append(time.perf_counter() - start)
    save(model, folder / "model.safetensors")
    kept = sum(path.stat().st_size for path in (folder / "cuts").iterdir())
    return {
        "parameters": dense, "parameters_left": sum(p.numel() for p in model.parameters()),
        "cuts": len(drop.events), "units": sum(len(event.removed) for event in drop.events),
        "witness_bytes": kept, "ledger_bytes": (folder / "ledger.jsonl").stat().st_size, "model_bytes_dense": 4 * dense,
        "seconds_per_cut": round(sum(seconds) / len(seconds), 3),
    }  # fmt: skip


def check(folder: Path) -> dict[str, Any]:
    """The verdict on such a run, with what it took."""
    from nodedrop.verify.run import verify_run

    first, last = build("vgg16", activation="soft"), build("vgg16", activation="soft")
    load(last, folder / "model.safetensors")
    start = time.perf_counter()
    verdict = verify_run(first, last, torch.zeros(2, 3, 32, 32), folder / "ledger.jsonl")
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"verdict": verdict.status, "reason": verdict.reason, "seconds": round(seconds, 2), "peak_bytes": peak}


def measure() -> dict[str, Any]:
    """Run, and check in another process."""
    with TemporaryDirectory() as name:
        made = run(Path(name))
        command = [sys.executable, "-m", "tests.verify.vgg", name]
        said = subprocess.run(command, check=True, capture_output=True, text=True, cwd=Path(__file__).parents[2])
        return {"command": "python -m tests.verify.vgg", "machine": machine(), **made, **json.loads(said.stdout)}


if __name__ == "__main__":
    torch.set_num_threads(1)
    if len(sys.argv) > 1:
        sys.stdout.write(json.dumps(check(Path(sys.argv[1]))))
    else:
        record = measure()
        RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        sys.stdout.write(json.dumps(record, indent=1) + "\n")
