"""`nodedrop train` as a user meets it."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli import LISTENING
from tests.experiments.own_target import OWN
from typer.testing import CliRunner, Result

from nodedrop.cli.app import app
from nodedrop.export import extras

TARGET = str(OWN["network"]).partition(":")[0]
MINE = ["--model", f"{TARGET}:net", "--data", f"{TARGET}:data", "--set", "epochs=2", "--set", "batch=40"]


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["train", *(str(argument) for argument in arguments)])


def test_a_recipe_trains_and_its_outcome_is_told(tmp_path: Path) -> None:
    done = run("mnist", "--set", "images=300", "--set", "epochs=1", "--set", "lam=1e-3", "--out", tmp_path / "run")
    assert done.exit_code == 0
    figures = r"epoch 1/1  error: train [\d.]+ %, test [\d.]+ %  160 units  49,850 parameters \(0\.0 % fewer\)"
    assert re.search(figures, done.stderr)
    for words in ("test error", "before the final cut", "160 → ", "49,850 → ", "largest logit change", "seconds"):
        assert words in done.stdout
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == [
        "config.json", "cuts", "ledger.jsonl", "lock", "metrics.jsonl", "model.safetensors", "result.json",
    ]  # fmt: skip


def test_ones_own_network_and_data(tmp_path: Path) -> None:
    done = run(*MINE, "--domain=-1,1", "--out", tmp_path / "run", "--json")
    assert done.exit_code == 0
    result = json.loads(done.stdout)
    assert result["units_dense"] == 24
    assert result["recipe"]["domain"] == "-1,1"
    assert result["folder"] == str(tmp_path / "run")
    again = run("--resume", "--out", tmp_path / "run", "--json")
    assert json.loads(again.stdout) == result


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["minst"], "there is no recipe 'minst', did you mean mnist? there are mnist, "),
        (["nothing"], "there is no recipe 'nothing'; there are mnist, "),
        ([], "name a recipe, such as mnist, or your own network"),
        (["mnist", "--profile", "long"], "there is no profile 'long'"),
        (["mnist", "--set", "lam=-1"], "lam must be at least 0, not -1.0"),
        (["mnist", "--set", "lamb=1"], "a recipe has no value 'lamb', did you mean lam? there are network, "),
        (["mnist", "--set", "lam"], "--set needs name=value"),
        (["mnist", "--set", "network=mnist-dense1"], "network must be one of mnist-dense160, "),
        (["cifar10-vgg16", "--data-dir", "."], "(see --data-dir and --download)"),
        (["--model", "no.such.module:net"], "'no.such.module:net' cannot be imported: ModuleNotFoundError"),
        (["--model", f"{TARGET}:nothing"], f"the module of '{TARGET}:nothing' has no 'nothing'"),
        (["--model", f"{TARGET}:"], "must have the form package.module:factory"),
        (["--model", f"{TARGET}:value"], "is a value of type int; name a function"),
        (["--model", f"{TARGET}:data"], "must return an nn.Module, and returned a value of type Data"),
        (["--model", f"{TARGET}:fails"], f"'{TARGET}:fails()' failed: KeyError: 'no such thing'"),
        (["--model", f"{TARGET}:five"], "must return 3 logits per image"),
        (["--model", f"{TARGET}:narrow"], "cannot read images of 1×4×4: RuntimeError"),
        (["--model", f"{TARGET}:net", "--data", f"{TARGET}:net"], "must return a nodedrop.experiments.data.Data"),
        (["--model", f"{TARGET}:net", "--data", f"{TARGET}:floats"], "the train images of"),
        (["--model", f"{TARGET}:net", "--data", f"{TARGET}:labels"], "labels of"),
        (["--model", f"{TARGET}:net", "--set", "network=vgg16"], "network is given twice, by --set and by"),
        (["--model", f"{TARGET}:net", "--set", "width=2"], "width can be set for the package's networks only"),
        (["--model", f"{TARGET}:net", "--domain", "1,0"], "domain must be two numbers"),
        (["--resume"], "name a recipe"),
    ],
)
def test_a_mistake_is_one_sentence_and_leaves_nothing(arguments: list[str], words: str, tmp_path: Path) -> None:
    if "--model" in arguments and "--data" not in arguments:
        arguments = [*arguments, "--data", f"{TARGET}:data"]
    out = [] if arguments == ["--resume"] else ["--out", tmp_path / "run"]
    done = run(*arguments, *out)
    assert done.exit_code == 2
    assert words in done.stderr
    assert done.stderr.startswith("nodedrop: ")
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_data_that_nobody_named_is_named_in_the_sentence(tmp_path: Path) -> None:
    done = run("--model", f"{TARGET}:narrow", "--out", tmp_path / "run")
    assert done.exit_code == 2
    assert "cannot read images of 1×28×28 (mnist, unless --data names other data): RuntimeError" in done.stderr


def test_folders_that_cannot_be_used(tmp_path: Path) -> None:
    assert run(*MINE, "--out", tmp_path / "run").exit_code == 0
    taken = run(*MINE, "--out", tmp_path / "run")
    other = run(*MINE, "--set", "epochs=3", "--out", tmp_path / "run", "--resume")
    empty = run("--resume", "--out", tmp_path / "empty")
    (tmp_path / "file").write_text("")
    blocked = run(*MINE, "--out", tmp_path / "file" / "run")
    for done, words in (
        (taken, "holds a run already"),
        (other, "has epochs=2, not 3"),
        (empty, "holds no run to go on with"),
        (blocked, "cannot be written to"),
    ):
        assert done.exit_code == 2
        assert words in done.stderr


def test_a_folder_with_nothing_to_resume_is_said_and_trained(tmp_path: Path) -> None:
    words = f"nothing to resume in {tmp_path / 'run'}, beginning anew\n"
    first = run(*MINE, "--out", tmp_path / "run", "--resume")
    assert first.exit_code == 0, "a scheduler gives --resume the first time, too"
    assert words in first.stderr
    assert words not in run(*MINE, "--out", tmp_path / "run", "--resume").stderr
    assert words not in run(*MINE, "--out", tmp_path / "other").stderr


def test_curves_for_tensorboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = tmp_path / "run"
    assert run(*MINE, "--tensorboard", "--out", folder).exit_code == 0
    events = EventAccumulator(str(folder / "tensorboard")).Reload()
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for name in ("test_error", "units", "parameters"):
        found = [(event.step, event.value) for event in events.Scalars(name)]
        assert found == [(row["step"], pytest.approx(row[name])) for row in rows if row["epoch"]]
    assert [event.value for event in events.Scalars("width/1")] == [row["widths"][0] for row in rows if row["epoch"]]
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    done = run(*MINE, "--tensorboard", "--out", tmp_path / "other")
    assert done.exit_code == 2
    assert "tensorboard; install with: pip install 'nodedrop[report]'" in done.stderr
    assert not (tmp_path / "other").exists()


def test_help_has_an_example() -> None:
    assert "Example: nodedrop train mnist" in " ".join(run("--help").stdout.split())


def test_ctrl_c_writes_a_checkpoint_and_says_how_to_go_on(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    start = [sys.executable, "-c", LISTENING, "train"]
    mine = [*MINE[:4], "--set", "epochs=3000", "--set", "batch=40", "--set", "evaluate=3", "--out", str(folder)]
    with subprocess.Popen([*start, *mine], stderr=subprocess.PIPE, text=True, env=dict(os.environ)) as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("epoch 3/3000")
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=120)[1]
        assert process.returncode == 130
    assert said.splitlines()[-1] == f"stopped; go on with: nodedrop train --resume --out {folder}"
    (checkpoint,) = folder.glob("checkpoint/*")
    assert checkpoint.stat().st_size > 0
    assert not (folder / "result.json").exists()
