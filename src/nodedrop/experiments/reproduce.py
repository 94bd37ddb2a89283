"""The paper's figures, tables and arguments, each as a grid of runs; their records.

Runs that several of them need are the same runs: records lie by experiment, `results/mnist/….json`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..training.atomic import reason, replacing
from .recipes import complete, to_json
from .sweep import Grid, Job

SIZES = tuple(f"mnist-dense{size}" for size in (160, 240, 320, 480, 640))
# The paper's figures have ten values of λ from 1e-8 to 1e-3; here, fewer where little happens, and one beyond, for a
# short run needs a stronger push. 0 is the baseline.
LAMS = (0.0, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 3.2e-4, 1e-3, 2e-3)
# Its tables have these, up to 1e-4, where those without batch norm collapse; a short run takes more to get there: VGG16
# has a twentieth of its parameters left at 1e-3, and loses layers at 1e-2.
VGG = (0.0, 1e-6, 1e-5, 3.2e-5, 1e-4, 1e-3)
VGG_BN = (*VGG, 3.2e-4)  # where most of it happens in a short run
DENSENET = (0.0, 1e-6, 1e-5, 1e-4, 1e-3)
_L1 = ("paper", "one-sided", "distance", "unbounded", "shifted")


@dataclass(frozen=True)
class Reproduction:
    """What it shows, and the runs that show it."""

    title: str
    grids: tuple[Grid, ...]


_MNIST = Grid("mnist", LAMS, SIZES)

REPRODUCTIONS: dict[str, Reproduction] = {
    "mnist-lambda": Reproduction("MNIST: error and size over λ (figure 2, centre and right)", (_MNIST,)),
    "mnist-sizes": Reproduction("MNIST: final over initial size (figure 2, left)", (_MNIST,)),
    "mnist-long": Reproduction(
        "MNIST: how small Dense640 becomes at the dense network's error (the paper's best: 93.3 % removed), and "
        "whether smaller starts end there too; the same with most units spared, beyond the paper",
        (
            Grid("mnist-long", (5e-4, 1e-3, 0.0)),
            Grid("mnist-long", (1e-3,), SIZES[:-1]),
            Grid("mnist-long", (5e-4, 7e-4, 1e-3), changes=({"spare": 0.8},)),
            Grid("mnist-long", (1e-3,), SIZES[:-1], changes=({"spare": 0.8},)),
        ),
    ),
    "exactness": Reproduction(
        "MNIST: what a single cut of all dead units, at the end, changes on the test set (the paper's title)",
        (Grid("mnist", (1e-3,), (SIZES[0], SIZES[2]), changes=({"least": 10**6},)),),
    ),
    "cifar10-lambda": Reproduction(
        "CIFAR-10: VGG16 with and without batch norm over λ (figure 3)",
        (
            Grid("cifar10-vgg16", (*VGG, 1e-2)),
            Grid("cifar10-vgg16-bn", VGG_BN),
            Grid("cifar10-vgg16", (0.0,), changes=({"activation": "soft"},)),  # what the activation alone does
        ),
    ),
    "cifar10-table": Reproduction(
        "CIFAR-10: VGG16 and DenseNet-40 with and without batch norm (table 2)",
        (
            Grid("cifar10-vgg16", VGG),
            Grid("cifar10-vgg16-bn", VGG_BN),
            Grid("cifar10-densenet40", DENSENET),
            Grid("cifar10-densenet40-bn", DENSENET),
        ),
    ),
    "cifar100-table": Reproduction(
        "CIFAR-100: VGG16 and DenseNet-40 with batch norm (table 3)",
        (Grid("cifar100-vgg16-bn", DENSENET), Grid("cifar100-densenet40-bn", DENSENET)),
    ),
    "text": Reproduction(
        "A transformer on a text, over λ, with all units under pressure and with most spared (beyond the paper)",
        (
            Grid("text", (0.0, 7e-5, 5e-5)),
            Grid("text", (1.5e-4, 7e-5, 5e-5), changes=({"spare": 0.7},)),
            Grid("text", (7e-5,), changes=({"spare": 0.8},)),
        ),
    ),
    "convergence": Reproduction(
        "CIFAR-10: error and size over the epochs of a long run, VGG16 without batch norm (figure 4)",
        (Grid("cifar10-vgg16-long", (1e-5,)),),
    ),
    "activations": Reproduction(
        "MNIST: does ClampedReLU get stuck at its two flat regions, and SoftClampedReLU not (section 3.2)?",
        (
            Grid("mnist", (0.0,), changes=({}, {"activation": "soft"}, {"activation": "clamped"})),
            Grid("mnist", (1e-5, 1e-4), changes=({}, {"activation": "clamped"}, {"activation": "relu"})),
        ),
    ),
    "penalties": Reproduction(
        "MNIST: the paper's penalty, those it rejects, and that of its published code (section 3.3)",
        (
            Grid("mnist", (1e-5, 1e-4), changes=tuple({"form": form} for form in _L1)),
            # L2 weighs what is small less than L1 does, so a larger λ is fair to it.
            Grid("mnist", (1e-5, 1e-4, 1e-3), changes=({"form": "l2"}, {"form": "l2-shifted"})),
            Grid("mnist", (0.0,)),
        ),
    ),
}


def jobs_of(
    name: str, profile: str, seeds: Iterable[int], folder: Path, changes: Mapping[str, Any] | None = None
) -> list[Job]:
    """The runs of a reproduction, the first seed's first.

    >>> jobs = jobs_of("cifar10-table", "short", [0], Path("runs"))
    >>> len(jobs), jobs[1].name
    (23, 'cifar10-vgg16-lam1e-06-seed0')
    """
    if name not in REPRODUCTIONS:
        raise InputError(f"there is no reproduction '{name}'; there are {', '.join(REPRODUCTIONS)}")
    grids = REPRODUCTIONS[name].grids
    found = [job for seed in seeds for grid in grids for job in grid.jobs(profile, [seed], folder, changes)]
    return list({job.name: job for job in found}.values())


def chosen(jobs: Sequence[Job], lams: Sequence[float], networks: Sequence[str]) -> list[Job]:
    """The runs with some λ, of some networks; all, where none are named."""
    for word, wanted, there in (
        ("λ", lams, {job.recipe.lam for job in jobs}),
        ("the network", networks, {job.recipe.network for job in jobs}),
    ):
        if strange := [str(value) for value in wanted if value not in there]:
            known = ", ".join(map(str, sorted(there)))
            raise InputError(f"no run of it has {word} {strange[0]}; there are {known}")
    return [j for j in jobs if (not lams or j.recipe.lam in lams) and (not networks or j.recipe.network in networks)]


def record(job: Job, result: Mapping[str, Any], folder: Path) -> Path:
    """Write the record of a run that has ended."""
    path = _path(job, folder)
    origin = {"name": job.name, "experiment": job.experiment, "profile": job.profile, "command": job.command}
    text = json.dumps({**origin, **result}) + "\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and path.read_text(encoding="utf-8") == text:
            return path
    except OSError as error:
        raise InputError(f"'{path}' cannot be written: {reason(error)}; take another folder") from None
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return path


def recorded(job: Job, folder: Path) -> bool:
    """Whether there is a record of this very recipe."""
    path = _path(job, folder)
    try:
        return complete(json.loads(path.read_text(encoding="utf-8"))["recipe"]) == to_json(job.recipe)
    except FileNotFoundError:
        return False
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise InputError(f"'{path}' is no record of a run ({reason(error)}); take another folder") from None


def _path(job: Job, folder: Path) -> Path:
    return folder / job.experiment / f"{job.name}.json"
