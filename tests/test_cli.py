"""The command line as a newcomer meets it."""

import json
import subprocess
import sys

import nodedrop


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from nodedrop.cli import main; main()", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_demo_shows_the_network_shrink() -> None:
    done = run("demo")
    assert done.returncode == 0
    assert "compact_ removed" in done.stdout
    assert "Linear(in_features=" in done.stdout


def test_demo_as_json_accounts_for_every_unit() -> None:
    outcome = json.loads(run("demo", "--json").stdout)
    layers = outcome["analysis"]["layers"]
    statuses = [unit["status"] for layer in layers for unit in layer["units"]]
    assert statuses.count("removed") == len(outcome["removed"]) > 40
    assert {c["kind"] for c in outcome["removed"]} == {"dead", "constant", "unread"}
    assert outcome["parameters_after"] * 2 < outcome["parameters_before"]
    assert outcome["largest_logit_change"] < 1e-6


def test_version_help_and_mistakes() -> None:
    assert run("--version").stdout.strip() == nodedrop.__version__
    assert "Example" in run("demo", "--help").stdout
    wrong = run("demmo")
    assert wrong.returncode == 2
    assert "Traceback" not in wrong.stderr
