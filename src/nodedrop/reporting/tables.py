"""The tables of the paper from our records, with its own numbers beside them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..experiments.data import TEXT
from ..functional import PENALTY_FORMS
from . import paper
from .groups import Point, Series, Setting, Spread, compared, lam_of, name_of, points, settings, standard
from .records import Record
from .table import Cell, Column, Table

LAMBDA = Column("λ")
RUNS = Column("n", "d")
OUTCOME = (
    Column("test error %", ".2f"),
    Column("parameters", ",.0f"),
    Column("removed %", ".2f"),
    Column("factor", ".2f"),
    Column("units", ",.0f"),
    Column("units removed %", ".2f"),
)
ACTIVATIONS = {"soft": "SoftClampedReLU", "clamped": "ClampedReLU", "relu": "ReLU"}
# Points of test error that count as no loss. One point yields exactly the rows that the paper prints in bold.
NO_LOSS = {"mnist": 0.1, "cifar10": 1.0, "cifar100": 1.0}
OURS, THEIRS = "here", "paper"


def outcome(point: Point) -> tuple[Cell, ...]:
    """A point's values for the columns of OUTCOME."""
    factor = None if point.collapsed else point.factor
    return (point.error, point.parameters, point.removed, factor, point.units, point.units_removed)


def all_points(one: Series) -> list[Point]:
    return [*([one.baseline] if one.baseline else []), *one.points]


def mnist_grid(setting: Setting, what: str) -> Table:
    """λ down, starting sizes across: "error" or "parameters"; sizes come with how far apart they end."""
    found = setting.series
    column, value = _GRIDS[what]
    lambdas = sorted({point.lam for one in found for point in all_points(one)})
    rows = []
    for lam in lambdas:
        here = [next((point for point in all_points(one) if point.lam == lam), None) for one in found]
        row: list[Cell] = [lam_of(lam), *(value(point) if point else None for point in here)]
        if what == "parameters":
            ends = [point.parameters.mean for point in here if point and not point.collapsed]
            row.append(max(ends) / max(min(ends), 1) if len(ends) > 1 else None)
        rows.append(tuple(row))
    columns = [LAMBDA, *(Column(one.title, column.form) for one in found)]
    if what == "parameters":
        columns.append(Column("largest / smallest", ".2f"))
    return Table(f"MNIST: {_GRID_TITLES[what]} ({_plain(setting)})", tuple(columns), tuple(rows), _seeds(setting))


def mnist_best(setting: Setting) -> Table:
    """For each size the smallest network without loss."""
    rows: list[tuple[Cell, ...]] = []
    for one in setting.series:
        best = one.best(NO_LOSS["mnist"])
        if best is not None and one.baseline is not None:
            rows.append((one.title, one.baseline.error, lam_of(best.lam), best.n, *outcome(best)))
    name = f"MNIST: smallest network within {NO_LOSS['mnist']:g} points of its baseline's error ({_plain(setting)})"
    columns = (Column("network"), Column("baseline error %", ".2f"), LAMBDA, RUNS, *OUTCOME)
    return Table(name, columns, tuple(rows), _seeds(setting))


def mnist(setting: Setting) -> Table:
    """Every size and λ in one row."""
    rows = [(one.title, lam_of(p.lam), p.n, *outcome(p)) for one in setting.series for p in all_points(one)]
    columns = (Column("network"), LAMBDA, RUNS, *OUTCOME)
    return Table(f"MNIST: all sizes and λ ({_plain(setting)})", columns, tuple(rows), _seeds(setting))


def cifar(setting: Setting) -> list[Table]:
    """The paper's columns for each network of a setting, its row under ours for every λ."""
    data = setting.records[0].recipe.data
    made = []
    for one in setting.series:
        theirs = paper.rows(data, one.network, batch_norm=one.batch_norm)
        rows: list[tuple[float, int, tuple[Cell, ...]]] = []
        for point in all_points(one):
            rows.append((point.lam, 0, (lam_of(point.lam), OURS, point.n, *outcome(point))))
        for row in theirs:
            numbers = (row.test_error, row.parameters, row.removed, row.factor, row.units, row.units_removed)
            rows.append((row.lam or 0.0, 1, (lam_of(row.lam), THEIRS, None, *numbers)))
        rows.sort(key=lambda entry: entry[:2])
        name = f"{DATA.get(data, data)}, {one.title}"
        name += f" at width {one.width:g}" if one.width != 1 else ""
        columns = (LAMBDA, Column("from"), RUNS, *OUTCOME)
        made.append(Table(f"{name} ({_plain(setting)})", columns, tuple(r for _, _, r in rows), _seeds(setting)))
    return made


