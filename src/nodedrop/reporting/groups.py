"""Records put together: runs that differ in their seed only, networks over λ, settings, topics."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from math import exp, inf
from statistics import mean, stdev
from typing import Any

from ..experiments.recipes import EXPERIMENTS, Recipe
from .records import VARIED, Record

LONG = "cifar10-vgg16-long"  # the experiment of the convergence figure
ONCE = 10**5  # steps: who looks for dead units no more often cuts at the end alone
# Values that a dense run does not use.
PENALTY = ("C", "norm_form", "m", "spare", "spare_of", "multiple", "toll", "evidence", "quiet", "rest", "fade", "least")


@dataclass(frozen=True)
class Spread:
    """One number from each seed.

    >>> Spread((1.0, 2.0, 3.0)).std
    1.0
    """

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        return mean(self.values)

    @property
    def std(self) -> float | None:
        """Of the sample; a single run has none."""
        return stdev(self.values) if len(self.values) > 1 else None


@dataclass(frozen=True)
class Point:
    """Runs of one recipe that differ in their seed only."""

    records: tuple[Record, ...]

    @property
    def recipe(self) -> Recipe:
        return self.records[0].recipe

    @property
    def lam(self) -> float:
        return self.recipe.lam

    @property
    def n(self) -> int:
        return len(self.records)

    @property
    def error(self) -> Spread:
        return self.over(lambda record: record.test_error)

    @property
    def perplexity(self) -> Spread:
        return self.over(lambda record: exp(record.test_loss or 0.0))

    @property
    def lowest(self) -> Spread:
        """The perplexity of a run's best epoch, as if it had been stopped there."""
        return self.over(lambda record: exp(min(epoch.test_loss or inf for epoch in record.epochs)))

    @property
    def parameters(self) -> Spread:
        return self.over(lambda record: record.parameters)

    @property
    def removed(self) -> Spread:
        return self.over(lambda record: record.removed)

    @property
    def factor(self) -> Spread:
        return self.over(lambda record: record.factor)

    @property
    def units(self) -> Spread:
        return self.over(lambda record: record.units)

    @property
    def units_removed(self) -> Spread:
        return self.over(lambda record: record.units_removed)

    @property
    def collapsed(self) -> bool:
        """Whether every run has lost a whole layer."""
        return all(record.collapsed for record in self.records)

    def over(self, of: Callable[[Record], float]) -> Spread:
        return Spread(tuple(of(record) for record in self.records))


@dataclass(frozen=True)
class Series:
    """One network over λ, rising, and its baseline."""

    network: str
    batch_norm: bool
    width: float
    parameters: int
    baseline: Point | None
    points: tuple[Point, ...]

    @property
    def title(self) -> str:
        return name_of(self.network, batch_norm=self.batch_norm)

    @property
    def records(self) -> list[Record]:
        points = (*((self.baseline,) if self.baseline else ()), *self.points)
        return [record for point in points for record in point.records]

    def best(self, tolerance: float) -> Point | None:
        """The smallest network with a mean error within `tolerance` points of the baseline's."""
        if self.baseline is None:
            return None
        limit = self.baseline.error.mean + tolerance + 1e-9
        allowed = [p for p in self.points if p.error.mean <= limit and not p.collapsed]
        return min(allowed, key=lambda p: p.parameters.mean, default=None)


@dataclass(frozen=True)
class Setting:
    """The runs of one experiment with the same recipe but for network, λ and seed."""

    experiment: str
    profile: str
    overrides: tuple[tuple[str, Any, Any], ...]
    records: tuple[Record, ...]

    @property
    def series(self) -> list[Series]:
        return series(self.records)

    @property
    def title(self) -> str:
        """What a heading says of it."""
        words = [f"`{self.experiment}`, profile `{self.profile}`"] if self.profile else []
        words += [f"{name} {_plain(now)} for {_plain(then)}" for name, then, now in self.overrides]
        return ", ".join(words) or self.experiment


TITLES = {
    "vgg16": "VGG16",
    "densenet40": "DenseNet-40",
    "densenet40-active": "DenseNet-40 (active transitions)",
    "text-transformer": "Transformer",
}
NORMED = ("vgg16", "densenet40", "densenet40-active")


def name_of(network: str, *, batch_norm: bool) -> str:
    """A network's name as the paper writes it.

    >>> name_of("mnist-dense160", batch_norm=False), name_of("vgg16", batch_norm=False)
    ('Dense160', 'VGG16 without BN')
    """
    name = TITLES.get(network) or network.removeprefix("mnist-").capitalize()
    if network in NORMED or batch_norm:
        name += " with BN" if batch_norm else " without BN"
    return name


