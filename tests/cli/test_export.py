"""`nodedrop export` as a user meets it."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.export import target
from typer.testing import CliRunner, Result

from nodedrop.cli.app import app
from nodedrop.export import extras

TARGET = "tests.export.target"
BRANCHING = "Branching cannot be exported for any batch size at target.py:"
PLANTED = ["--model", f"{TARGET}:planted", "--example", "1,4"]


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["export", *(str(argument) for argument in arguments)])


def test_the_network_of_a_run_in_all_forms(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    mine = ["--set", "images=300", "--set", "epochs=1", "--set", "lam=1e-3", "--set", "quiet=0", "--out", str(folder)]
    assert CliRunner().invoke(app, ["train", "mnist", *mine]).exit_code == 0
    done = run(folder, "--onnx", tmp_path / "m.onnx", "--pt2", tmp_path / "m.pt2", "--int8", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert {name: Path(item["path"]).name for name, item in found.items()} == {
        "onnx": "m.onnx", "pt2": "m.pt2", "int8": "m.int8.onnx",
    }  # fmt: skip
    for name in ("onnx", "pt2"):
        assert set(found[name]["differences"]) == {"2", "5"}
        assert found[name]["difference"] <= 1e-5
    assert found["int8"]["bytes"] < found["int8"]["bytes_float"] == found["onnx"]["bytes"]
    assert abs(found["int8"]["error"] - found["int8"]["error_float"]) < 20
    assert sorted(os.listdir(tmp_path)) == ["m.int8.onnx", "m.onnx", "m.pt2", "run"]


def test_the_difference_is_told(tmp_path: Path) -> None:
    done = run(*PLANTED, "--onnx", tmp_path / "m.onnx")
    assert done.exit_code == 0, done.output
    assert "run with ONNX Runtime, it differs from the module by " in done.stdout
    assert "for a batch of 2 and " in done.stdout


def test_what_was_filled_up_is_told(tmp_path: Path) -> None:
    mine = ["--model", f"{TARGET}:convolutional", "--example", "2,1,28,28", "--onnx", tmp_path / "m.onnx"]
    done, plain = run(*mine), run(*mine, "--multiple", 1)
    assert "1 convolution was filled up with units of 0 to multiples of 8; --multiple 1 keeps" in done.stdout
    assert "filled up" not in plain.stdout


def test_a_file_that_differs_is_exit_code_1_and_not_kept(tmp_path: Path) -> None:
    done = run("--model", f"{TARGET}:Fickle", "--example", "2,4", "--pt2", tmp_path / "m.pt2")
    assert done.exit_code == 1
    assert "differs from the module by" in done.stderr
    assert os.listdir(tmp_path) == []


def test_a_missing_extra_names_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name == "onnxruntime" else find_spec(name))
    done = run(*PLANTED, "--onnx", tmp_path / "m.onnx")
    assert done.exit_code == 2
    assert done.stderr == "nodedrop: --onnx needs onnxruntime; install with: pip install 'nodedrop[onnx]'\n"
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (PLANTED, "say what to write: --onnx model.onnx or --pt2 model.pt2"),
        ([*PLANTED, "--pt2", "m.pt2", "--int8"], "--int8 goes with --onnx"),
        ([*PLANTED, "--pt2", "m.pt2", "--multiple", "8"], "--multiple goes with --onnx"),
        ([*PLANTED, "--onnx", "m.onnx", "--int8"], "--int8 is calibrated on samples"),
        ([*PLANTED, "--onnx", "none/m.onnx"], "the folder 'none' does not exist"),
        (["--model", f"{TARGET}:OneBatchSize", "--example", "2,4", "--pt2", "m.pt2"], "for any batch size"),
        ([*PLANTED, "--onnx", "m.pt"], "--onnx writes ONNX; name the file 'm.onnx'"),
        (["--model", f"{TARGET}:Branching", "--example", "2,4", "--pt2", "m.pt2"], BRANCHING),
        (["--model", f"{TARGET}:Branching", "--example", "2,4", "--onnx", "m.onnx"], BRANCHING),
        (["--model", f"{TARGET}:Pair", "--example", "2,4", "--pt2", "m.pt2"], "; repeat --example, one per input"),
        (["--model", f"{TARGET}:Counting", "--example", "2,4", "--pt2", "m.pt2"], "returns numbers beside tensors"),
        (["--model", f"{TARGET}:Counting", "--example", "2,4", "--onnx", "m.onnx"], "returns numbers beside tensors"),
        (["--pt2", "m.pt2"], "name either the folder of a run or your own network"),
    ],
)
def test_a_mistake_is_one_sentence_and_leaves_nothing(
    arguments: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run(*arguments)
    assert done.exit_code == 2
    assert words in done.stderr
    assert done.stderr.startswith("nodedrop: ")
    assert done.stderr.count("\n") == 1
    assert os.listdir(tmp_path) == []


def test_a_network_that_cannot_be_traced_is_named_by_the_line_that_stands_in_the_way(tmp_path: Path) -> None:
    start = [sys.executable, "-c", "from nodedrop.cli import main; main()", "export"]
    given = ["--model", f"{TARGET}:Branching", "--example", "2,4", "--pt2", str(tmp_path / "m.pt2")]
    done = subprocess.run([*start, *given], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    lines = Path(target.__file__).read_text().splitlines()
    line = next(number for number, text in enumerate(lines, 1) if "if out.sum()" in text)
    words = f"Branching cannot be exported for any batch size at target.py:{line}: GuardOnDataDependentSymNode: "
    assert done.stderr.startswith(f"nodedrop: {words}")
    assert done.stderr.endswith(" (move branches that depend on data out of forward)\n")
    assert (done.stderr.count("\n"), done.stdout) == (1, ""), "torch's dump of the graph is left out"
    assert "unhinted" not in done.stderr


def test_help_has_an_example() -> None:
    assert "Example: nodedrop export runs/first" in " ".join(run("--help").stdout.split())
