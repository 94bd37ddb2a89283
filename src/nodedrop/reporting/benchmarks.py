"""One Markdown page from the records of `nodedrop bench`: every figure with its limit, and what lies behind it."""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ..benchmarks import NAMES
from ..errors import InputError
from ..experiments.machine import processor_of
from ..experiments.recipes import Recipe
from ..training.atomic import make_folder, reason, replacing
from .figures.growth import picture
from .figures.style import Picture
from .figures.style import write as draw
from .pages import NOTES
from .table import Cell, Column, Table, markdown

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Words:
    """Ours: what to know of a benchmark's figures, by its name, and of all of them."""

    all: str = ""
    of: Mapping[str, str] = field(default_factory=dict)


def read(folder: Path) -> dict[str, Record]:
    """The records of benchmarks in a folder, in the order of the benchmarks; quick looks do not count."""
    found = {}
    for name in NAMES:
        record = _record(folder / f"{name}.json", name)
        if record is not None and not record.get("quick", False):
            found[name] = record
    return found


def others(folder: Path, name: str) -> dict[str, Record]:
    """Records of a benchmark at other settings or on other machines: `cifar-wide.json` beside `cifar.json`."""
    found = {path.name: _record(path, name) for path in sorted(folder.glob(f"{name}-*.json"))}
    return {file: record for file, record in found.items() if record is not None}


def _record(path: Path, name: str) -> Record | None:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        why = reason(error)
        raise InputError(f"'{path}' cannot be read: {why}; measure again: nodedrop bench {name}") from None
    if not isinstance(record, dict) or record.get("benchmark") != name or "figures" not in record:
        raise InputError(f"'{path}' is no record of the benchmark {name}; measure again: nodedrop bench {name}")
    return record


