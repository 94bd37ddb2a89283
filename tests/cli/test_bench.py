"""`nodedrop bench` as a user meets it; what it measures has tests of its own."""

from pathlib import Path

from rich.console import Console
from typer.testing import CliRunner, Result

from nodedrop.cli.app import app
from nodedrop.cli.bench import show
from nodedrop.experiments.machine import machine

FIGURE = {"name": "a step", "ratio": 2.0, "low": 1.5, "high": 2.5, "limit": 1.0, "unit": "", "kept": False}
RECORD = {"benchmark": "step", "quick": False, "machine": {**machine(), "threads": 1}, "figures": [FIGURE]}


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["bench", *(str(argument) for argument in arguments)], env={"COLUMNS": "120"})


def shown(**changes: object) -> str:
    console = Console(width=120)
    with console.capture() as capture:
        show({**RECORD, **changes}, console)
    return " ".join(capture.get().split())


def test_a_figure_is_held_against_its_limit() -> None:
    assert "at most" in shown()
    assert "missed" in shown()
    assert ", 1 thread, torch " in shown()
    assert ", 2 threads, torch " in shown(machine={**machine(), "threads": 2})


def test_a_quick_look_is_held_against_no_limit() -> None:
    text = shown(quick=True)
    assert "a quick look, whose figures mean nothing" in text
    assert "2.000" in text
    assert "missed" not in text
    assert "at most" not in text


def test_where_nothing_was_measured_there_is_no_table(tmp_path: Path) -> None:
    done = run("cifar", "--quick", "--data-dir", tmp_path)
    assert done.exit_code == 0, done.output
    (line,) = done.stdout.splitlines()
    assert line.startswith("not measured: CIFAR-10 VGG16")


def test_a_misspelt_name_gets_the_near_one() -> None:
    done = run("stepp")
    assert done.exit_code == 2
    assert done.stderr.startswith("nodedrop: there is no benchmark 'stepp', did you mean step? there are imports, ")