def text(setting: Setting) -> list[Table]:
    """Perplexity and feed-forward units over λ, beside the baseline, at the end and at each run's best epoch."""
    made = []
    beside = Column("beside the baseline, %", "+.2f")
    columns = (LAMBDA, RUNS, Column("perplexity", ".3f"), beside, Column("at its best epoch", ".3f"), beside, *_SIZES)
    for one in setting.series:
        rows: list[tuple[Cell, ...]] = []
        for p in all_points(one):
            end, best = (None, None) if one.baseline is None else (one.baseline.perplexity, one.baseline.lowest)
            told = (p.perplexity, _beside(p.perplexity, end), p.lowest, _beside(p.lowest, best))
            rows.append((lam_of(p.lam), p.n, *told, p.units, p.units_removed, p.parameters, p.removed))
        made.append(Table(f"{one.title} ({_plain(setting)})", columns, tuple(rows), _seeds(setting)))
    return made


def _beside(ours: Spread, base: Spread | None) -> float | None:
    """By how many per cent a number exceeds the baseline's."""
    return None if base is None else 100 * (ours.mean / base.mean - 1)


def comparison(records: Sequence[Record], by: str) -> list[Table]:
    """Activations ("activation") or penalties ("form") against each other, one table per network and setting."""
    made = []
    for setting in settings(compared(records, by)):
        for one in networks(setting.records):
            rows = sorted(points(one), key=lambda p: rank(p, by))
            cells = [(variant(p, by), lam_of(p.lam), p.n, *_extra(p, by), *outcome(p), _lost(p)) for p in rows]
            columns = (*_HEADS[by], *OUTCOME, Column("layers lost"))
            recipe = one[0].recipe
            name = f"{DATA.get(recipe.data, recipe.data)}, {name_of(recipe.network, batch_norm=recipe.batch_norm)}"
            made.append(Table(f"{name} ({_plain(setting)})", columns, tuple(cells), _seeds(setting)))
    return made


def unfinished(records: Sequence[Record]) -> Table | None:
    """Runs that have not come to their end, where they are."""
    rows = [
        (r.name, lam_of(r.recipe.lam), r.epochs[-1].epoch, r.recipe.epochs, r.test_error, r.parameters, r.units)
        for r in records
        if not r.finished
    ]
    columns = (
        Column("run"), LAMBDA, Column("epoch", "d"), Column("of", "d"), OUTCOME[0], OUTCOME[1], OUTCOME[4],
    )  # fmt: skip
    return Table("Unfinished runs", columns, tuple(rows)) if rows else None


def others(records: Sequence[Record]) -> Table | None:
    """Finished runs that no page is about: other data, networks of the user's own."""
    rows = [(point.records[0].name, lam_of(point.lam), point.n, *outcome(point)) for point in points(records)]
    return Table("Other runs", (Column("run"), LAMBDA, RUNS, *OUTCOME), tuple(rows)) if rows else None


def convergence(record: Record) -> Table:
    """One run by epochs: the first ten, then ever fewer."""
    last = record.epochs[-1].epoch
    chosen = [e for e in record.epochs if e.epoch <= 10 or e.epoch == last or e.epoch % _step(e.epoch) == 0]
    rows = tuple((e.epoch, 100 - e.test_error, e.parameters, e.units) for e in chosen)
    columns = (Column("epoch", "d"), Column("test accuracy %", ".2f"), OUTCOME[1], OUTCOME[4])
    name = name_of(record.recipe.network, batch_norm=record.recipe.batch_norm)
    return Table(f"{name}, λ = {lam_of(record.recipe.lam)}: accuracy and size over epochs", columns, rows)


def longest(records: Sequence[Record]) -> Record | None:
    """The run for the convergence figure: CIFAR-10, VGG16 without batch norm at the λ nearest to the paper's."""
    wanted = paper.content()["convergence_figure"]["lambda"]
    found = [r for r in records if r.recipe.data == "cifar10" and r.recipe.network == "vgg16"]
    found = [r for r in found if not r.recipe.batch_norm and not r.dense and len(r.epochs) > 1]
    return min(found, key=lambda r: (abs(r.recipe.lam / wanted - 1) > 0.5, -r.epochs[-1].epoch, r.name), default=None)


