"""`nodedrop inspect` as a user meets it."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.export.target import INSTANCE, planted, three
from typer.testing import CliRunner, Result

import nodedrop as nd
from nodedrop.cli.app import app

TARGET = "tests.export.target"
PLANTED = ["--model", f"{TARGET}:planted", "--example", "2,4"]
PAIR = ["--model", f"{TARGET}:Pair", "--example", "2,4"]


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["inspect", *(str(argument) for argument in arguments)], env={"COLUMNS": "120"})


def found(*arguments: object) -> dict:
    done = run(*arguments, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_every_unit_has_one_verdict_and_the_open_ones_a_reason() -> None:
    outcome = found(*PLANTED)
    hidden, head = outcome["layers"]
    assert outcome["units"] == 11 == sum(outcome["verdicts"].values())
    verdicts = {unit["index"]: unit["verdict"] for unit in hidden["units"]}
    assert {index: word for index, word in verdicts.items() if word != "undecided"} == {
        1: "dead", 2: "constant", 3: "unread",
    }  # fmt: skip
    assert head["verdicts"]["pinned"] == 3
    for unit in (*hidden["units"], *head["units"]):
        assert bool(unit["reason"]) is (unit["verdict"] in ("undecided", "pinned"))
    assert hidden["units"][4]["reason"] == "an upper bound of 0.1, and at most 0 is needed"
    bounds = [unit["bound"] for unit in hidden["units"]]
    assert sum(item["units"] for item in outcome["histogram"]) == sum(bound is not None for bound in bounds)
    assert outcome["histogram"][0] == {"above": -1.0, "up_to": -0.1, "units": 1}


@pytest.mark.parametrize("kind", ["factory", "file"])
def test_samples_tell_what_fires_and_what_never_did(kind: str, tmp_path: Path) -> None:
    np.save(tmp_path / "samples.npy", three().numpy())
    samples = f"{TARGET}:three" if kind == "factory" else tmp_path / "samples.npy"
    outcome = found("--model", f"{TARGET}:planted", "--samples", samples)
    assert outcome["samples"] == 60
    net, units = planted(), outcome["layers"][0]["units"]
    values = net[0](three()).amax(0).detach()
    for unit in units:
        assert unit["seen"] == pytest.approx(float(values[unit["index"]]), abs=1e-6)
    assert units[4]["verdict"] == "silent"
    assert units[4]["reason"].startswith("at most -")
    assert "on 60 samples; an upper bound of 0.1" in units[4]["reason"]
    assert {unit["verdict"] for unit in units} == {"dead", "constant", "unread", "silent", "fires"}


def test_the_table_fits_and_names_what_stands_in_the_way() -> None:
    text = run(*PLANTED).stdout
    assert "units, proved for eval and train mode" in text
    assert "0: 5 undecided: upper bounds from 0.1 on, at most 0 is needed" in text
    assert "2: 3 pinned: network output" in text
    assert "up to -0.1 ████" in text
    assert max(map(len, run("--model", f"{TARGET}:planted", "--samples", f"{TARGET}:three").stdout.splitlines())) <= 120


def test_an_activation_without_a_zero_region_is_the_reason() -> None:
    outcome = found("--model", f"{TARGET}:smooth", "--example", "2,4")
    (reason,) = {unit["reason"] for unit in outcome["layers"][0]["units"]}
    assert reason == "GELU has no zero region"


def test_weights_and_domain_count(tmp_path: Path) -> None:
    net = planted()
    with torch.no_grad():
        net[0].bias[4] = -5.0
    nd.save(net, tmp_path / "w.safetensors")
    assert found(*PLANTED, "--weights", tmp_path / "w.safetensors")["verdicts"]["dead"] == 2
    assert found(*PLANTED, "--weights", tmp_path / "w.safetensors", "--domain=-8,8")["verdicts"]["dead"] == 0


def test_batch_norms_need_the_largest_batch() -> None:
    given = ["--model", f"{TARGET}:normed", "--example", "2,4"]
    assert found(*given)["verdicts"]["dead"] == 0
    assert found(*given, "--batch-size", "65")["verdicts"]["dead"] == 0
    assert found(*given, "--batch-size", "64")["verdicts"]["dead"] == 1
    words = "in train mode this holds for batches of at most 64"
    assert words in run(*given, "--batch-size", "64").stdout
    assert words not in run(*PLANTED, "--batch-size", "64").stdout, "without one any batch will do"


def test_a_network_may_be_named_itself() -> None:
    outcome = found("--model", f"{TARGET}:INSTANCE", "--example", "2,4")
    assert outcome["layers"] == found(*PLANTED)["layers"]
    assert INSTANCE.training, "it was a copy that was looked at"


def test_linear_bounds_and_what_they_cost() -> None:
    given = ["--model", f"{TARGET}:correlated", "--example", "2,1:float64", "--domain=-1,1"]
    assert found(*given)["verdicts"]["dead"] == 0
    outcome = found(*given, "--bounds", "linear")
    assert outcome["verdicts"]["dead"] == 1
    assert (outcome["proved"], outcome["proved_interval"]) == (1, 0)
    assert outcome["seconds"] > 0
    said = run(*given, "--bounds", "linear").stdout
    assert "prove 1 units that can go; intervals took" in said.replace("\n", " ")


def test_the_network_of_a_run(tmp_path: Path) -> None:
    mine = ["--model", "tests.experiments.own_target:net", "--data", "tests.experiments.own_target:data"]
    small = ["--set", "epochs=1", "--set", "batch=40", "--out", str(tmp_path / "run")]
    assert CliRunner().invoke(app, ["train", *mine, *small]).exit_code == 0
    outcome = found(tmp_path / "run")
    assert outcome["samples"] == 100
    assert outcome["verdicts"]["undecided"] == 0


def test_a_dead_unit_that_something_keeps_is_pinned_and_not_merely_silent(tmp_path: Path) -> None:
    np.save(tmp_path / "samples.npy", three().numpy())
    outcome = found("--model", f"{TARGET}:all_dead", "--samples", tmp_path / "samples.npy")
    assert outcome["verdicts"]["silent"] == 0
    kept = [unit for unit in outcome["layers"][0]["units"] if unit["verdict"] != "dead"]
    assert [(unit["verdict"], unit["reason"]) for unit in kept] == [("pinned", "it is the last unit of its layer")]


def test_a_network_is_named_by_its_file(tmp_path: Path) -> None:
    (tmp_path / "beside_it.py").write_text("WIDTH = 5\n")
    made = "net = nn.Sequential(nn.Linear(4, beside_it.WIDTH), nn.ReLU())"
    lines = ["from torch import nn", "import beside_it", made]
    (tmp_path / "my_net_in_a_file.py").write_text("\n".join(lines))
    outcome = found("--model", f"{tmp_path / 'my_net_in_a_file.py'}:net", "--example", "2,4")
    assert sum(outcome["verdicts"].values()) == 5


def test_a_file_with_the_name_of_another_module(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("def net(): return None\n")
    done = run("--model", f"{tmp_path / 'torch.py'}:net", "--example", "2,4")
    assert done.exit_code == 2
    assert "has the name of another module" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "name either the folder of a run or your own network"),
        (["."], "'.' holds no run"),
        (["nosuchrun"], "there is no folder 'nosuchrun'"),
        ([".", "--domain", "0,1"], "a run knows its weights, domain and data"),
        (["--model", f"{TARGET}:planted"], "say what the network's input looks like"),
        (["--model", f"{TARGET}:three", "--example", "2,4"], "must return an nn.Module, and returned a value of type"),
        (["--model", "nothing:net", "--example", "2,4"], "cannot be imported: ModuleNotFoundError"),
        (["--model", "nothing.py:net", "--example", "2,4"], "there is no file 'nothing.py'"),
        ([*PLANTED, "--domain", "1,0"], "--domain needs two numbers such as 0,1"),
        ([*PLANTED, "--weights", "none.safetensors"], "'none.safetensors' cannot be read"),
        ([*PLANTED, "--mode", "test"], "mode must be 'both', 'train' or 'eval'"),
        ([*PLANTED, "--samples", "none.npy"], "'none.npy' cannot be read as an array"),
        (["--model", f"{TARGET}:planted", "--samples", f"{TARGET}:wide"], "samples lie between -3 and 3"),
        ([*PLANTED, "--samples", "minst"], "there is no data set 'minst'"),
        ([*PLANTED, "--samples", "mnist"], "samples of shape (1000, 1, 28, 28) do not fit"),
        ([*PLANTED, "--samples", "cifar10", "--data-dir", "."], "load('cifar10', download=True)\" downloads it"),
        (["--model", f"{TARGET}:planted", "--example", "2,x"], "--example needs a shape such as"),
        (["--model", f"{TARGET}:planted", "--example", "2,4:nothing"], "--example needs a shape such as"),
        (["--model", f"{TARGET}:planted", "--example", "2,5"], "the model does not run on the example inputs"),
        ([*PAIR, "--example", "2,3"], "; for token indices write --example 2,16:int64"),
        (PAIR, "; repeat --example, one per input"),
    ],
)
def test_a_mistake_is_one_sentence(arguments: list[str], words: str) -> None:
    done = run(*arguments)
    assert done.exit_code == 2
    assert words in done.stderr
    assert done.stderr.startswith("nodedrop: ")
    assert done.stderr.count("\n") == 1


def test_help_has_an_example() -> None:
    assert "Example: nodedrop inspect --model" in " ".join(run("--help").stdout.split())
