"""`nodedrop verify` as a user meets it: what helps to read an answer."""

import json
from pathlib import Path

import pytest
import torch
from tests.export.target import convolutional, normed
from torch import nn
from typer.testing import CliRunner, Result

import nodedrop as nd
from nodedrop.cli.app import app

TARGET = "tests.export.target"
HINT = "give --batch-size N, the largest batch you train with, or --mode eval"


def run(folder: Path, model: str, *arguments: str) -> Result:
    pair = ["--before", str(folder / "before"), "--after", str(folder / "after"), "--model", f"{TARGET}:{model}"]
    return CliRunner().invoke(app, ["verify", *pair, *arguments])


@pytest.fixture
def normed_pair(tmp_path: Path) -> Path:
    model = normed()
    nd.save(model, tmp_path / "before")
    nd.compact_(model, torch.rand(2, 4), batch_size=64)
    nd.save(model, tmp_path / "after")
    return tmp_path


def test_batch_norm_without_a_largest_batch_gets_a_hint(normed_pair: Path) -> None:
    done = run(normed_pair, "normed", "--example", "2,4")
    assert done.exit_code == 3, done.output
    assert HINT in done.stdout.splitlines()[-1]
    assert "--batch-size" not in run(normed_pair, "normed", "--example", "2,4", "--json").stdout


@pytest.mark.parametrize("terms", [["--batch-size", "64"], ["--mode", "eval"]])
def test_what_the_hint_says_helps(normed_pair: Path, terms: list[str]) -> None:
    done = run(normed_pair, "normed", "--example", "2,4", *terms)
    assert done.exit_code == 0, done.output
    assert HINT not in done.stdout


def test_of_an_input_that_shows_a_difference_a_few_numbers_are_printed(tmp_path: Path) -> None:
    model = convolutional()
    nd.save(model, tmp_path / "before")
    nn.init.zeros_(model[7].weight)
    nd.save(model, tmp_path / "after")
    done = run(tmp_path, "convolutional", "--example", "2,1,28,28")
    assert done.exit_code == 1, done.output
    (line,) = (line for line in done.stdout.splitlines() if "outputs differ by" in line)
    told = line.partition(" on the input of shape (2, 1, 28, 28) that begins ")[2]
    numbers = told.partition(" (--json")[0].split(", ")
    assert len(numbers) == 6
    whole = json.loads(run(tmp_path, "convolutional", "--example", "2,1,28,28", "--json").stdout)["counterexample"]
    first = torch.tensor(whole["inputs"][0])
    assert first.shape == (2, 1, 28, 28)
    assert [float(number) for number in numbers] == pytest.approx(first.flatten()[:6].tolist(), rel=1e-3, abs=1e-6)
    assert len(done.stdout.splitlines()) <= 4
