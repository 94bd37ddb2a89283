"""Records of runs, read from a folder: finished ones, and run folders that have not come to their end."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from ..errors import InputError, NodeDropError
from ..experiments.recipes import EXPERIMENTS, Recipe, changed

_DAMAGE = (NodeDropError, OSError, ValueError, KeyError, TypeError, AttributeError, IndexError)
BENCHMARKS = "bench"  # their records are of another kind
# What may differ between the runs of one experiment without being a change of its recipe.
VARIED = ("network", "lam", "seed", "activation", "form", "evaluate")


@dataclass(frozen=True)
class Epoch:
    """A look at the test set at the end of an epoch, not necessarily of every one; epoch 0 is before the first."""

    epoch: int
    test_error: float
    units: int
    parameters: int
    widths: tuple[int, ...]
    train_loss: float | None
    train_error: float | None
    test_loss: float | None = None


@dataclass(frozen=True)
class Record:
    """One run: what it was told, where it ran, what came out. An unfinished run has its last epoch's figures."""

    name: str
    experiment: str
    profile: str
    command: str
    recipe: Recipe
    machine: Mapping[str, Any]
    test_error: float
    test_error_before_cut: float
    predictions_changed: int
    logit_change: float
    eval_change: float
    parameters: int
    parameters_dense: int
    units: int
    units_dense: int
    widths: Mapping[str, int]
    collapsed: tuple[str, ...]
    seconds: float
    cutting: float
    epochs: tuple[Epoch, ...]
    test_loss: float | None = None
    cut_change: float | None = None
    stuck_at_start: int | None = None
    stuck: int | None = None
    finished: bool = True

    @property
    def dense(self) -> bool:
        """Whether this is the plain network, without penalty."""
        return self.recipe.lam == 0

    @property
    def activation(self) -> str:
        """By name, the network's own resolved."""
        return self.recipe.activation or ("relu" if self.recipe.batch_norm else "soft")

    @property
    def cut_last(self) -> int:
        """Units that the last cut removed, which is made after the last epoch and measured on the whole test set."""
        return self.epochs[-1].units - self.units

    @property
    def removed(self) -> float:
        """Per cent of the parameters."""
        return 100 * (1 - self.parameters / self.parameters_dense)

    @property
    def factor(self) -> float:
        """How many times smaller the network became."""
        return self.parameters_dense / max(self.parameters, 1)

    @property
    def units_removed(self) -> float:
        """Per cent of the units."""
        return 100 * (1 - self.units / self.units_dense)

    @property
    def layers(self) -> tuple[str, ...]:
        """Names in forward order, as in each epoch's widths."""
        return tuple(self.widths) or tuple(str(number + 1) for number in range(len(self.epochs[-1].widths)))

    @property
    def overrides(self) -> dict[str, tuple[Any, Any]]:
        """What the recipe has otherwise than its experiment's profile: (the profile's value, the recipe's)."""
        experiment = self.experiment if self.experiment in EXPERIMENTS else _origin(self.recipe)[0]
        if not experiment or not self.profile:
            return {}
        base = asdict(EXPERIMENTS[experiment].profile(self.profile))
        own = asdict(self.recipe)
        return {key: (base[key], own[key]) for key in own if key not in VARIED and own[key] != base[key]}


def read(folder: Path) -> tuple[list[Record], list[str]]:
    """All records below a folder, in the order of their paths, and a sentence for each file that is none."""
    if not folder.is_dir():
        raise InputError(f"there is no folder '{folder}'; `nodedrop reproduce` and `nodedrop sweep` write records")
    records, problems = [], []
    for path in _candidates(folder):
        try:
            records.append(_record(path))
        except _DAMAGE as error:
            problems.append(f"'{path}' is left out: {_why(error)}")
    return records, problems


def read_run(folder: Path) -> Record:
    """The record of one run folder, ended or not."""
    path = next(iter(_candidates(folder)), None) if (folder / "config.json").exists() else None
    if path is None:
        raise InputError(f"'{folder}' is no run folder: it has no config.json, or nothing beside it")
    try:
        return _record(path)
    except _DAMAGE as error:
        raise InputError(f"'{path}' is left out: {_why(error)}") from None


def _candidates(folder: Path) -> Iterator[Path]:
    """Files of records; of a run folder its result, or while there is none its metrics."""
    for path in sorted(folder.rglob("*.json*")):
        parts = path.relative_to(folder).parts[:-1]
        if BENCHMARKS in parts or any(part.startswith(("checkpoint", ".")) for part in parts):
            continue
        wanted = path.suffix == ".json"
        if (path.parent / "config.json").exists():  # a run folder
            ended = (path.parent / "result.json").exists()
            wanted = path.name == ("result.json" if ended else "metrics.jsonl")
        if wanted:
            yield path


