"""Many runs: a grid of recipes, and an engine that runs them side by side.

A run that has ended is not run again, and one that was broken off goes on. Each is one process at a time, whoever
started it: two sweeps over one folder share the work.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, fields
from hashlib import sha256
from pathlib import Path
from typing import Any

from ..errors import InputError
from .engines import Engine, Job, Outcome, Outcomes, Tell
from .engines.local import Processes
from .engines.ray import Cluster
from .lock import held
from .recipes import EXPERIMENTS, Recipe, baseline, changed
from .run import finished

LONGEST = 150  # letters of a name; a file's has at most 255, with endings
__all__ = ["Grid", "Job", "Outcome", "Outcomes", "Processes", "Tell", "engine_of", "lam_of", "name_of", "sweep"]


@dataclass(frozen=True)
class Grid:
    """Networks × changes × λ of one experiment. λ = 0 is the dense network with ReLU, the paper's baseline.

    >>> grid = Grid("mnist", lams=(0.0, 1e-5), networks=("mnist-dense160", "mnist-dense640"))
    >>> [job.name for job in grid.jobs("short", seeds=[0], folder=Path("runs"))]
    ['mnist-dense160-lam0-seed0', 'mnist-dense160-lam1e-05-seed0',
     'mnist-dense640-lam0-seed0', 'mnist-dense640-lam1e-05-seed0']
    """

    experiment: str
    lams: tuple[float, ...]
    networks: tuple[str, ...] = ()  # the recipe's own
    changes: tuple[Mapping[str, Any], ...] = field(default=({},))

    def jobs(
        self, profile: str, seeds: Sequence[int], folder: Path, changes: Mapping[str, Any] | None = None
    ) -> list[Job]:
        """The jobs, seed by seed, with further changes to each recipe."""
        if self.experiment not in EXPERIMENTS:
            raise InputError(f"there is no recipe '{self.experiment}'; there are {', '.join(EXPERIMENTS)}")
        base, more = EXPERIMENTS[self.experiment].profile(profile), changes or {}
        varied = {"lam", "seed"}.union(*self.changes) | ({"network"} if self.networks else set())
        for name in varied.intersection(more):
            raise InputError(f"{name} is what the runs differ in, and cannot be set for all of them")
        made: dict[str, Job] = {}
        for seed in seeds:
            for network in self.networks or (str(more.get("network", base.network)),):
                for own in self.changes:
                    for lam in self.lams:
                        point = {"network": network, "lam": lam, "seed": seed}
                        recipe = changed(base, {**more, **own, **point})
                        recipe = baseline(recipe) if lam == 0 else recipe
                        name = name_of(recipe, self.experiment, profile)
                        made[name] = Job(name, recipe, folder / name, self.experiment, profile)
        return list(made.values())


def name_of(recipe: Recipe, experiment: str, profile: str) -> str:
    """A name that tells a run from all others: network, λ, seed, and whatever else the recipe has changed.

    >>> name_of(changed(EXPERIMENTS["mnist"].short, {"epochs": 3}), "mnist", "short")
    'mnist-dense160-lam1e-05-seed0-epochs-3'
    """
    plain = EXPERIMENTS[experiment].profile(profile)
    plain = baseline(plain) if recipe.lam == 0 else plain
    told = {"lam", "seed"}
    words = [experiment, f"lam{lam_of(recipe.lam)}", f"seed{recipe.seed}"]
    if recipe.network.startswith(f"{experiment}-"):
        words[0], told = recipe.network, told | {"network"}
    if profile != "short":
        words.append(profile)
    for name in (f.name for f in fields(Recipe)):
        value = getattr(recipe, name)
        if name not in told and value != getattr(plain, name):
            words.append(f"{name}-{value:g}" if isinstance(value, float) else f"{name}-{value}")
    name = re.sub(r"[^\w.+-]+", "-", "-".join(words))
    if len(name) <= LONGEST:
        return name
    return f"{name[: LONGEST - 9]}-{sha256(name.encode()).hexdigest()[:8]}"


def lam_of(lam: float) -> str:
    """λ always with its exponent.

    >>> lam_of(1e-4), lam_of(0.00032), lam_of(0)
    ('1e-04', '3.2e-04', '0')
    """
    mantissa, _, exponent = f"{lam:e}".partition("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{exponent}" if lam else "0"


def sweep(jobs: Iterable[Job], engine: Engine, tell: Tell) -> Outcomes:
    """Run jobs and yield their outcomes: first those already done, then the others as they come.

    A job that another process is at comes last, when that has ended.
    """
    waiting: list[Job] = []
    for job in jobs:
        try:
            result = finished(job.recipe, job.folder)
        except InputError as error:
            yield Outcome(job, "failed", message=str(error))
            continue
        if result is None:
            waiting.append(job)
        else:
            yield Outcome(job, "done", result)
    while waiting:
        ready = [job for job in waiting if not held(job.folder)]
        waiting = [job for job in waiting if job not in ready]
        with closing(engine.run(ready, tell)) as outcomes:
            for outcome in outcomes:
                if outcome.status == "busy":
                    waiting.append(outcome.job)
                else:
                    yield outcome
        if waiting:
            time.sleep(1.0)


def engine_of(name: str, workers: int, address: str | None = None) -> Engine:
    """An engine by name."""
    if name == "ray":
        return Cluster(workers, address)
    if name != "local":
        raise InputError(f"there is no engine '{name}'; there are local and ray")
    if address is not None:
        raise InputError("--address names a Ray cluster, and goes with --engine ray")
    return Processes(workers)
