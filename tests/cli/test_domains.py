"""`--domain`: for one input or several, and for images that are scaled by mean and deviation."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner, Result

import nodedrop as nd
from nodedrop.cli.app import app
from nodedrop.errors import InputError

TARGET = "tests.cli.test_domains"
LAYERS = {2: lambda: nn.Linear(3, 3), 3: lambda: nn.Conv1d(3, 3, 1), 5: lambda: nn.Conv3d(3, 3, 1)}
NORMALISED = "mean=0.5,0.5,0.5:std=0.5,0.25,0.125"


def coloured() -> nn.Module:
    """Units 0, 1 and 2 are dead if their channel stays within ±1.1, ±2.1 and ±4.1."""
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), nn.Conv2d(4, 2, 1))
    with torch.no_grad():
        model[0].weight.zero_()
        model[0].weight[range(3), range(3)] = 1.0
        model[0].weight[3] = 1.0
        model[0].bias.copy_(torch.tensor([-1.1, -2.1, -4.1, 0.0]))
        model[2].weight.fill_(0.5)
    return model


class Pair(nn.Module):
    """A layer for either input, of which the first unit is dead up to 2."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(4, 1)
        for layer in (self.a, self.b):
            nn.init.ones_(layer.weight)
            nn.init.constant_(layer.bias[:1], -4.5)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.head(torch.cat([self.a(x).relu(), self.b(y).relu()], 1))


def run(command: str, *arguments: object) -> Result:
    return CliRunner().invoke(app, [command, *map(str, arguments)], env={"COLUMNS": "120"})


def dead(model: str, *arguments: object) -> dict[str, int]:
    done = run("inspect", "--model", f"{TARGET}:{model}", *arguments, "--json")
    assert done.exit_code == 0, done.output
    return {layer["layer"]: layer["verdicts"].get("dead", 0) for layer in json.loads(done.stdout)["layers"]}


def test_scaled_images_have_a_box_of_their_own_in_each_channel() -> None:
    example = ("--example", "2,3,4,4")
    assert dead("coloured", *example)["0"] == 3
    assert dead("coloured", *example, "--domain", NORMALISED)["0"] == 3
    assert dead("coloured", *example, "--domain", "-1,4")["0"] == 1
    assert dead("coloured", *example, "--domain", "mean=0.5,0.5,0.5:std=0.125,0.25,0.5")["0"] == 2


def table() -> nn.Module:
    """Units 0 and 1 are dead if their feature stays within ±1.1 and ±2.1."""
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2))
    with torch.no_grad():
        model[0].weight.copy_(torch.eye(3))
        model[0].bias.copy_(torch.tensor([-1.1, -2.1, 0.0]))
    return model


def test_scaled_features_have_a_box_of_their_own() -> None:
    for example in ("2,3", "3,3", "1,3", "2,5,3"):
        assert dead("table", "--example", example, "--domain", NORMALISED)["0"] == 2
    assert dead("table", "--example", "2,3", "--domain", "mean=0,0.5,0.5:std=0.5,0.25,0.125")["0"] == 1


def test_means_of_other_features_are_said() -> None:
    done = run("inspect", "--model", f"{TARGET}:table", "--example", "2,3", "--domain", "mean=0,0:std=1,1")
    assert done.exit_code == 2
    said = "--domain has 2 means and deviations, and an input of shape (2, 3) has no 2 channels or features"
    assert done.stderr == f"nodedrop: {said}\n"


@pytest.mark.parametrize("shape", [(4, 3), (3, 3), (4, 3, 7), (3, 3, 5), (2, 3, 5, 5, 5)])
def test_a_normalised_box_fits_inputs_of_any_number_of_axes(shape: tuple[int, ...]) -> None:
    box = nd.Box.normalised([0.5, 0.5, 0.5], [0.5, 0.25, 0.125])
    layer, head = (LAYERS[len(shape)]() for _ in range(2))
    with torch.no_grad():
        layer.weight.copy_(torch.eye(3).view_as(layer.weight))
        layer.bias.copy_(torch.tensor([-1.1, -2.1, 0.0]))
    found = nd.analyze(nn.Sequential(layer, nn.ReLU(), head), torch.zeros(shape), domain=box)
    assert [unit.index for unit in found.removable if unit.layer == "0"] == [0, 1]


def test_a_normalised_box_of_other_features_says_what_serves() -> None:
    with pytest.raises(InputError, match=r"lo of shape \(2,\) does not fit .* per channel or feature, as nd\.Box"):
        nd.analyze(table(), torch.zeros(4, 3), domain=nd.Box.normalised([0.0, 0.0], [1.0, 1.0]))


def test_inputs_have_domains_of_their_own() -> None:
    two = ("--example", "3,2", "--example", "3,2")
    assert dead("Pair", *two, "--domain", "0,2", "--domain", "0,3") == {"a": 1, "b": 0, "head": 0}
    assert dead("Pair", *two, "--domain", "none", "--domain", "0,2") == {"a": 0, "b": 1, "head": 0}


def test_samples_are_held_against_the_box_of_their_channel(tmp_path: Path) -> None:
    samples = np.zeros((4, 3, 2, 2), dtype=np.float32)
    samples[0, 0] = 2.0  # fine in the other channels
    np.save(tmp_path / "far.npy", samples)
    done = run("inspect", "--model", f"{TARGET}:coloured", "--samples", tmp_path / "far.npy", "--domain", NORMALISED)
    assert done.exit_code == 2
    assert "samples lie between 0 and 2, outside the domain [-4" in " ".join(done.output.split())


def test_a_cut_over_such_a_box_is_proved_from_its_files(tmp_path: Path) -> None:
    model, given = f"{TARGET}:coloured", ("--example", "2,3,4,4", "--domain", NORMALISED)
    files = {name: tmp_path / f"{name}.safetensors" for name in ("before", "after")}
    nd.save(coloured(), files["before"])
    made = ("--model", model, "--weights", files["before"], "--out", files["after"], "--ledger", tmp_path / "l.jsonl")
    assert run("compact", *made, *given).exit_code == 0
    pair = ("--model", model, "--before", files["before"], "--after", files["after"])
    for terms in (given, ("--ledger", tmp_path / "l.jsonl"), ("--ledger", tmp_path / "l.jsonl", *given)):
        done = run("verify", *pair, *terms)
        assert (done.exit_code, done.output[:6]) == (0, "proved"), done.output


@pytest.mark.parametrize(
    "text", ["1,0", "0", "mean=0.5:std=", "mean=1,2:std=1", "mean=1", "mean=1:dev=1", "mean=0.5,0.5:std=0.5,0.5"]
)
def test_a_domain_that_is_none_is_named(text: str) -> None:
    done = run("inspect", "--model", f"{TARGET}:coloured", "--example", "2,3,4,4", "--domain", text)
    assert done.exit_code == 2
    assert "--domain" in done.output
    assert "Traceback" not in done.output
