"""`nodedrop reproduce` as a user meets it."""

import json
from pathlib import Path

import pytest
from tests.experiments.own_target import OWN
from typer.testing import CliRunner, Result

from nodedrop.cli.app import app
from nodedrop.experiments import reproduce as table
from nodedrop.experiments.sweep import Grid


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["reproduce", *(str(argument) for argument in arguments)])


def test_every_run_leaves_a_record_by_experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = table.Reproduction("two of its runs", (Grid("mnist", (0.0, 1e-3)),))
    monkeypatch.setitem(table.REPRODUCTIONS, "mnist-lambda", small)
    own = {**OWN, "network": "mnist-dense160", "width": 0.25}
    changes = [f"--set={name}={value}" for name, value in own.items() if name != "data"]
    where = ["--out", tmp_path / "runs", "--results", tmp_path / "results"]
    done = run("mnist-lambda", *changes, "--set", "images=80", *where, "--json")
    assert done.exit_code == 0
    outcome = json.loads(done.stdout)
    assert outcome["failed"] == {}
    records = sorted((tmp_path / "results" / "mnist").iterdir())
    assert sorted(outcome["records"]) == [str(path) for path in records]
    assert [json.loads(path.read_text())["recipe"]["lam"] for path in records] == [0.0, 0.001]
    shown = run("mnist-lambda", *changes, "--set", "images=80", *where)
    assert shown.exit_code == 0
    assert "Dense160" in shown.stdout
    records[0].unlink()
    elsewhere = ["--out", tmp_path / "others", "--results", tmp_path / "results", "--missing", "--json"]
    again = run("mnist-lambda", *changes, "--set", "images=80", *elsewhere)
    assert "1 of 2 runs are recorded" in again.stderr
    assert json.loads(again.stdout)["records"] == [str(records[0])]
    nothing = run("mnist-lambda", *changes, "--set", "images=80", *elsewhere)
    assert (nothing.exit_code, json.loads(nothing.stdout)["records"]) == (0, [])
    few = ["--lam", "0", "--network", "mnist-dense160", "--json"]
    one = run("mnist-lambda", *changes, "--set", "images=80", *where, *few)
    assert json.loads(one.stdout)["records"] == [str(records[0])]
    records[0].write_text("[]")
    broken = run("mnist-lambda", *changes, "--set", "images=80", *elsewhere)
    assert broken.exit_code == 2
    assert "is no record of a run" in broken.stderr


def test_a_mistake_is_one_sentence_and_leaves_nothing(tmp_path: Path) -> None:
    where = ["--out", tmp_path / "runs", "--results", tmp_path / "results"]
    for arguments, words in (
        (["minst-long"], "there is no reproduction 'minst-long', did you mean mnist-long? there are mnist-lambda, "),
        (["mnist-lambda", "--set", "lam=1"], "lam is what the runs differ in"),
        (["cifar10-table", "--data-dir", "."], "(see --data-dir and --download)"),
        (["convergence", "--set", "epochs=0"], "epochs must be at least 1"),
        (["convergence", "--lam", "0"], "no run of it has λ 0.0; there are 1e-05"),
        (["mnist-lambda", "--network", "vgg16"], "no run of it has the network vgg16; there are mnist-dense160, "),
    ):
        done = run(*arguments, *where)
        assert done.exit_code == 2
        assert words in done.stderr
        assert list(tmp_path.iterdir()) == []


def test_a_folder_for_records_that_cannot_be_written_is_found_out_first(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = run("activations", "--out", tmp_path / "runs", "--results", tmp_path / "file")
    assert done.exit_code == 2
    assert "cannot be written to" in done.stderr
    assert not list(tmp_path.glob("runs/*"))


def test_help_names_every_reproduction() -> None:
    text = run("--help").stdout.replace("│", "")
    assert all(name in text for name in table.REPRODUCTIONS)
    assert "Example: nodedrop reproduce" in text
