"""The demonstration: the paper's method, with most units spared, on MNIST, from an oversized network, in minutes."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..verify.run import verify_run
from .data import load
from .making import example, network
from .recipes import recipe
from .run import Run

# The short profile of the paper's largest network, with one epoch more. λ is large, so that units go at once, presses
# the smallest fifth of each layer alone, and fades at the end, so that those that stay can settle.
_CHANGES = {"network": "mnist-dense640", "lam": 3e-3, "spare": 0.8, "quiet": 0.1, "epochs": 3, "evaluate": 3}
RECIPE = recipe("mnist", "short", _CHANGES)
QUICK = replace(RECIPE, network="mnist-dense160", images=2000, epochs=6, quiet=1.0, lam=1e-2, spare=0.5, evaluate=6)
REFERENCE = Path(__file__).with_name("dense640.json")


@dataclass(frozen=True)
class Moment:
    """Where the run is, as a share of all its steps, and what the network is like."""

    share: float
    error: float
    widths: Mapping[str, int]
    start: Mapping[str, int]
    parameters: int
    dense: int


class Demonstration:
    """A run that tells its moments, then measures what has become of the network."""

    def __init__(self, folder: Path, *, seed: int = 0, quick: bool = False) -> None:
        self.recipe = replace(QUICK if quick else RECIPE, seed=seed)
        data = load("mnist")
        if quick:
            data = replace(data, test_images=data.test_images[:1000], test_labels=data.test_labels[:1000])
        self._run = Run(self.recipe, folder, data)
        self._run.open()
        self._start = dict(self._run.drop.widths)
        self._curve: list[dict[str, Any]] = []
        self._began = time.monotonic()

    def moments(self) -> Iterator[Moment]:
        """Train; one moment per step."""
        run, total = self._run, self.recipe.epochs * len(self._run.batches)
        done, wrong, seen, recent = 0, 0, 0, list[float]()
        widths, parameters = self._start, run.parameters
        for _ in run.steps():
            if not run.tally.batch:  # the end of an epoch
                wrong = seen = 0
            else:
                done += 1
                recent = [*recent[-49:], 100 * (run.tally.wrong - wrong) / max(run.tally.seen - seen, 1)]
                wrong, seen = run.tally.wrong, run.tally.seen
            if run.parameters != parameters:
                widths, parameters = dict(run.drop.widths), run.parameters
            error = statistics.fmean(recent or [100.0])
            moment = Moment(done / total, error, widths, self._start, parameters, run.dense)
            if done % 10 == 0:
                self._curve.append({"step": done, "error": moment.error, "parameters": parameters,
                                    "widths": list(widths.values())})  # fmt: skip
            yield moment

    def finish(self) -> dict[str, Any]:
        """The run's result, with the times of the dense and of the small network, and the curve of the run."""
        wall = time.monotonic() - self._began
        result = self._run.finish()
        dense = network(self.recipe, self._run.data)
        dense.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        times = {
            "step": _times(dense, self._run.model, self.recipe.batch, training=True),
            "inference": _times(dense, self._run.model, 256, training=False),
        }
        reference = json.loads(REFERENCE.read_text(encoding="utf-8")) if REFERENCE.exists() else None
        if reference is not None and reference["recipe"]["network"] != self.recipe.network:
            reference = None
        told = {"wall": wall, "times": times, "curve": self._curve, "dense": reference}
        return {**result, **told, **self._checked(dense)}

    def _checked(self, dense: nn.Module) -> dict[str, Any]:
        """What the independent checker says of every cut; kept with the run, too."""
        run = self._run
        start = time.monotonic()
        verdict = verify_run(dense, run.model, example(self.recipe, run.data, 4), run.folder / "ledger.jsonl")
        found = {"verdict": verdict.to_json(), "checking": time.monotonic() - start}
        (run.folder / "verdict.json").write_text(json.dumps(found["verdict"]) + "\n", encoding="utf-8")
        return found


def _times(dense: nn.Module, small: nn.Module, batch: int, *, training: bool) -> dict[str, float]:
    """Seconds per batch of both networks, measured in turn."""
    images = torch.rand(batch, 1, 28, 28).contiguous(memory_format=torch.channels_last)
    labels = torch.randint(0, 10, (batch,))

    def step(model: nn.Module) -> None:
        model.train(training)
        if training:
            nn.functional.cross_entropy(model(images), labels).backward()
            model.zero_grad()
        else:
            with torch.no_grad():
                model(images)

    times: dict[str, list[float]] = {"dense": [], "small": []}
    for number in range(6):
        for name, model in (("dense", dense), ("small", small)):
            start = time.perf_counter()
            step(model)
            if number:
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(seconds) for name, seconds in times.items()}
