"""Cost of a repeated analysis, beside one training step of VGG16 at batch 64, and per parameter from 1M to 64M."""

from __future__ import annotations

import statistics
from typing import Any

import torch

from ..experiments.networks import build
from ..session import Options, Session
from .cost import stepper
from .harness import document, interleaved, ratio

SCALES = {"1M": 0.26, "4M": 0.52, "16M": 1.035, "64M": 2.07}


def run(rounds: int = 9) -> dict[str, Any]:
    """Everything `analyze` does after tracing: bounds, certificates, plan and account, for train and eval mode."""
    torch.manual_seed(0)
    example, model = torch.rand(2, 3, 32, 32), build("vgg16", activation="relu")
    sides = {"analysis": Session(model, example, Options()).analysis, "step": stepper(model, 64)}
    times = interleaved(sides, rounds)
    title = "VGG16: analysis after tracing beside a training step at batch 64"
    figures = [ratio(title, times, "analysis", "step", 0.1)]
    models = {name: build("vgg16", activation="relu", width=scale) for name, scale in SCALES.items()}
    growth = interleaved({n: Session(m, example, Options()).analysis for n, m in models.items()}, rounds)
    counts = {name: sum(p.numel() for p in model.parameters()) for name, model in models.items()}
    rows = [
        {"name": name, "parameters": counts[name], "seconds": statistics.median(seconds)}
        for name, seconds in growth.items()
    ]
    return document("analysis", figures, seconds=times, growth=rows)
