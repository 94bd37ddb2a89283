"""The command line as a newcomer meets it."""

import json
import os
import subprocess
import sys
from pathlib import Path

from typer.testing import CliRunner

import nodedrop
from nodedrop.cli.app import app


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from nodedrop.cli import main; main()", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_demo_shows_the_network_shrink(tmp_path: Path) -> None:
    done = run("demo", "--quick", "--out", str(tmp_path / "demo"))
    assert done.returncode == 0, done.stderr
    assert "× fewer" in done.stdout
    assert "predictions differ" in done.stdout
    outcome = json.loads((tmp_path / "demo" / "outcome.json").read_text())
    assert outcome["units"] < outcome["units_dense"] == 160
    assert outcome["predictions_changed"] == 0
    assert outcome["logit_change"] < 1e-4
    page = (tmp_path / "demo" / "index.html").read_text()
    assert f"{outcome['test_error']:.2f} % test error" in page
    assert page.count("<svg") == 2
    assert "http" not in page.replace("http://www.w3.org", "").replace("http://purl.org", "").replace(
        "http://creativecommons.org", ""
    ), "nothing is loaded from elsewhere"


def test_the_shell_completes_commands() -> None:
    wanted = {"_NODEDROP_COMPLETE": "complete_bash", "COMP_WORDS": "nodedrop rep", "COMP_CWORD": "1"}
    start = "import sys; sys.argv[0] = 'nodedrop'; from nodedrop.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", start], env=os.environ | wanted, capture_output=True, text=True, check=True
    )
    assert sorted(done.stdout.split()) == ["report", "reproduce"]


def test_demo_does_not_touch_a_folder_with_other_things(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    done = run("demo", "--quick", "--out", str(tmp_path))
    assert done.returncode == 2
    assert "choose another folder" in done.stderr
    assert (tmp_path / "thesis.tex").exists()


def test_version_help_and_mistakes() -> None:
    assert run("--version").stdout.strip() == nodedrop.__version__
    assert "Example" in CliRunner().invoke(app, ["demo", "--help"]).stdout
    wrong = run("demmo")
    assert wrong.returncode == 2
    assert "Traceback" not in wrong.stderr