def lam_of(lam: float | None) -> str:
    """A λ in words.

    >>> lam_of(3.2e-5), lam_of(1e-4), lam_of(0)
    ('3.2e-5', '1e-4', 'baseline')
    """
    return re.sub(r"\.?0*e-0?", "e-", f"{lam:.3e}") if lam else "baseline"


def points(records: Iterable[Record]) -> list[Point]:
    """Finished runs by recipe; of two runs with the same seed the first counts."""
    found: dict[tuple[Any, ...], dict[int, Record]] = {}
    for record in records:
        if record.finished:
            rest = asdict(record.recipe) | {"activation": record.activation}
            seed = rest.pop("seed")
            found.setdefault(tuple(rest.values()), {}).setdefault(seed, record)
    return [Point(tuple(seeds[seed] for seed in sorted(seeds))) for seeds in found.values()]


def series(records: Iterable[Record]) -> list[Series]:
    """One per network, by starting size."""
    found: dict[tuple[str, bool, float], list[Point]] = {}
    for point in points(records):
        recipe = point.recipe
        found.setdefault((recipe.network, recipe.batch_norm, recipe.width), []).append(point)
    made = []
    for (network, batch_norm, width), members in found.items():
        baseline = next((point for point in members if point.lam == 0), None)
        swept = tuple(sorted((point for point in members if point.lam > 0), key=lambda point: point.lam))
        start = members[0].records[0].parameters_dense
        made.append(Series(network, batch_norm, width, start, baseline, swept))
    place = {name: number for number, name in enumerate(TITLES)}
    return sorted(made, key=lambda s: (place.get(s.network, -1), s.batch_norm, s.parameters))


def settings(records: Iterable[Record]) -> list[Setting]:
    """Records apart by all that makes them incomparable; the largest group of an experiment first.

    A dense run has no penalty, so that it is a baseline to runs with any.
    """
    found: dict[tuple[Any, ...], list[Record]] = {}
    dense: dict[tuple[Any, ...], list[Record]] = {}
    for record in records:
        group = dense if record.dense else found
        group.setdefault(_rest(record, VARIED if not record.dense else (*VARIED, *PENALTY)), []).append(record)
    for members in found.values():
        members += dense.get(_rest(members[0], (*VARIED, *PENALTY)), [])
    used = {id(record) for members in found.values() for record in members}
    alone = [members for members in dense.values() if id(members[0]) not in used]
    made = []
    for members in [*found.values(), *alone]:
        first = members[0]
        overrides = tuple((key, then, now) for key, (then, now) in first.overrides.items())
        made.append(Setting(first.experiment, first.profile, overrides, tuple(members)))
    order = {name: place for place, name in enumerate(EXPERIMENTS)}
    return sorted(made, key=lambda s: (order.get(s.experiment, len(order)), -len(s.records), s.profile))


def _rest(record: Record, but: Sequence[str]) -> tuple[Any, ...]:
    return tuple(value for key, value in asdict(record.recipe).items() if key not in but)


def standard(records: Iterable[Record], data: str) -> list[Record]:
    """Runs of the method as the paper has it, on one data set, made for its tables."""
    tabled = [name for name in EXPERIMENTS if name != LONG]
    found = [r for r in records if r.recipe.data == data and r.experiment in tabled and _plainly(r)]
    return [record for record in found if record.recipe.least < ONCE]


def once(records: Iterable[Record], data: str) -> list[Record]:
    """Runs on one data set with a single cut, after the last epoch."""
    return [record for record in records if record.recipe.data == data and record.recipe.least >= ONCE]


def compared(records: Sequence[Record], by: str) -> list[Record]:
    """Runs that differ in `by`, "activation" or "form", those of the paper's choice to hold them against, baselines."""

    def kin(record: Record, *free: str) -> tuple[Any, ...]:
        varied = ("seed", "activation", "form", *free)
        return tuple(value for key, value in asdict(record.recipe).items() if key not in varied)

    def other(record: Record) -> bool:
        if by == "form":
            return record.recipe.form != "paper" and not record.dense
        return (record.recipe.form == "paper" or record.dense) and not _plainly(record)

    found = [record for record in records if other(record)]
    near, wide = {kin(record) for record in found}, {kin(record, "lam") for record in found}
    return [
        record
        for record in records
        if other(record) or (_plainly(record) and (kin(record, "lam") in wide if record.dense else kin(record) in near))
    ]


def _plainly(record: Record) -> bool:
    """The paper's penalty and activation; the baseline is a ReLU network."""
    own = "relu" if record.dense or record.recipe.batch_norm else "soft"
    return (record.recipe.form == "paper" or record.dense) and record.activation == own


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value) if value != "" else "none"
