"""`nodedrop report` as a user meets it."""

import csv
import io
import json
import shutil
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from nodedrop.cli.report import report

app = typer.Typer()
app.command()(report)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_text_has_tables_for_what_is_there(results: Path) -> None:
    done = run(results)
    assert done.exit_code == 0
    for words in ("MNIST: test error in %", "parameters left", "ClampedReLU", "‖w‖₂² + b²"):
        assert words in done.stdout


def test_one_name_says_what_is_missing(results: Path) -> None:
    done = run(results, "--name", "mnist-sizes")
    assert "MNIST: parameters left" in done.stdout
    assert "test error in %" not in done.stdout
    assert "`nodedrop reproduce mnist-lambda --missing`, profile `short`, has 45 of 45 runs to make: " in done.stdout


def test_csv_and_json_parse(results: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(run(results, "--name", "activations", "--format", "csv").stdout)))
    assert [row["activation"] for row in rows] == ["ReLU", "SoftClampedReLU", "ClampedReLU"]
    found = json.loads(run(results, "--name", "mnist", "--json").stdout)
    assert {"λ", "network"} == {table["columns"][0] for table in found["tables"]}
    assert found["problems"] == []


def test_figures_and_pages_are_named(results: Path, tmp_path: Path) -> None:
    done = run(results, "--name", "mnist", "--figures", tmp_path / "figures", "--pages", tmp_path / "pages")
    assert done.exit_code == 0
    assert (tmp_path / "figures" / "mnist-lambda-short.png").exists()
    assert (tmp_path / "pages" / "mnist.md").exists()
    assert "wrote" in done.stdout


def test_a_corrupt_file_is_a_warning(results: Path) -> None:
    (results / "mnist" / "torn.json").write_text('{"recipe": {"la')
    done = run(results)
    assert done.exit_code == 0
    assert "torn.json' is left out: it is no JSON" in done.stderr
    assert "MNIST: test error in %" in done.stdout


def test_an_unfinished_run_is_shown_as_such(made: Path, tmp_path: Path) -> None:
    runs = Path(shutil.copytree(made / "runs", tmp_path / "runs"))
    (runs / "run3" / "result.json").unlink()
    done = run(runs)
    assert done.exit_code == 0
    assert "Unfinished runs" in done.stdout
    assert "run3" in done.stdout


@pytest.mark.parametrize("case", ["empty", "absent", "name", "format"])
def test_mistakes_are_a_sentence_with_code_2(results: Path, tmp_path: Path, case: str) -> None:
    (tmp_path / "empty").mkdir()
    arguments, words = {
        "empty": ([tmp_path / "empty"], "holds no record of a run"),
        "absent": ([tmp_path / "absent"], "there is no folder"),
        "name": ([results, "--name", "imagenet"], "there is nothing called 'imagenet'"),
        "format": ([results, "--format", "pdf"], "there is no format 'pdf'"),
    }[case]
    done = run(*arguments)
    assert done.exit_code == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("option", ["--figures", "--pages"])
def test_places_that_cannot_be_written_to(option: str, results: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = run(results, option, tmp_path / "file" / "more")
    assert done.exit_code == 2
    assert "cannot be made: Not a directory; take another" in " ".join(done.stderr.replace("│", "").split())
