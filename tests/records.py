"""Records of real, tiny runs."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from nodedrop.experiments.data import load
from nodedrop.experiments.recipes import recipe
from nodedrop.experiments.run import train

RUNS = (
    {"lam": 0.0, "activation": "relu", "seed": 0},
    {"lam": 1e-3, "seed": 0},
    {"lam": 1e-3, "seed": 1},
    {"lam": 1e-2, "seed": 0},
    {"lam": 1e-3, "seed": 0, "activation": "clamped"},
    {"lam": 1e-3, "seed": 0, "form": "l2"},
    {"lam": 1e-3, "seed": 0, "network": "mnist-dense240"},
)


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder `runs` with their folders, and one `results` with their records; made once for all workers."""
    base = tmp_path_factory.getbasetemp()
    top = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "reporting"
    with FileLock(f"{top}.lock"):
        if not top.exists():
            with_runs(top.with_suffix(".new"))
            top.with_suffix(".new").rename(top)
    return top


def with_runs(top: Path) -> None:
    """Train them into a folder."""
    full = load("mnist")
    data = replace(full, test_images=full.test_images[:500], test_labels=full.test_labels[:500])
    small = {"images": 300, "epochs": 2, "batch": 100, "evaluate": 1}
    for number, changes in enumerate(RUNS):
        made = recipe("mnist", "short", {**small, **changes})
        result = train(made, top / "runs" / f"run{number}", data)
        extra: dict[str, Any] = {"experiment": "mnist", "profile": "short", "command": "nodedrop sweep mnist"}
        path = top / "results" / "mnist" / f"run{number}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result | extra | {"name": f"run{number}"}), encoding="utf-8")


@pytest.fixture
def results(made: Path, tmp_path: Path) -> Path:
    """A copy of the records that a test may spoil."""
    return Path(shutil.copytree(made / "results", tmp_path / "results"))
