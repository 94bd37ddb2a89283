"""What the ledger of a run states beside its proofs, forged with the chain mended; and units that were not dead."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.verify.forging import Lines, mended, read, write
from torch import Tensor, nn

import nodedrop as nd
from nodedrop.verify import Verdict
from nodedrop.verify.run import verify_run


def dense() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2))


def images() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 6, 3, padding=1), nd.SoftClampedReLU(), nn.Flatten(), nn.Linear(6 * 16, 2))


INPUTS = {dense: (3, 2, 4), images: (2, 2, 4, 4)}


def runs(build: Callable[[], nn.Module], folder: Path) -> nn.Module:
    """Two cuts of units of each layer, two in the first and one in the second, with a step between them."""
    model = build()
    drop = nd.NodeDrop(model, None, torch.rand(INPUTS[build]), domain=(-1.0, 1.0), ledger=folder / "ledger.jsonl")
    layers = [layer for layer in model if isinstance(layer, nn.Linear | nn.Conv2d)]
    for number, dying in ((1, [1, 4]), (2, [2])):
        with torch.no_grad():
            for layer in layers[:-1]:
                layer.weight.mul_(1.01)
                layer.bias[dying] = -30.0
        drop.step = 10 * number
        assert drop.drop() is not None
    return model


@pytest.fixture(scope="module", params=[dense, images])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("run")
    return request.param, runs(request.param, folder), folder


def forged(run: Any, tmp_path: Path, forge: Callable[[Lines, Path], Any]) -> Verdict:
    build, last, source = run
    folder = tmp_path / "run"
    shutil.copytree(source, folder)
    lines = read(folder / "ledger.jsonl")
    forge(lines, folder)
    write(folder / "ledger.jsonl", mended(lines))
    return verify_run(build(), last, torch.zeros(INPUTS[build]), folder / "ledger.jsonl")


def _cut(lines: Lines, number: int = 1) -> dict[str, Any]:
    return next(line for line in lines if line["line"] == "cut" and line["cut"] == number)


def _above(lines: Lines, folder: Path) -> None:
    """A bound with which the unit would not be dead."""
    next(line for line in lines if line["line"] == "unit" and line["bound"] is not None)["bound"] = 0.5


def _below(lines: Lines, folder: Path) -> None:
    next(line for line in lines if line["line"] == "unit" and line["bound"] is not None)["bound"] -= 1.0


def _silent(lines: Lines, folder: Path) -> None:
    next(line for line in lines if line["line"] == "unit" and line["bound"] is not None)["bound"] = None


def _step(lines: Lines, number: int, step: int) -> None:
    for line in lines[1:]:
        line["step"] = step if line["cut"] == number else line["step"]


def _earlier(lines: Lines, folder: Path) -> None:
    _step(lines, 2, 9)


def _negative(lines: Lines, folder: Path) -> None:
    _step(lines, 1, -1)


def _unlike(lines: Lines, folder: Path) -> None:
    next(line for line in lines if line["line"] == "unit")["step"] += 1


def _unchanged(lines: Lines, folder: Path) -> None:
    """A cut after which the model is the one before it."""
    _cut(lines)["after"] = _cut(lines)["before"]


def _again(lines: Lines, folder: Path) -> None:
    _cut(lines, 2)["after"] = lines[0]["fingerprint"]


def _skipped(lines: Lines, folder: Path) -> None:
    _cut(lines, 2)["before"] = lines[0]["fingerprint"]


def _words(lines: Lines, folder: Path) -> None:
    _cut(lines)["before"] = "x" * 64


def _last(lines: Lines, folder: Path) -> None:
    """The model at the end is said to have been there before the last cut."""
    cuts = [line for line in lines if line["line"] == "cut"]
    cuts[1]["before"], cuts[1]["after"] = cuts[1]["after"], cuts[1]["before"]


def _swapped(lines: Lines, folder: Path) -> None:
    """Each of two units of a layer is told with the bias of the other."""
    one, two = [line for line in lines if line["line"] == "unit"][:2]
    key = f"{one['layer']}.bias:0"
    one["with"][key], two["with"][key] = two["with"][key], one["with"][key]


@pytest.mark.parametrize(
    "forge",
    [_swapped, _above, _below, _silent, _earlier, _negative, _unlike, _unchanged, _again, _skipped, _words, _last],
)
def test_a_run_that_states_what_cannot_be_is_refuted(run: Any, tmp_path: Path, forge: Any) -> None:
    assert forged(run, tmp_path, lambda lines, folder: None).status == "proved"
    shutil.rmtree(tmp_path / "run")
    assert forged(run, tmp_path, forge).status == "refuted"


def rewritten(lines: Lines, folder: Path, change: Callable[[dict[str, Tensor]], Any]) -> None:
    """What the first cut kept is changed, and its hash with it."""
    path = folder / _cut(lines)["witness"]["file"]
    kept = load_file(path)
    change(kept)
    save_file(kept, path)
    _cut(lines)["witness"]["sha256"] = sha256(path.read_bytes()).hexdigest()


def own_bias(kept: dict[str, Tensor], layer: str) -> Tensor:
    """That of unit 1, the one that goes first."""
    whole = kept.get(f"whole/{layer}.bias")
    return kept[f"removed/0/{layer}.bias"][:1] if whole is None else whole[1:2]


def first(run: Any) -> tuple[str, nn.Module]:
    name = "1" if run[0] is dense else "0"
    return name, run[0]().get_submodule(name)


def test_a_live_unit_of_the_first_layer_is_refuted_by_an_input(run: Any, tmp_path: Path) -> None:
    name, layer = first(run)

    def revive(kept: dict[str, Tensor]) -> None:
        own_bias(kept, name).fill_(-0.01)

    verdict = forged(run, tmp_path, lambda lines, folder: rewritten(lines, folder, revive))
    assert verdict.status == "refuted", verdict
    assert verdict.code == 1
    assert f"unit 1 of '{name}' went as dead with a bound of -" in str(verdict)
    assert "before its activation on the input" in str(verdict)
    shown = verdict.counterexample
    assert shown is not None
    (x,) = shown.inputs
    assert float(x.min()) >= -1
    assert float(x.max()) <= 1
    with torch.no_grad():
        layer.weight.mul_(1.01)
        layer.bias[1] = -0.01
        value = layer(x.flatten(1) if run[0] is dense else x).movedim(1, 0)[1].max()
    assert float(value) >= shown.difference > 0
    assert json.dumps(verdict.to_json())


def test_a_unit_that_may_live_further_back_is_not_proved(run: Any, tmp_path: Path) -> None:
    """What it reads depends on weights that were kept as intervals: no input is known to show it."""

    def revive(kept: dict[str, Tensor]) -> None:
        own_bias(kept, "3").fill_(-0.01)

    if run[0] is dense:
        verdict = forged(run, tmp_path, lambda lines, folder: rewritten(lines, folder, revive))
        assert verdict.status == "not proved", verdict


def test_a_unit_that_no_input_makes_live_is_not_refuted(run: Any, tmp_path: Path) -> None:
    """Its bound, with rounding, is just above 0, its value never."""
    name, layer = first(run)
    row = 1.01 * layer.weight[1].detach().double()

    def touch(kept: dict[str, Tensor]) -> None:
        own_bias(kept, name).fill_(-float(row.abs().sum()) * (1 + 2.0**-22))

    verdict = forged(run, tmp_path, lambda lines, folder: rewritten(lines, folder, touch))
    assert verdict.status != "proved"
    assert verdict.counterexample is None
