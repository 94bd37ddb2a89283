"""`nodedrop doctor` as a user meets it."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

import nodedrop
from nodedrop.cli.app import app
from nodedrop.export import extras
from nodedrop.kernels import Status, gpu


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["doctor", *(str(argument) for argument in arguments)], env={"COLUMNS": "200"})


def test_it_tells_what_there_is(tmp_path: Path) -> None:
    done = run("--json", "--data-dir", tmp_path)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["nodedrop"] == nodedrop.__version__
    assert found["versions"]["torch"] == torch.__version__
    assert found["threads"]["torch"] == torch.get_num_threads()
    assert "cpu" in found["devices"]
    assert found["kernels"].startswith(("compiled kernels", "torch operators only"))
    assert found["data"]["mnist"] == "60,000 images to train, 10,000 to test"
    assert found["data"]["cifar10"].startswith("not there: ")
    assert set(found["extras"]) == {"lightning", "hf", "onnx", "ray", "report"}


def test_it_names_the_command_for_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name == "ray" else find_spec(name))
    done = run("--data-dir", tmp_path)
    assert done.exit_code == 0, done.output
    assert "without ray; pip install 'nodedrop[ray]'" in done.stdout


def test_it_tells_which_kernels_serve_each_card(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cards = {0: (None, Status(True, True, "Triton 0")), 1: (None, Status(False, False, "too old"))}
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda k: f"card {k}")
    monkeypatch.setattr(gpu, "_loaded", cards)
    found = json.loads(run("--json", "--data-dir", tmp_path).stdout)
    assert found["devices"]["cuda:1"] == "card 1"
    assert found["kernels"].endswith("; cuda:0 compiled kernels: Triton 0; cuda:1 torch operators only: too old")


def test_the_extras_are_those_of_the_project() -> None:
    declared = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    for extra, modules in extras.EXTRAS.items():
        (line,) = (line for line in declared.splitlines() if line.startswith(f"{extra} = ["))
        assert all(f'"{module}>=' in line for module in modules)


def test_help_has_an_example() -> None:
    assert "Example: nodedrop doctor --json" in " ".join(run("--help").stdout.split())