def words_of(path: Path) -> Words:
    """Notes from a file, where a heading that is a benchmark's name starts those on it."""
    if not path.exists():
        return Words()
    first, *parts = re.split(r"^## (.+)$", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    of = {name.strip(): text.strip() for name, text in zip(parts[::2], parts[1::2], strict=True)}
    if unknown := sorted(set(of) - set(NAMES)):
        raise InputError(f"'{path}' has notes on '{unknown[0]}', and there is no such benchmark")
    return Words(first.strip(), of)


def write(folder: Path, path: Path) -> list[Path]:
    """Write the page, and its figure beside it."""
    if not read(folder):
        raise InputError(f"'{folder}' holds no record of a benchmark; measure first: nodedrop bench --results {folder}")
    make_folder(path.parent)
    text, pictures = text_of(folder, path)
    made = [file for item in pictures for file in draw(item, path.parent)]
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return [path, *made]


def text_of(folder: Path, path: Path) -> tuple[str, list[Picture]]:
    """The page, and the figures that go beside it."""
    records = read(folder)
    pictures = [picture(records["growth"], f"{path.stem}-growth")] if "growth" in records else []
    words = words_of(folder.parent / NOTES / "benchmarks.md")
    command = f"nodedrop bench --results {folder.as_posix()} --page {path.as_posix()}"
    races = {name: others(folder, name) for name in records if DETAILS.get(name) is _run}
    return page(records, command, words, pictures, races), pictures


def page(
    records: Mapping[str, Record],
    command: str,
    words: Words,
    pictures: Sequence[Picture] = (),
    races: Mapping[str, Mapping[str, Record]] = MappingProxyType({}),
) -> str:
    """The page as Markdown: all limits at a glance, then each benchmark."""
    parts = [
        "# Benchmarks",
        f"*Generated from records by `{command}`; every number in the tables comes from them. Do not edit.*",
        "Both sides of a ratio run in one process, in turns, so that whatever else the machine does falls on both; "
        "only peers, and the cuts of growing networks, are timed one after another. A figure is the median over "
        "rounds, with the middle half of them beside it, or all where there are few. Records of whole runs hold their "
        "recipes, value by value.",
        *glance(records),
        *([words.all] if words.all else []),
    ]
    for name, record in records.items():
        parts += [f"## {_title(name)}", origin(record), markdown(figures(record)).rstrip()]
        parts += [words.of[name]] if name in words.of else []
        parts += [markdown(table).rstrip() for table in DETAILS.get(name, _none)(record)]
        parts += [markdown(beside(record, races[name])).rstrip()] if races.get(name) else []
        parts += [f"Not measured: {what}: {why}." for what, why in record.get("missing", {}).items()]
        if name == "growth":
            parts += [f"![{item.caption}]({item.name}.svg)\n\n*{item.caption}*" for item in pictures]
    lacking = [f"- {NAMES[name]}: `nodedrop bench {name}`" for name in NAMES if name not in records]
    if lacking:
        parts.append("## Not measured yet\n\n" + "\n".join(lacking))
    return "\n\n".join(parts) + "\n"


def _title(name: str) -> str:
    return f"{NAMES[name][0].upper()}{NAMES[name][1:]}"


def glance(records: Mapping[str, Record]) -> Iterator[str]:
    """How many figures keep their limits, what comes closest to its own in each benchmark, and all beyond one."""
    rows, missed, beyond, count = list[tuple[Cell, ...]](), list[str](), list[str](), 0
    for name, record in records.items():
        limited = [item for item in record["figures"] if item["kept"] is not None]
        if not limited:
            continue
        late = [item for item in limited if not item["kept"]]
        missed += [f"- {item['name']}: {_value(item)}, at most {_limit(item)}" for item in late]
        beyond += [f"- {item['name']}: {_value(item)}" for item in _unlimited(record["figures"], limited)]
        count += len(limited)
        kept = f"{len(limited) - len(late)} of {len(limited)}"
        nearest = max(limited, key=_share)
        rows.append((NAMES[name], kept, nearest["name"], _value(nearest), _limit(nearest)))
    yield "## At a glance"
    said = f"{count - len(missed)} of {count} figures that have a limit keep it."
    yield said + (" Missed:\n\n" + "\n".join(missed) if missed else "")
    if beyond:
        yield "Measured alike, without a limit of their own, and beyond that of the others:\n\n" + "\n".join(beyond)
    heads = (
        Column("benchmark"), Column("kept", "s"), Column("closest to its limit, or beyond it"), Column("median", "s"),
        Column("at most", "s"),
    )  # fmt: skip
    yield markdown(Table("Limits", heads, tuple(rows))).rstrip()


def _unlimited(items: Sequence[Record], limited: Sequence[Record]) -> Iterator[Record]:
    """Figures without a limit that would miss the one of figures that say the same of something else."""
    limits = {item["name"].rpartition(": ")[2]: item["limit"] for item in limited}
    for item in items:
        if item["limit"] is None and item["ratio"] > limits.get(item["name"].rpartition(": ")[2], math.inf):
            yield item


def _verdict(item: Record) -> str:
    """Whether the limit is kept, and whether the spread goes beyond it."""
    if item["kept"] is None:
        return ""
    if not item["kept"]:
        return "missed"
    return "kept, the spread goes beyond" if item["high"] > item["limit"] else "kept"


def _share(item: Record) -> float:
    """Of the limit, where that is a size; of points, of which there may be none, how many there are."""
    ratio, limit = float(item["ratio"]), float(item["limit"])
    return ratio / limit if limit > 0 else 1 + ratio


def _value(item: Record) -> str:
    return f"{item['ratio']:.3f}{_unit(item)}"


def _limit(item: Record) -> str | None:
    return None if item["limit"] is None else f"{item['limit']:g}{_unit(item)}"


def _unit(item: Record) -> str:
    return f" {item['unit']}" if item.get("unit") else ""


def origin(record: Record) -> str:
    """What measured it, with which seeds, and on what."""
    m = record["machine"]
    rows = [*record.get("runs", ()), *record.get("rows", ())]
    seeds = sorted({row.get("seed", row.get("recipe", {}).get("seed")) for row in rows} - {None})
    words = f", seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}," if seeds else ""
    return (
        f"`{record['command']}`{words} on {processor_of(m)}, {m['cores']} cores, {m['threads']} "
        f"thread{'s' if m['threads'] != 1 else ''}, {m['system']}, Python {m['python']}, torch {m['torch']}"
        f"{''.join(f', {name} {version}' for name, version in record.get('used', {}).items())}."
    )


def figures(record: Record) -> Table:
    """All figures of a benchmark, and whether they keep their limits."""
    rows = []
    for item in record["figures"]:
        spread = None if item["low"] == item["high"] else f"{item['low']:.3g}–{item['high']:.3g}"
        rows.append((item["name"], _value(item), spread, _limit(item), _verdict(item)))
    numbers = (Column(name, "s") for name in ("median", "middle half", "at most"))
    return Table(f"Figures of `{record['benchmark']}`", (Column("figure"), *numbers, Column("limit")), tuple(rows))


def beside(record: Record, races: Mapping[str, Record]) -> Table:
    """Whole runs at other settings or on other machines, each with what its recipe has otherwise."""
    usual, rows = record["runs"][0]["recipe"], list[tuple[Cell, ...]]()
    for file, other in races.items():
        for row in other["runs"]:
            own = {**asdict(Recipe()), **row["recipe"]}
            differs = {key: value for key, value in own.items() if value != usual.get(key, value)}
            if (rate := row.get("dense_recipe", own)["lr"]) != own["lr"]:
                differs["lr of the dense network"] = rate
            time = row["nodedrop"]["seconds"] / row["dense"]["seconds"]
            excess = row["nodedrop"]["test_error"] - row["dense"]["test_error"]
            told = (f"without {key}" if value == "" else f"{key} = {value}" for key, value in differs.items())
            words = ", ".join(told) or "nothing"
            rows.append((f"`{file}`", processor_of(other["machine"]), words, time, excess, row["dense"]["test_error"]))
    heads = (
        Column("record"), Column("processor"), Column("what differs in its recipe"),
        Column("time beside the dense run", ".2f"), Column("points above it", ".2f"), Column("its error, %", ".2f"),
    )  # fmt: skip
    return Table("Other whole runs, one a row", heads, tuple(rows))


def _none(record: Record) -> Iterator[Table]:
    yield from ()


def _activation(record: Record) -> Iterator[Table]:
    rows: list[tuple[Cell, ...]] = []
    relu: Record | None = None
    for way in record["ways"]:
        if way["name"] == "ReLU" and relu is not None:
            continue
        relu = way if way["name"] == "ReLU" else relu
        rows.append((way["name"], 1e3 * statistics.median(way["seconds"]), 1e6 * way["call"], way["bytes"] / 2**20))
    heads = (
        Column("computed by"), Column("ms, forward and backward", ".2f"), Column("µs for a single value", ".1f"),
        Column("MiB allocated", ".1f"),
    )  # fmt: skip
    yield Table("What was tried for SoftClampedReLU, on the largest map with one thread", heads, tuple(rows))


def _step(record: Record) -> Iterator[Table]:
    if memory := record["memory"]:
        rows = tuple((side, most / 2**20) for side, most in memory.items())
        heads = (Column("step"), Column("peak, MiB", ".1f"))
        yield Table("Peak memory of a step", heads, rows, (f"Counted: {record['counted']}.",))


def _analysis(record: Record) -> Iterator[Table]:
    rows = tuple((row["parameters"], 1e3 * row["seconds"]) for row in record["growth"])
    heads = (Column("parameters of VGG16", ",.0f"), Column("analysis, ms", ".0f"))
    yield Table("Analysis as the network grows", heads, rows)


def _inference(record: Record) -> Iterator[Table]:
    for row in record["networks"]:
        counts, adds, engines = row["parameters"], row["multiply_adds"], row["seconds"]
        found = {side: [1e3 * statistics.median(times[side]) for times in engines.values()] for side in counts}
        sides = tuple((side, counts[side], adds[side], *times) for side, times in found.items())
        gains = (dense / compact for dense, compact in zip(found["dense"], found["compact"], strict=True))
        sides += (("times faster", None, None, *gains),)
        heads = (Column("network"), Column("parameters", ",.0f"), Column("multiply-adds", ",.0f"))
        note = f"Cut to widths {', '.join(map(str, row['widths']))}."
        columns = (*heads, *(Column(f"{engine}, ms", ".2f") for engine in engines))
        yield Table(f"Inference of a batch by {row['title']}", columns, sides, (note,))


def _widths(record: Record) -> Iterator[Table]:
    heads = (Column("layers"), Column("multiply-adds", ",.0f"), Column("step, ms", ".1f"))
    for row in record["networks"]:
        rows = tuple(
            (", ".join(map(str, row["widths"].get(side, ["as built"]))), adds, 1e3 * statistics.median(times))
            for (side, adds), times in zip(row["multiply_adds"].items(), row["seconds"].values(), strict=True)
        )
        yield Table(f"A training step of {row['network']}", heads, rows)


def _growth(record: Record) -> Iterator[Table]:
    heads = (
        Column("width", "g"), Column("parameters", ",.0f"), Column("plain step, s", ".3f"),
        Column("NodeDrop step, s", ".3f"), Column("plain peak, MiB", ".0f"), Column("NodeDrop peak, MiB", ".0f"),
    )  # fmt: skip
    rows = tuple(
        (row["width"], row["parameters"], row["plain_seconds"], row["nodedrop_seconds"],
         row["plain_bytes"] / 2**20, row["nodedrop_bytes"] / 2**20)
        for row in record["steps"]
    )  # fmt: skip
    yield Table(f"A step of VGG16 at batch {record['batch']}", heads, rows)
    names = {
        "pass": "pass", "analysis": "analysis", "first_cut": "first cut", "cut": "cut",
        "recorded_cut": "cut with a ledger",
    }  # fmt: skip
    columns = (Column("parameters", ",.0f"), *(Column(f"{words}, ms", ".0f") for words in names.values()))
    times = tuple((row["parameters"], *(1e3 * row[f"{name}_seconds"] for name in names)) for row in record["cuts"])
    yield Table("A forward pass, analysis and cuts of VGG16; the first cut traces again", columns, times)


def _run(record: Record) -> Iterator[Table]:
    rows: list[tuple[Cell, ...]] = []
    for row in record["runs"]:
        recipe = row["recipe"]
        recipes = {"nodedrop": recipe, "dense": row.get("dense_recipe", recipe)}
        names = {"nodedrop": f"NodeDrop, λ = {recipe['lam']:g}", "dense": "dense ReLU"}
        for side, name in names.items():
            one = row[side]
            rows.append(
                (row["case"], recipe["seed"], name, recipes[side]["lr"], one["seconds"], one["cutting"],
                 one["test_error"], one["parameters"], one["units"])
            )  # fmt: skip
    heads = (
        Column("run"), Column("seed", "d"), Column("side"), Column("learning rate", "g"), Column("seconds", ".1f"),
        Column("of them cutting", ".2f"), Column("test error, %", ".2f"), Column("parameters", ",.0f"),
        Column("units", ",.0f"),
    )  # fmt: skip
    yield Table("Whole runs", heads, tuple(rows))


def _peers(record: Record) -> Iterator[Table]:
    keys = ("network", "seed", "procedure", "seconds", "parameters", "multiply_adds", "before", "after", "error")
    heads = (
        Column("network"), Column("seed", "d"), Column("procedure"), Column("seconds", ".1f"),
        Column("parameters", ",.0f"), Column("multiply-adds", ",.0f"), Column("error before removal, %", ".2f"),
        Column("right after, %", ".2f"), Column("at the end, %", ".2f"),
    )  # fmt: skip
    rows = tuple(tuple(row[key] for key in keys) for row in record["rows"])
    note = "Seconds are those of training steps and of removal. NodeDrop removes all along; its last removal is shown."
    yield Table("Procedures of as many epochs", heads, rows, (note,))


def _active(record: Record) -> Iterator[Table]:
    names = ("case", "layer", "units", "on_interval", "on_linear", "merged")
    heads = (
        Column("network"), Column("layer"), Column("units", "d"), Column("always on, by intervals", "d"),
        Column("by linear bounds", "d"), Column("could be merged", "d"),
    )  # fmt: skip
    yield Table("Where they are", heads, tuple(tuple(row[name] for name in names) for row in record["layers"]))


def _demo(record: Record) -> Iterator[Table]:
    names = ("seed", "parameters_dense", "parameters", "test_error", "wall", "cuts", "cut_change")
    heads = (
        Column("seed", "d"), Column("parameters at the start", ",d"), Column("at the end", ",d"),
        Column("test error, %", ".2f"), Column("seconds", ".0f"), Column("cuts", "d"),
        Column("largest change by a cut", ".1e"),
    )  # fmt: skip
    yield Table("Demonstrations", heads, tuple(tuple(row[name] for name in names) for row in record["runs"]))


DETAILS: dict[str, Callable[[Record], Iterator[Table]]] = {
    "activation": _activation,
    "step": _step,
    "analysis": _analysis,
    "inference": _inference,
    "active": _active,
    "widths": _widths,
    "growth": _growth,
    "demo": _demo,
    "run": _run,
    "cifar": _run,
    "peers": _peers,
}
