"""Whole NodeDrop runs beside whole dense ReLU runs of as many epochs: wall-clock, error, and the share of cutting."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ..errors import InputError
from ..experiments.data import Data, load
from ..experiments.recipes import Recipe, baseline, changed, recipe
from ..experiments.run import Progress, Run
from .harness import Figure, Settings, document, figure

CHUNK = 25  # batches of one side before it is the other's turn
CUTTING = 0.01


@dataclass(frozen=True)
class Case:
    """A recipe with changes, the limit on time, and by how many points the error may exceed the dense network's.

    `dense` is what serves the dense network better than the values of the other side.
    """

    recipe: str
    changes: Mapping[str, Any]
    limit: float
    points: float
    dense: Mapping[str, Any] = field(default_factory=dict)


# Pressed from the start towards widths that are fast; a layer that is there rests.
_MNIST: dict[str, Any] = {
    "network": "mnist-dense320", "activation": "relu", "lam": 3e-3, "spare": 1.0, "multiple": 8, "fade": 0.0,
    "spare_of": "conv[12]=16,conv[34]=24,dense=64", "quiet": 0.1, "least": 50, "epochs": 8,
}  # fmt: skip
CASES = {"MNIST Dense320": Case("mnist", _MNIST, 0.4, 0.2)}
QUICK: dict[str, Any] = {"images": 300, "epochs": 2, "batch": 50, "least": 2, "width": 0.125, "rest": 0.0}


def run(settings: Settings) -> dict[str, Any]:
    """On MNIST, which comes with the package."""
    return races("run", CASES, settings)


def races(name: str, cases: Mapping[str, Case], settings: Settings) -> dict[str, Any]:
    """Both sides advance in turn, a few batches each, so that both see the same machine."""
    figures: list[Figure] = []
    rows: list[dict[str, Any]] = []
    missing: dict[str, str] = {}
    for title, case in cases.items():
        given = {**settings.changes, **(QUICK if settings.quick else {}), "evaluate": 10**9}
        made = changed(recipe(case.recipe), {**case.changes, **given})
        dense = baseline(changed(recipe(case.recipe), {**case.changes, **case.dense, **given}))
        title += f" at width {made.width:g}" if made.width != 1 else ""
        try:
            data = pictures(made, settings)
        except InputError:
            missing[title] = f"the data set {made.data} is not there or cannot be read; --data-dir names its folder"
            continue
        held = []
        for seed in range(made.seed, made.seed + settings.seeds):
            sides = {"nodedrop": replace(made, seed=seed), "dense": replace(dense, seed=seed)}
            held.append(race(sides, data, settings, f"{title}, seed {seed}"))
            rows.append({"case": title, **held[-1]})
        figures += figures_of(title, case, held)
    return document(name, settings, figures, runs=rows, missing=missing)


def pictures(made: Recipe, settings: Settings) -> Data:
    """The recipe's data, of which MNIST comes with the package; for a quick look, few of them."""
    data = load(made.data, None if made.data == "mnist" else settings.data_dir)
    few = slice(300 if settings.quick else None)
    return replace(data, test_images=data.test_images[few], test_labels=data.test_labels[few])


def race(sides: Mapping[str, Recipe], data: Data, settings: Settings, words: str) -> dict[str, Any]:
    """One run of each side."""
    with TemporaryDirectory() as folder:
        runs = {side: Run(made, Path(folder) / side, data) for side, made in sides.items()}
        for item in runs.values():
            item.open()
        paths, seconds = {side: item.steps() for side, item in runs.items()}, dict.fromkeys(runs, 0.0)
        total, done = max(made.epochs * (len(runs[side].batches) + 1) for side, made in sides.items()), 0
        while done < total:
            settings.tell(words, done / total)
            for side, path in paths.items():
                seconds[side] += advanced(path)
            done += CHUNK
        results = {side: timed(item, seconds, side) for side, item in runs.items()}
    keys = ("test_error", "parameters", "units", "cuts", "cutting", "widths", "collapsed")
    return {
        "recipe": results["nodedrop"]["recipe"],
        "dense_recipe": results["dense"]["recipe"],
        **{side: {"seconds": seconds[side], **{key: results[side][key] for key in keys}} for side in runs},
    }


def advanced(path: Iterator[Progress]) -> float:
    """Seconds for the next batches of a run."""
    start = time.perf_counter()
    for _ in islice(path, CHUNK):
        pass
    return time.perf_counter() - start


def timed(item: Run, seconds: dict[str, float], side: str) -> dict[str, Any]:
    """End a run; its last cut counts."""
    start = time.perf_counter()
    result = item.finish()
    seconds[side] += time.perf_counter() - start
    return result


def figures_of(title: str, case: Case, rows: list[dict[str, Any]]) -> list[Figure]:
    """Time, error and cutting; the spread is that over seeds."""
    times = [row["nodedrop"]["seconds"] / row["dense"]["seconds"] for row in rows]
    cutting = [row["nodedrop"]["cutting"] / row["nodedrop"]["seconds"] for row in rows]
    excess = [row["nodedrop"]["test_error"] - row["dense"]["test_error"] for row in rows]
    epochs = rows[0]["recipe"]["epochs"]
    return [
        figure(f"{title}, {epochs} epochs: whole NodeDrop run beside whole dense ReLU run", times, case.limit),
        figure(f"{title}: test error above the dense network's", excess, case.points, "points"),
        figure(f"{title}: share of the NodeDrop run that goes into looking and cutting", cutting, CUTTING),
    ]