def _record(path: Path) -> Record:
    if path.suffix == ".jsonl":
        return _unfinished(path)
    found = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(found, dict) or "recipe" not in found:
        raise InputError("it is not the record of a run")
    recipe = _recipe(found["recipe"])
    experiment, profile = found.get("experiment") or "", found.get("profile") or ""
    if not experiment or not profile:
        near = _origin(recipe)
        experiment, profile = experiment or near[0], profile or near[1]
    name = found.get("name") or (path.parent.name if path.name == "result.json" else path.stem)
    plain = {
        "machine": dict, "test_error": float, "test_error_before_cut": float, "predictions_changed": int,
        "logit_change": float, "eval_change": float, "parameters": int, "parameters_dense": int, "units": int,
        "units_dense": int, "widths": dict, "collapsed": tuple, "seconds": float, "cutting": float,
    }  # fmt: skip
    values: dict[str, Any] = {key: kind(found[key]) for key, kind in plain.items()}
    epochs = tuple(_epoch(row) for row in found["epochs"])
    if not epochs or values["parameters_dense"] < 1 or values["units_dense"] < 1:
        raise InputError("it has no epochs, or a network without parameters")
    return Record(
        name=str(name), experiment=str(experiment), profile=str(profile), command=str(found.get("command") or ""),
        recipe=recipe, epochs=epochs, test_loss=found.get("test_loss"), stuck_at_start=found.get("stuck_at_start"),
        stuck=found.get("stuck"), cut_change=found.get("cut_change"), **values,
    )  # fmt: skip


def _unfinished(path: Path) -> Record:
    recipe = _recipe(json.loads((path.parent / "config.json").read_text(encoding="utf-8")))
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
        if line.endswith("\n"):  # a killed process may leave half a line
            rows.append(json.loads(line))
    if not rows:
        raise InputError("the run has not begun")
    epochs = tuple(_epoch(row) for row in rows)
    experiment, profile = _origin(recipe)
    first, last = epochs[0], epochs[-1]
    return Record(
        name=path.parent.name, experiment=experiment, profile=profile, command="", recipe=recipe, machine={},
        test_error=last.test_error, test_error_before_cut=last.test_error, predictions_changed=0, logit_change=0.0,
        eval_change=0.0, parameters=last.parameters, parameters_dense=first.parameters, units=last.units,
        units_dense=first.units, widths={}, collapsed=(), seconds=float(rows[-1]["seconds"]),
        cutting=float(rows[-1]["cutting"]), epochs=epochs, finished=False,
    )  # fmt: skip


def _recipe(found: Mapping[str, Any]) -> Recipe:
    """Values that a recipe no longer has, or not yet, stand for its defaults."""
    known = {field.name for field in fields(Recipe)}
    return changed(Recipe(), {key: value for key, value in found.items() if key in known})


def _epoch(row: Mapping[str, Any]) -> Epoch:
    return Epoch(
        int(row["epoch"]), float(row["test_error"]), int(row["units"]), int(row["parameters"]), tuple(row["widths"]),
        row.get("train_loss"), row.get("train_error"), row.get("test_loss"),
    )  # fmt: skip


def _origin(recipe: Recipe) -> tuple[str, str]:
    """The experiment and profile that a recipe is nearest to; none if there is no experiment of its kind."""
    own = asdict(recipe)
    best: tuple[int, str, str] | None = None
    for name, experiment in EXPERIMENTS.items():
        for profile in ("short", "paper"):
            base = asdict(experiment.profile(profile))
            kin = base["network"].split("-")[0] == own["network"].split("-")[0]
            if not kin or (base["data"], base["batch_norm"]) != (own["data"], own["batch_norm"]):
                continue
            distance = sum(own[key] != base[key] for key in own if key not in VARIED)
            if best is None or distance < best[0]:
                best = (distance, name, profile)
    return ("", "") if best is None else best[1:]


def _why(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"it is no JSON ({error.msg} at line {error.lineno})"
    if isinstance(error, UnicodeDecodeError):
        return "it is no text"
    if isinstance(error, KeyError):
        return f"it has no value {error}"
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return str(error) if isinstance(error, NodeDropError) else "a value in it is not of the kind a record has"
