"""Cost of a repeated analysis, beside one training step of VGG16 at batch 64, and per parameter from 1M to 64M."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..experiments.networks import build
from ..intake import Options
from ..session import Session
from .harness import Settings, document, interleaved, ratio, single
from .steps import images, parameters, stepper

SCALES = {"1M": 0.26, "4M": 0.52, "16M": 1.035, "64M": 2.07}
FLAT = 1.2  # no growth, but for the noise of timing
QUICK = {"16k": 0.03, "64k": 0.06}


def run(settings: Settings) -> dict[str, Any]:
    """Everything `analyze` does after tracing: bounds, certificates, plan and account, for train and eval mode."""
    torch.manual_seed(0)
    example = images("vgg16", 2)
    model = build("vgg16", activation="relu", width=0.06 if settings.quick else 1.0)
    step = stepper(model, images("vgg16", 4 if settings.quick else 64))
    settings.tell("beside a training step", 0.0)
    times = interleaved({"analysis": Session(model, example, Options()).analysis, "step": step}, settings.rounds)
    title = "VGG16: analysis after tracing beside a training step at batch 64"
    figures = [ratio(title, times, "analysis", "step", 0.1)]
    scales = QUICK if settings.quick else SCALES
    models = {name: build("vgg16", activation="relu", width=scale) for name, scale in scales.items()}
    settings.tell("as the network grows", 0.5)
    growth = interleaved({n: Session(m, example, Options()).analysis for n, m in models.items()}, settings.rounds)
    rows = [
        {"name": name, "parameters": parameters(models[name]), "seconds": statistics.median(seconds)}
        for name, seconds in growth.items()
    ]
    title = f"VGG16 from {rows[0]['name']} to {rows[-1]['name']} parameters: largest growth of the cost per parameter"
    figures.append(single(title, steepest(rows), FLAT))
    return document("analysis", settings, figures, seconds=times, growth=rows)


def steepest(rows: Sequence[Mapping[str, Any]], seconds: str = "seconds", own: str = "parameters") -> float:
    """The largest ratio of seconds per parameter, or beside other work of the network's own, of any network to any
    smaller one.

    >>> steepest([{"parameters": 1, "seconds": 4}, {"parameters": 2, "seconds": 4}, {"parameters": 4, "seconds": 12}])
    1.5
    """
    costs = [row[seconds] / row[own] for row in rows]
    return float(max(late / early for k, early in enumerate(costs) for late in costs[k + 1 :]))
