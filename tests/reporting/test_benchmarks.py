"""The page of benchmarks: limits at a glance, notes where they belong, other runs with what differs in them."""

import json
from pathlib import Path
from typing import Any

import pytest

from nodedrop.errors import InputError
from nodedrop.reporting import benchmarks

MACHINE = {"processor": "chip", "cores": 2, "threads": 1, "system": "Linux", "python": "3.11", "torch": "2.13"}


def figure(name: str, ratio: float, limit: float | None, unit: str = "") -> dict[str, Any]:
    kept = None if limit is None else ratio <= limit
    return {"name": name, "ratio": ratio, "low": ratio, "high": ratio, "limit": limit, "unit": unit, "kept": kept}


def race(time: float, error: float, **changes: Any) -> dict[str, Any]:
    recipe = {"lam": 1e-3, "lr": 1e-3, "seed": 0, "width": 0.5, **changes}
    side = {"cutting": 0.1, "parameters": 10, "units": 5}
    return {
        "case": "case",
        "recipe": recipe,
        "dense_recipe": recipe,
        "nodedrop": {**side, "seconds": time, "test_error": error},
        "dense": {**side, "seconds": 10.0, "test_error": 20.0},
    }


def record(name: str, *figures: dict[str, Any], **details: Any) -> dict[str, Any]:
    return {
        "benchmark": name, "command": f"nodedrop bench {name}", "quick": False, "machine": MACHINE,
        "figures": list(figures), **details,
    }  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    results = tmp_path / "results" / "bench"
    results.mkdir(parents=True)
    held = {
        "imports": record("imports", figure("seconds", 0.2, 0.3, "s")),
        "data": record("data", figure("share", 0.02, 0.03), figure("other share", 0.04, 0.03)),
        "run": record("run", figure("points", -0.1, 0.0, "points"), runs=[race(4.0, 20.5)]),
        "run-wide": record("run", runs=[race(6.0, 19.0, width=1.0)]),
    }
    for name, one in held.items():
        (results / f"{name}.json").write_text(json.dumps(one))
    return results


def page(folder: Path) -> str:
    return benchmarks.text_of(folder, Path("docs/benchmarks.md"))[0]


def test_limits_at_a_glance(folder: Path) -> None:
    text = page(folder)
    assert "3 of 4 figures that have a limit keep it. Missed:\n\n- other share: 0.040, at most 0.03\n" in text
    glance = text.partition("**Limits**")[2].partition("\n\n## ")[0]
    assert "| 1 of 2 | other share | 0.040 | 0.03 |" in glance
    assert "| 1 of 1 | points | -0.100 points | 0 points |" in glance


def test_what_goes_beyond_the_limit_of_others_is_named(folder: Path) -> None:
    assert "without a limit of their own" not in page(folder)
    names = {"a: time": (1.0, 1.5), "b: time": (1.4, None), "c: time": (1.6, None), "d: memory": (9.0, None)}
    made = record("data", *(figure(name, ratio, limit) for name, (ratio, limit) in names.items()))
    (folder / "data.json").write_text(json.dumps(made))
    text = page(folder)
    assert "without a limit of their own, and beyond that of the others:\n\n- c: time: 1.600\n\n" in text
    assert "3 of 3 figures that have a limit keep it." in text


def test_other_runs_say_what_differs_in_them(folder: Path) -> None:
    text = page(folder)
    assert "| `run-wide.json` | chip | width = 1.0 | 0.60 | -1.00 | 20.00 |" in text


def test_notes_stand_with_their_benchmark(folder: Path) -> None:
    notes = folder.parent / "notes" / "benchmarks.md"
    notes.parent.mkdir()
    notes.write_text("Of all.\n\n## data\n\nOf data.\n\n### Smaller\n\nStill of data.\n\n## run\n\nOf runs.\n")
    text = page(folder)
    order = ("Of all.", "## Loading", "Of data.", "Still of", "## A whole", "Of runs.")
    places = [text.index(words) for words in order]
    assert places == sorted(places)


def test_notes_on_what_is_no_benchmark(folder: Path) -> None:
    notes = folder.parent / "notes" / "benchmarks.md"
    notes.parent.mkdir()
    notes.write_text("## date\n\nNobody would see this.\n")
    with pytest.raises(InputError, match=r"notes on 'date', and there is no such benchmark"):
        page(folder)


def test_a_record_of_another_benchmark_beside_it(folder: Path) -> None:
    (folder / "run-other.json").write_text(json.dumps(record("data", figure("share", 0.02, 0.03))))
    with pytest.raises(InputError, match=r"run-other.json' is no record of the benchmark run"):
        page(folder)
