"""One Markdown page from the records of `nodedrop bench`: every figure with its limit, and what lies behind it."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..benchmarks import NAMES
from ..errors import InputError
from ..experiments.machine import processor_of
from ..training.atomic import make_folder, reason, replacing
from .figures.style import COLOURS, MARKERS, Picture, panels, plain_log, short
from .figures.style import write as draw
from .pages import NOTES
from .table import Cell, Column, Table, markdown

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Record = Mapping[str, Any]
WORDS = {True: "kept", False: "missed", None: ""}


def read(folder: Path) -> dict[str, Record]:
    """The records of benchmarks in a folder, in the order of the benchmarks; quick looks do not count."""
    found: dict[str, Record] = {}
    for name in NAMES:
        path = folder / f"{name}.json"
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            why = reason(error)
            raise InputError(f"'{path}' cannot be read: {why}; measure again: nodedrop bench {name}") from None
        if not isinstance(record, dict) or record.get("benchmark") != name or "figures" not in record:
            raise InputError(f"'{path}' is no record of the benchmark {name}; measure again: nodedrop bench {name}")
        if not record.get("quick", False):
            found[name] = record
    return found


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
    notes = folder.parent / NOTES / "benchmarks.md"
    words = notes.read_text(encoding="utf-8").strip() if notes.exists() else ""
    command = f"nodedrop bench --results {folder.as_posix()} --page {path.as_posix()}"
    return page(records, command, words, pictures), pictures


def page(records: Mapping[str, Record], command: str, notes: str = "", pictures: Sequence[Picture] = ()) -> str:
    """The page as Markdown. `notes` are words of ours on what was missed."""
    limited = [item for record in records.values() for item in record["figures"] if item["kept"] is not None]
    missed = [item["name"] for item in limited if not item["kept"]]
    parts = [
        "# Benchmarks",
        f"*Generated from records by `{command}`; every number in the tables comes from them. Do not edit.*",
        "Both sides of a ratio run in one process, in turns, so that whatever else the machine does falls on both; "
        "only peers, and the cuts of growing networks, are timed one after another. A figure is the median over "
        "rounds, with the middle half of them beside it, or all where there are few. Records of whole runs hold their "
        "recipes, value by value.",
        f"{len(limited) - len(missed)} of {len(limited)} figures that have a limit keep it."
        + (" Missed:\n\n" + "\n".join(f"- {name}" for name in missed) if missed else ""),
    ]
    if notes:
        parts.append(f"## What is missed, and what to know of the rest\n\n{notes}")
    for name, record in records.items():
        parts += [f"## {NAMES[name][0].upper()}{NAMES[name][1:]}", origin(record), markdown(figures(record)).rstrip()]
        parts += [markdown(table).rstrip() for table in DETAILS.get(name, _none)(record)]
        parts += [f"Not measured: {what}: {why}." for what, why in record.get("missing", {}).items()]
        if name == "growth":
            parts += [f"![{item.caption}]({item.name}.svg)\n\n*{item.caption}*" for item in pictures]
    lacking = [f"- {NAMES[name]}: `nodedrop bench {name}`" for name in NAMES if name not in records]
    if lacking:
        parts.append("## Not measured yet\n\n" + "\n".join(lacking))
    return "\n\n".join(parts) + "\n"


def origin(record: Record) -> str:
    """What measured it, with which seeds, and on what."""
    m = record["machine"]
    rows = [*record.get("runs", ()), *record.get("rows", ())]
    seeds = sorted({row.get("seed", row.get("recipe", {}).get("seed")) for row in rows} - {None})
    words = f", seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}," if seeds else ""
    return (
        f"`{record['command']}`{words} on {processor_of(m)}, {m['cores']} cores, {m['threads']} "
        f"thread{'s' if m['threads'] != 1 else ''}, {m['system']}, Python {m['python']}, torch {m['torch']}."
    )


def figures(record: Record) -> Table:
    """All figures of a benchmark, and whether they keep their limits."""
    rows = []
    for item in record["figures"]:
        unit = f" {item['unit']}" if item.get("unit") else ""
        spread = None if item["low"] == item["high"] else f"{item['low']:.3g}–{item['high']:.3g}"
        limit = None if item["limit"] is None else f"{item['limit']:g}{unit}"
        rows.append((item["name"], f"{item['ratio']:.3f}{unit}", spread, limit, WORDS[item["kept"]]))
    numbers = (Column(name, "s") for name in ("median", "middle half", "at most"))
    return Table(f"Figures of `{record['benchmark']}`", (Column("figure"), *numbers, Column("limit")), tuple(rows))


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
        sides = tuple(
            (side, counts[side], adds[side], *(1e3 * statistics.median(times[side]) for times in engines.values()))
            for side in counts
        )
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
    used = f" Torch-Pruning {record['torch_pruning']}." if record["torch_pruning"] else ""
    yield Table("Procedures of as many epochs", heads, rows, (note + used,))


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


def picture(record: Record, name: str) -> Picture:
    """Growth of time and memory of a step, and of analysis and cuts."""
    caption = (
        "VGG16 as it grows: time of a training step, its peak memory, and the time of an analysis and of cuts; dashed, "
        "growth in proportion to the parameters."
    )
    return Picture(name, caption, partial(grown, record))


def grown(record: Record) -> Figure:
    """Three panels, all axes logarithmic."""
    figure, (time, memory, cuts) = panels(1, 3)
    steps = record["steps"]
    for axes, title, rows, lines in (
        (time, "a step, seconds", steps, {"plain": "plain_seconds", "NodeDrop": "nodedrop_seconds"}),
        (memory, "a step's peak memory, bytes", steps, {"plain": "plain_bytes", "NodeDrop": "nodedrop_bytes"}),
        (cuts, "analysis and cuts, seconds", record["cuts"],
         {"analysis": "analysis_seconds", "cut": "cut_seconds", "cut with a ledger": "recorded_cut_seconds"}),
    ):
        sizes = [row["parameters"] for row in rows]
        values = [row[key] for key in lines.values() for row in rows]
        for place, (label, key) in enumerate(lines.items()):
            axes.plot(sizes, [row[key] for row in rows], color=COLOURS[place], marker=MARKERS[place], label=label)
        if axes is cuts:
            first = max(rows[0][key] for key in lines.values())
            axes.plot(sizes, [first * size / sizes[0] for size in sizes], "--", color="#555555", linewidth=1)
        axes.set_title(title)
        axes.set_xlabel("parameters")
        plain_log(axes, "x", sizes)
        plain_log(axes, "y", values)
        axes.set_xticks(sizes, [short(size) for size in sizes])
        axes.legend()
    return figure
