"""`nodedrop compact` as a user meets it."""

import json
import os
from pathlib import Path

import pytest
import torch
from tests.export.target import all_dead, normed, planted, three
from typer.testing import CliRunner, Result

import nodedrop as nd
from nodedrop.cli.app import app

TARGET = "tests.export.target"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["compact", *(str(argument) for argument in arguments)])


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    nd.save(planted(), tmp_path / "in.safetensors")
    return tmp_path / "in.safetensors"


def test_what_is_proved_goes_and_the_rest_computes_the_same(weights: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.safetensors"
    given = ["--model", f"{TARGET}:planted", "--weights", weights, "--example", "2,4", "--out", out]
    done = run(*given)
    assert done.exit_code == 0, done.output
    assert "3 of 11 units removed (proved, eval and train mode)" in done.stdout
    assert "67 → 43 parameters (1.56× smaller)" in done.stdout
    assert f"wrote {out}" in done.stdout
    small = planted()
    nd.load(small, out)
    assert small[0].out_features == 5
    torch.testing.assert_close(small(three()), planted()(three()))
    again = json.loads(run(*given, "--json").stdout)
    assert {unit["kind"] for unit in again["removed"]} == {"dead", "constant", "unread"}
    assert again["file"] == str(out)


def test_the_ledger_is_one_that_verify_accepts(weights: Path, tmp_path: Path) -> None:
    out, ledger = tmp_path / "out.safetensors", tmp_path / "ledger.jsonl"
    model = ["--model", f"{TARGET}:planted"]
    done = run(*model, "--weights", weights, "--example", "2,4", "--out", out, "--ledger", ledger)
    assert done.exit_code == 0, done.output
    pair = ["--before", str(weights), "--after", str(out), "--ledger", str(ledger)]
    checked = CliRunner().invoke(app, ["verify", *model, *pair])
    assert checked.exit_code == 0, checked.output
    assert sorted(os.listdir(tmp_path)) == ["in.safetensors", "ledger.jsonl", "out.safetensors"]


def test_a_state_dict_of_torch_is_read_too(tmp_path: Path) -> None:
    torch.save(planted().state_dict(), tmp_path / "in.pt")
    out = tmp_path / "out.safetensors"
    done = run("--model", f"{TARGET}:planted", "--weights", tmp_path / "in.pt", "--example", "2,4", "--out", out)
    assert done.exit_code == 0, done.output


def test_mistakes_leave_nothing_behind(weights: Path, tmp_path: Path) -> None:
    dead = tmp_path / "dead.safetensors"
    nd.save(all_dead(), dead)
    before = {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)}
    base = ["--model", f"{TARGET}:planted", "--example", "2,4"]
    out = tmp_path / "out.safetensors"
    for arguments, words in (
        ([*base, "--weights", weights, "--out", weights], "holds the original weights"),
        ([*base, "--weights", weights, "--out", tmp_path / "out.pt"], "are written as safetensors; name the file"),
        ([*base, "--weights", weights, "--out", tmp_path / "none" / "out"], "does not exist; make it first"),
        ([*base, "--weights", tmp_path / "none", "--out", out], "cannot be read"),
        ([*base, "--weights", weights, "--out", out, "--ledger", tmp_path / "no" / "l"], "does not exist"),
        ([*base[:2], "--weights", weights, "--out", out], "say what the network's input looks like"),
        ([*base, "--weights", dead, "--out", out, "--ledger", tmp_path / "ledger"], "would leave the layer empty"),
        ([*base, "--weights", weights, "--out", out, "--on-collapse", "x"], "on_collapse must be"),
    ):
        done = run(*arguments)
        assert done.exit_code == 2
        assert words in done.stderr
        assert done.stderr.count("\n") == 1
    assert {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)} == before


def test_batch_norms_need_the_largest_batch(tmp_path: Path) -> None:
    nd.save(normed(), tmp_path / "in.safetensors")
    files = ["--weights", tmp_path / "in.safetensors", "--out", tmp_path / "out.safetensors"]
    given = ["--model", f"{TARGET}:normed", "--example", "2,4", *files]
    plain = run(*given).stdout
    assert "0 of 5 units removed" in plain
    assert "more can go, 1 with --batch-size 2 (give the largest batch you train with) and 2 with --mode eval" in plain
    done = run(*given, "--batch-size", "64")
    assert "1 of 5 units removed" in done.stdout, done.output


def test_one_unit_is_kept_if_all_could_go(tmp_path: Path) -> None:
    nd.save(all_dead(), tmp_path / "in.safetensors")
    given = ["--weights", tmp_path / "in.safetensors", "--out", tmp_path / "out.safetensors", "--on-collapse", "keep"]
    done = run("--model", f"{TARGET}:planted", "--example", "2,4", *given)
    assert done.exit_code == 0, done.output
    assert "one unit was kept" in done.stdout


def test_help_has_an_example() -> None:
    assert "Example: nodedrop compact --model" in " ".join(run("--help").stdout.split())
