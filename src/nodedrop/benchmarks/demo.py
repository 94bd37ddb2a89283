"""The demonstration: how small the network becomes, at what error, and how long it takes."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ..experiments.demo import Demonstration
from .harness import Settings, document, figure

SMALL, WRONG, LONG = 0.1, 1.2, 300.0
TOLD = ("test_error", "parameters", "parameters_dense", "units", "units_dense", "cuts", "cut_change", "cutting", "wall")


def run(settings: Settings) -> dict[str, Any]:
    """As `nodedrop demo` shows it, without the page."""
    outcomes = [watched(seed, settings) for seed in range(settings.seeds)]
    small = [outcome["parameters"] / outcome["parameters_dense"] for outcome in outcomes]
    figures = [
        figure("the demonstration: parameters beside those at the start", small, SMALL),
        figure("the demonstration: test error", [outcome["test_error"] for outcome in outcomes], WRONG, "%"),
        figure("the demonstration: training and cuts", [outcome["wall"] for outcome in outcomes], LONG, "s"),
    ]
    runs = [{"seed": seed, **{key: outcome[key] for key in TOLD}} for seed, outcome in enumerate(outcomes)]
    return document("demo", settings, figures, runs=runs)


def watched(seed: int, settings: Settings) -> dict[str, Any]:
    """One demonstration."""
    with TemporaryDirectory() as folder:
        shown = Demonstration(Path(folder) / "run", seed=seed, quick=settings.quick)
        for moment in shown.moments():
            settings.tell(f"seed {seed}", moment.share)
        return shown.finish()
