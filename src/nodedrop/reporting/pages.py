"""Markdown pages from records: what was run, tables, figures, and what they say beside the paper."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from ..experiments.machine import processor_of
from ..experiments.recipes import EXPERIMENTS
from ..functional import PENALTY_FORMS
from ..training.atomic import make_folder, replacing
from . import figures, findings, tables
from .groups import Setting, lam_of, settings
from .records import Record
from .table import markdown
from .topics import TOPICS, missing, present

NOTES = "notes"  # results/notes/mnist.md: what was found out about a difference, in words


def write(records: Sequence[Record], folder: Path, results: Path) -> list[Path]:
    """Write a page for every topic that has finished runs, its figures beside it, and an index of them."""
    make_folder(folder)
    made: list[Path] = []
    for name, text in texts(records, folder, results).items():
        if name in TOPICS:
            for picture in figures.for_topic(records, name):
                made += figures.write(picture, folder, ("svg",))
        made.append(_save(folder / f"{name}.md", text))
    return made


def texts(records: Sequence[Record], folder: Path, results: Path) -> dict[str, str]:
    """The pages, by topic, and their index."""
    found: dict[str, str] = {}
    entries = []
    for topic in TOPICS:
        own = [record for record in present(records, topic) if record.finished]
        if own:
            notes = results / NOTES / f"{topic}.md"
            words = notes.read_text(encoding="utf-8").strip() if notes.exists() else ""
            origin = _origin(results, folder, TOPICS[topic].reproductions)
            found[topic] = page(records, topic, origin, figures.for_topic(records, topic), words)
            entries.append((topic, own))
    if entries:
        found["index"] = index(records, _origin(results, folder), entries)
    return found


def page(
    records: Sequence[Record], topic: str, origin: str, pictures: Sequence[figures.Picture], notes: str = ""
) -> str:
    """One page as Markdown. `notes` are words of ours, placed under what was computed."""
    held = TOPICS[topic]
    parts = [f"# {held.title}", origin, held.about, "## What was run"]
    own = [record for record in present(records, topic) if record.finished]
    parts += [_setting(setting) for setting in settings(own)]
    parts.append(_machines(own))
    if topic == "penalties":
        parts.append("\n".join(f"- `{form.formula}` (`{name}`): {form.reason}" for name, form in PENALTY_FORMS.items()))
    parts.append("## Beside the paper")
    parts.append("\n".join(f"- {sentence}" for sentence in findings.for_topic(records, topic)))
    if notes:
        parts.append(f"### Why it differs\n\n{notes}")
    if lacking := missing(records, topic):
        parts.append("### Not run yet\n\n" + "\n".join(f"- {sentence}" for sentence in lacking))
    if pictures:
        parts.append("## Figures")
        parts += [f"![{picture.caption}]({picture.name}.svg)\n\n*{picture.caption}*" for picture in pictures]
    parts.append("## Tables")
    parts += [markdown(table).rstrip() for table in tables.for_topic(records, topic)]
    if topic == "cifar10" and (record := tables.longest(records)) is not None:
        parts.append(markdown(tables.convergence(record)).rstrip())
    return "\n\n".join(part for part in parts if part) + "\n"


def index(records: Sequence[Record], origin: str, entries: Sequence[tuple[str, Sequence[Record]]]) -> str:
    """The list of pages, each with the sentence to quote."""
    parts = ["# Results", origin]
    for topic, own in entries:
        hours = sum(record.seconds + record.cutting for record in own) / 3600
        said = findings.for_topic(records, topic)
        lines = [f"## [{TOPICS[topic].title}]({topic}.md)", f"{len(own)} runs, {hours:.1f} hours of training."]
        parts += lines + said[:1]
    return "\n\n".join(parts) + "\n"


def _origin(results: Path, folder: Path, reproductions: Sequence[str] = ()) -> str:
    """Where the page comes from, and how to make it again."""
    runs = ", ".join(f"`nodedrop reproduce {name}`" for name in reproductions)
    return (
        f"*Generated from records by `nodedrop report {results.as_posix()} --pages {folder.as_posix()}`; every number "
        f"comes from them or from the paper. Do not edit.*{f' The runs are made by {runs}.' if runs else ''}"
    )


def _setting(setting: Setting) -> str:
    """One list item: recipe, what it does otherwise than the paper, seeds, λ, commands."""
    experiment = EXPERIMENTS.get(setting.experiment)
    runs = list(setting.records)
    recipe = runs[0].recipe
    title = experiment.title if experiment else tables.DATA.get(recipe.data, recipe.data)
    lines = [f"**{title}, {setting.title}**: {len(runs)} run{'s' if len(runs) > 1 else ''}."]
    if setting.profile == "short" and experiment:
        lines.append(f"Otherwise than in the paper: {experiment.differs}.")
    elif setting.profile == "short":
        differs = [e.differs for e in EXPERIMENTS.values() if e.short.data == recipe.data][:1]
        lines += [f"Otherwise than in the paper: {words}." for words in differs]
    lambdas = sorted({run.recipe.lam for run in runs})
    lines.append(f"λ: {', '.join(lam_of(lam) for lam in lambdas)}. Seeds: {_listed(run.recipe.seed for run in runs)}.")
    lines.append(
        f"{recipe.epochs} epochs, batch {recipe.batch}, {recipe.optimizer}, learning rate {recipe.lr:g}"
        f"{f', decay {recipe.decay}' if recipe.decay else ''}, C = {recipe.C:g}, evidence `{recipe.evidence}`."
    )
    commands = dict.fromkeys(run.command for run in runs if run.command)
    shown = list(commands)[:3]
    if shown:
        more = f" and {len(commands) - 3} more of the kind" if len(commands) > 3 else ""
        lines.append("Command: " + ", ".join(f"`{command}`" for command in shown) + more + ".")
    return "- " + "\n  ".join(lines)


def _machines(records: Sequence[Record]) -> str:
    kinds = dict.fromkeys(
        f"{processor_of(m)}, {m.get('cores', '?')} cores, {m.get('threads', '?')} threads a run, "
        f"{m.get('system', '?')}, Python {m.get('python', '?')}, torch {m.get('torch', '?')}"
        for m in (record.machine for record in records)
    )
    seconds = sum(record.seconds + record.cutting for record in records)
    return f"Machine: {'; '.join(kinds)}. {seconds / 3600:.1f} hours of training in all."


def _listed(values: Iterable[int]) -> str:
    return ", ".join(str(value) for value in sorted(set(values)))


def _save(path: Path, text: str) -> Path:
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return path
