"""`nodedrop sweep` as a user meets it."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli import LISTENING
from tests.experiments.own_target import OWN
from typer.testing import CliRunner, Result

from nodedrop.cli.app import app

TARGET = str(OWN["network"]).partition(":")[0]
TINY = ["--set", f"data={TARGET}:data", "--set", "epochs=2", "--set", "batch=40"]


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["sweep", *(str(argument) for argument in arguments)])


def test_a_sweep_fills_a_table_and_reports_what_failed(tmp_path: Path) -> None:
    nets = f"{TARGET}:net,{TARGET}:broken"
    arguments = ["mnist", "--lam", "1e-3", "--network", nets, *TINY, "--out", tmp_path]
    done = run(*arguments)
    assert done.exit_code == 1
    lines = sorted(done.stderr.splitlines())
    assert len(lines) == 2
    assert lines[0].startswith("[1/2] mnist-lam1e-03-seed0-")
    assert any("failed: RuntimeError: out of luck" in line for line in lines)
    assert any("24 units          483 parameters" in line for line in lines)
    assert len({line.index("test error" if "test error" in line else "failed") for line in lines}) == 1
    assert "failed" in done.stdout
    again = run(*arguments[:4], f"{TARGET}:net", *arguments[5:], "--json")
    assert again.exit_code == 0
    (outcome,) = json.loads(again.stdout)
    assert outcome["status"] == "done"
    assert outcome["result"]["units_dense"] == 24


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["minst"], "there is no recipe 'minst'"),
        (["mnist", "--lam", "1e-5,x"], "--lam needs numbers with commas in between, and got '1e-5,x'"),
        (["mnist", "--lam", "-1"], "lam must be at least 0"),
        (["mnist", "--seed", "0.5"], "--seed needs numbers"),
        (["mnist", "--network", "mnist-dense160,x"], "network must be one of"),
        (["mnist", "--set", "lam=1"], "lam is what the runs differ in"),
        (["mnist", "--profile", "x"], "there is no profile 'x'"),
        (["cifar10-vgg16", "--data-dir", "."], "(see --data-dir and --download)"),
    ],
)
def test_a_mistake_is_one_sentence_and_leaves_nothing(arguments: list[str], words: str, tmp_path: Path) -> None:
    done = run(*arguments, "--out", tmp_path / "runs")
    assert done.exit_code == 2
    assert words in done.stderr
    assert done.stderr.startswith("nodedrop: ")
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_help_has_an_example_and_says_what_zero_is() -> None:
    text = " ".join(run("--help").stdout.replace("│", "").split())
    assert "Example: nodedrop sweep mnist" in text
    assert "λ = 0 is the paper's dense baseline" in text


def test_ctrl_c_stops_all_runs_with_checkpoints(tmp_path: Path) -> None:
    start = [sys.executable, "-c", LISTENING, "sweep", "mnist", "--out", str(tmp_path)]
    nets = ["--network", f"{TARGET}:broken,{TARGET}:net,{TARGET}:wide", "--workers", "2", "--lam", "1e-3"]
    tiny = ["--set", f"data={TARGET}:data", "--set", "epochs=1000000", "--set", "batch=40"]
    environment = {**os.environ, "PYTHONPATH": "."}
    with subprocess.Popen(
        [*start, *nets, *tiny], stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
    ) as process:
        assert process.stderr is not None
        assert "out of luck" in process.stderr.readline()  # so the second run is under way, or about to be
        os.killpg(process.pid, signal.SIGINT)
        said = process.communicate(timeout=120)[1]
        assert process.returncode == 130
    assert "stopped with 1 of 3 runs ended; go on with the same command: nodedrop sweep mnist" in said
    assert "Traceback" not in said
    for config in tmp_path.glob("*/config.json"):
        assert "broken" in config.parent.name or list(config.parent.glob("checkpoint/step-*"))
