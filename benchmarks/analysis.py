"""Cost of a repeated analysis, beside one training step of VGG16 at batch 64, and per parameter from 1M to 64M.

    python benchmarks/analysis.py                # writes results/bench/analysis.json

Both sides run in one process, interleaved; the figure is the ratio of medians.
"""

from __future__ import annotations

import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from nodedrop.session import Options, Session

RECORD = Path(__file__).parents[1] / "results" / "bench" / "analysis.json"
WIDTHS = [64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0]
SCALES = {"1M": 0.26, "4M": 0.52, "16M": 1.035, "64M": 2.07}
REPEATS = 7


def vgg16(scale: float = 1.0) -> nn.Sequential:
    layers: list[nn.Module] = []
    inputs = 3
    for width in WIDTHS:
        if width == 0:
            layers.append(nn.MaxPool2d(2))
            continue
        layers += [nn.Conv2d(inputs, round(width * scale), 3, padding=1), nn.ReLU()]
        inputs = round(width * scale)
    hidden = round(512 * scale)
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, 10))


def analyser(model: nn.Module) -> Callable[[], object]:
    """Everything `analyze` does after tracing: bounds, certificates, plan and account, for train and eval mode."""
    return Session(model, torch.rand(2, 3, 32, 32), Options()).analysis


def trainer(model: nn.Module) -> Callable[[], object]:
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    images, targets = torch.rand(64, 3, 32, 32), torch.randint(0, 10, (64,))

    def run() -> object:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), targets).backward()
        optimizer.step()
        return None

    return run


def interleaved(*sides: Callable[[], object]) -> list[list[float]]:
    times: list[list[float]] = [[] for _ in sides]
    for repeat in range(REPEATS + 1):
        for side, run in zip(times, sides, strict=True):
            start = time.perf_counter()
            run()
            if repeat:  # the first round warms up
                side.append(time.perf_counter() - start)
    return times


def main() -> None:
    torch.manual_seed(0)
    model = vgg16()
    analysis, step = interleaved(analyser(model), trainer(model))
    ratio = statistics.median(analysis) / statistics.median(step)
    print(f"VGG16, batch 64: analysis {statistics.median(analysis):.3f} s, step {statistics.median(step):.3f} s")
    print(f"ratio {ratio:.3f} (at most 0.1)")
    models = {name: vgg16(scale) for name, scale in SCALES.items()}
    times = interleaved(*(analyser(m) for m in models.values()))
    growth = []
    for (name, m), side in zip(models.items(), times, strict=True):
        count = sum(p.numel() for p in m.parameters())
        median = statistics.median(side)
        growth.append({"name": name, "parameters": count, "seconds": median, "spread": [min(side), max(side)]})
        print(f"{name:>4} {count:>12,} parameters  {median:.4f} s  {median / count * 1e9:.2f} ns per parameter")
    record = {
        "machine": {"processor": platform.machine(), "threads": torch.get_num_threads()},
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "command": "python benchmarks/analysis.py",
        "vgg16": {"analysis": analysis, "step": step, "ratio": ratio},
        "growth": growth,
    }
    RECORD.parent.mkdir(parents=True, exist_ok=True)
    RECORD.write_text(json.dumps(record, indent=2) + "\n")
    print(f"written to {RECORD.relative_to(RECORD.parents[2])}")


if __name__ == "__main__":
    main()