def for_topic(records: Sequence[Record], topic: str) -> list[Table]:
    """The tables of a page."""
    if topic in ("activations", "penalties"):
        return comparison(records, "activation" if topic == "activations" else "form")
    found = settings(r for r in standard(records, TEXT if topic == "text" else topic) if r.finished)
    if topic == "text":
        return [table for setting in found for table in text(setting)]
    if topic == "mnist":
        grids = [(mnist_grid(s, "error"), mnist_grid(s, "parameters"), mnist_best(s), mnist(s)) for s in found]
        return [table for tables in grids for table in tables if table.rows]
    return [table for setting in found for table in cifar(setting)]


def for_reproduction(records: Sequence[Record], name: str) -> list[Table]:
    """The tables that belong to a figure or table of the paper."""
    if name == "convergence":
        record = longest(records)
        return [convergence(record)] if record else []
    if name in ("mnist-lambda", "mnist-sizes"):
        wanted = ("error", "parameters") if name == "mnist-lambda" else ("parameters",)
        found = settings(record for record in standard(records, "mnist") if record.finished)
        return [mnist_grid(setting, what) for setting in found for what in wanted]
    if name == "cifar10-lambda":
        chosen = [r for r in standard(records, "cifar10") if r.recipe.network == "vgg16"]
        return for_topic(chosen, "cifar10")
    return for_topic(records, name.removesuffix("-table"))


DATA = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST", "cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}
_GRIDS: dict[str, tuple[Column, Callable[[Point], Spread]]] = {
    "error": (OUTCOME[0], lambda point: point.error),
    "parameters": (OUTCOME[1], lambda point: point.parameters),
}
_HEADS: dict[str, tuple[Column, ...]] = {
    "form": (Column("penalty of a unit"), LAMBDA, RUNS),
    "activation": (
        Column("activation"), LAMBDA, RUNS, Column("stuck at the start", ".0f"), Column("stuck at the end", ".0f"),
    ),
}  # fmt: skip
_SIZES = (
    Column("feed-forward units", ",.0f"), Column("units removed %", ".2f"), OUTCOME[1], Column("removed %", ".2f"),
)  # fmt: skip
_GRID_TITLES = {"error": "test error in %", "parameters": "parameters left"}


def networks(records: Sequence[Record]) -> list[list[Record]]:
    """Records apart by network."""
    names = dict.fromkeys(record.recipe.network for record in records)
    return [[record for record in records if record.recipe.network == name] for name in names]


def variant(point: Point, by: str) -> str:
    """What sets a point apart in a comparison."""
    if by == "activation":
        return ACTIVATIONS[point.records[0].activation]
    return PENALTY_FORMS[point.recipe.form].formula if point.lam else "none"


def rank(point: Point, by: str) -> tuple[float, int]:
    """The order of points in a comparison: by λ, the paper's choice first."""
    place = list(ACTIVATIONS).index(point.records[0].activation) if by == "activation" else 0
    return (point.lam, place or list(PENALTY_FORMS).index(point.recipe.form))


def _extra(point: Point, by: str) -> tuple[Cell, ...]:
    """For activations: units that cannot learn, their activation flat on a thousand images."""
    if by != "activation":
        return ()
    if any(record.stuck is None or record.stuck_at_start is None for record in point.records):
        return (None, None)
    return (point.over(lambda r: r.stuck_at_start or 0), point.over(lambda r: r.stuck or 0))


def _lost(point: Point) -> str:
    lost = sum(bool(record.collapsed) for record in point.records)
    return f"in {lost} of {point.n}" if lost else "none"


def _step(epoch: int) -> int:
    """5 up to 99, 50 up to 999, and so on."""
    return int(5 * 10.0 ** (len(str(epoch)) - 2))


def _plain(setting: Setting) -> str:
    return setting.title.replace("`", "")


def _seeds(setting: Setting) -> tuple[str, ...]:
    most = max(point.n for point in points(setting.records))
    if most == 1:
        return ("One run each.",)
    return (f"Mean ± standard deviation of the sample over up to {most} seeds; without ±, one run or all equal.",)
