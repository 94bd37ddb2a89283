"""`nodedrop verify` on files: what it answers, with which exit code, and what it prints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner, Result

import nodedrop as nd
from nodedrop.cli.app import app

HERE = "tests.verify.test_command"


def network() -> nn.Sequential:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 2))
    with torch.no_grad():
        net[0].bias.fill_(1.0)
        net[0].bias[[1, 4]] = -99.0
    return net


class Tokens(nn.Module):
    """Only token 7 makes the last unit fire; the example has none."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.fc1, self.fc2 = nn.Embedding(9, 4), nn.Linear(4, 3), nn.Linear(3, 2)
        with torch.no_grad():
            self.embed.weight.uniform_(0.0, 1.0)
            self.embed.weight[7] = 30.0
            self.fc1.weight.uniform_(0.5, 1.0)
            self.fc1.bias[2] = -20.0

    def forward(self, ids: Tensor) -> Tensor:
        return self.fc2(self.fc1(self.embed(ids)).relu())


def cancelling() -> nn.Sequential:
    """x − x is 0, and intervals do not know it."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(1, 2), nn.Identity(), nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1))
    with torch.no_grad():
        net[0].weight.fill_(1.0)
        net[0].bias.zero_()
        net[2].weight.copy_(torch.tensor([[1.0, -1.0], [1.0, 1.0]]))
        net[2].bias.zero_()
    return net


def without(net: nn.Module, maker: str, reader: str, unit: int) -> nn.Module:
    """A unit taken out by hand."""
    first, second = net.get_submodule(maker), net.get_submodule(reader)
    keep = [k for k in range(first.out_features) if k != unit]
    first.weight, first.bias = nn.Parameter(first.weight[keep]), nn.Parameter(first.bias[keep])
    second.weight = nn.Parameter(second.weight[:, keep])
    first.out_features = second.in_features = len(keep)
    return net


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """A pair with its ledger, and the same with a live unit taken out."""
    nd.save(network(), tmp_path / "before")
    small = network()
    nd.compact_(small, torch.rand(2, 3), ledger=tmp_path / "ledger")
    nd.save(small, tmp_path / "after")
    nd.save(without(network(), "0", "2", 3), tmp_path / "wrong")
    return {name: str(tmp_path / name) for name in ("before", "after", "wrong", "ledger")}


def said(before: str, after: str, *more: str, model: str = "network") -> Result:
    named = ["--before", before, "--after", after, "--model", f"{HERE}:{model}"]
    return CliRunner().invoke(app, ["verify", *named, *more])


def test_a_wrong_model_is_refuted_by_unit_bound_and_input(files: dict[str, str]) -> None:
    done = said(files["before"], files["wrong"], "--ledger", files["ledger"])
    assert done.exit_code == 1, done.output
    assert "the ledger speaks of another model" in done.output
    assert "reads unit 3 of '0.weight', which was removed and may be as large as" in done.output
    assert "outputs differ by" in done.output
    assert "on the input" in done.output
    found = json.loads(said(files["before"], files["wrong"], "--ledger", files["ledger"], "--json").output)
    x = torch.tensor(found["counterexample"]["inputs"][0])
    pair = [network(), without(network(), "0", "2", 3)]
    with torch.no_grad():
        assert not torch.allclose(pair[0](x), pair[1](x), rtol=1e-3)


def test_a_forged_ledger_of_a_true_pair_says_so(files: dict[str, str]) -> None:
    Path(files["ledger"]).write_text("nothing\n")
    done = said(files["before"], files["after"], "--ledger", files["ledger"], "--example", "2,3")
    assert done.exit_code == 1
    assert "line 1 of the ledger is none of its format; the pair is proved without it" in done.output


def test_tokens_are_tried(tmp_path: Path) -> None:
    nd.save(Tokens(), tmp_path / "before")
    nd.save(without(Tokens(), "fc1", "fc2", 2), tmp_path / "after")
    done = said(str(tmp_path / "before"), str(tmp_path / "after"), "--example", "2,5:int64", "--json", model="Tokens")
    assert done.exit_code == 1, done.output
    assert 7 in torch.tensor(json.loads(done.output)["counterexample"]["inputs"][0]).flatten().tolist()


def test_an_example_that_does_not_fit_is_a_wrong_question(files: dict[str, str]) -> None:
    done = said(files["before"], files["after"], "--example", "2,5")
    assert done.exit_code == 2
    assert "network takes no input of shape (2, 5); give one that it takes, --example" in " ".join(done.stderr.split())


def test_a_folder_that_is_not_there_is_said() -> None:
    done = CliRunner().invoke(app, ["verify", "nosuchrun"])
    assert done.exit_code == 2
    assert "there is no folder 'nosuchrun'; name that of a run" in done.stderr


def test_swapped_files_get_a_hint(files: dict[str, str]) -> None:
    done = said(files["after"], files["before"], "--example", "2,3")
    assert done.exit_code != 0
    assert "the second module is the larger one: are the two swapped?" in done.output


def test_another_width_of_the_output_is_refuted(files: dict[str, str], tmp_path: Path) -> None:
    net = network()
    net[4] = nn.Linear(4, 1)
    nd.save(net, tmp_path / "narrow")
    done = said(files["before"], str(tmp_path / "narrow"), "--example", "2,3")
    assert done.exit_code == 1, done.output
    assert "the outputs have the shapes [[2, 1]] in the second module, and [[2, 2]] in the first" in done.output


def test_what_cannot_be_decided_is_left_open(tmp_path: Path) -> None:
    nd.save(cancelling(), tmp_path / "before")
    nd.save(without(cancelling(), "2", "4", 0), tmp_path / "after")
    done = said(str(tmp_path / "before"), str(tmp_path / "after"), "--example", "2,1", model="cancelling")
    assert done.exit_code == 3, done.output
    assert done.output.startswith("not proved: ")
    assert "linear.py" not in done.output  # torch's own file


def test_nothing_is_said_of_inputs_where_there_is_nothing_to_say(files: dict[str, str]) -> None:
    done = said(files["before"], files["after"], "--ledger", files["ledger"], "--domain", "0,2")
    assert done.exit_code == 1
    assert "inputs: \n" not in done.output
    assert not done.output.rstrip().endswith("inputs:")


def test_what_is_no_question_is_refused() -> None:
    model, x = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), torch.rand(2, 4)
    for given, options, words in [
        (("m", model, x), {}, "before must be an nn.Module, not str"),
        ((model, None, x), {}, "after must be an nn.Module, not NoneType"),
        ((model, model, "x"), {}, "example_inputs must be a tensor, a tuple or a dict"),
        ((model, model, x), {"ledger": "nowhere.jsonl"}, r"there is no ledger 'nowhere\.jsonl'"),
        ((model, model, x), {"batch_size": 0}, "batch_size must be at least 1, not 0"),
        ((model, model, x), {"modes": "evil"}, "modes are eval, train or both, not"),
    ]:
        with pytest.raises((TypeError, ValueError), match=words):
            nd.verify(*given, **options)
    assert nd.verify(model, model, x, modes="eval").modes == ("eval",)
    assert nd.verify(model, model, x, modes="both").modes == ("eval", "train")
