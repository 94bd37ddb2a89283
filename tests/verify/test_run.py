"""The ledger of a training run: written as it goes, resumed, checked, forged."""

from __future__ import annotations

import copy
import json
import shutil
import warnings
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from tests.verify import target
from tests.verify.forging import Lines, mended, read, write
from tests.zoo import ZOO, Entry
from torch import nn
from typer.testing import CliRunner

import nodedrop as nd
from nodedrop.cli.app import app
from nodedrop.errors import InputError
from nodedrop.verify import Verdict
from nodedrop.verify.claims import Refuted
from nodedrop.verify.left import Left
from nodedrop.verify.run import verify_run

MODEL = "tests.verify.target:network"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        target.train(folder)
    return folder


def check(folder: Path) -> Verdict:
    last = target.network()
    nd.load(last, folder / "model.safetensors")
    return verify_run(target.network(), last, torch.zeros(4, 1, 4, 4), folder / "ledger.jsonl")


def test_every_cut_of_a_run_is_proved(run: Path) -> None:
    verdict = check(run)
    assert verdict.status == "proved", verdict
    cuts = [line for line in read(run / "ledger.jsonl") if line["line"] == "cut"]
    assert len(cuts) >= 3, "too few cuts to tell anything"
    assert verdict.units == sum(cut["units"] for cut in cuts) >= 10


def test_what_reads_a_layer_norm_is_proved_by_the_length_of_its_rows(tmp_path: Path) -> None:
    """The bound that a row's values together allow, which each by itself would not."""

    def network() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 3))

    model = network()
    drop = nd.NodeDrop(model, None, torch.rand(4, 16), ledger=tmp_path / "ledger.jsonl")
    for first in (0, 4):
        with torch.no_grad():
            model[1].weight += 0.01
            model[1].bias[first : first + 2] = -1.5 * 4 * model[1].weight[first : first + 2].norm(dim=1)
        drop.drop()
    verdict = verify_run(network(), model, torch.zeros(4, 16), tmp_path / "ledger.jsonl")
    assert (verdict.status, verdict.units) == ("proved", 4), verdict


def cut_at_random(entry: Entry, folder: Path, seed: int) -> Verdict:
    """Three cuts of a network of the zoo whose weights move, each after some biases were pushed far down."""
    torch.manual_seed(0)
    model = entry.build()
    first, inputs = copy.deepcopy(model), entry.inputs(torch.Generator().manual_seed(0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some layers die as a whole
        _push_down(model, inputs, entry.domain, folder / "ledger.jsonl", torch.Generator().manual_seed(seed))
    return verify_run(first, model, inputs, folder / "ledger.jsonl", entry.domain)


def _push_down(model: nn.Module, inputs: Any, domain: Any, ledger: Path, generator: torch.Generator) -> None:
    drop = nd.NodeDrop(model, None, inputs, domain=domain, ledger=ledger, on_collapse="keep", batch_size=8)
    for _ in range(3):
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter += 0.01 * torch.randn(parameter.shape, generator=generator)
                if name.endswith("bias"):
                    parameter[torch.rand(parameter.shape, generator=generator) < 0.25] = -300.0
        drop.drop()


GROUPS = ("grouped", "transposed_grouped", "depthwise_multiplier", "mobilenet_v2")
OTHERS = ("gru_head", "lstm_tokens", "pools", "slice_write", "siamese", "instance_norm", "gpt")


@pytest.mark.parametrize("name", [*GROUPS, *OTHERS])
def test_every_cut_of_any_network_is_proved(name: str, tmp_path: Path) -> None:
    verdict = cut_at_random(ZOO[name], tmp_path, 1)
    assert verdict.status == "proved", verdict
    cuts = [line for line in read(tmp_path / "ledger.jsonl") if line["line"] == "cut"]
    assert len(cuts) >= 2
    assert verdict.units >= 3


def _swap(cut: dict[str, Any], kept: dict[str, Any], item: dict[str, Any]) -> None:
    """A group loses another channel than the one that is dead."""
    stays = next(k for k in range(item["size"]) if k not in item["removed"])
    gone = next(k for k in item["removed"] if k < item["size"])
    item["removed"] = sorted({*item["removed"], stays} - {gone})
    item["original"] = list(item["removed"])


def _fewer(cut: dict[str, Any], kept: dict[str, Any], item: dict[str, Any]) -> None:
    cut["groups"][item["tensor"]] = item["blocks"] - 1


def _unlike(cut: dict[str, Any], kept: dict[str, Any], item: dict[str, Any]) -> None:
    """One group keeps more than the others."""
    item["removed"], item["original"] = item["removed"][1:], item["original"][1:]


def _alive(cut: dict[str, Any], kept: dict[str, Any], item: dict[str, Any]) -> None:
    for name, value in kept.items():
        if name.endswith("conv1.bias"):
            value += 900.0


def test_what_is_left_of_groups() -> None:
    start = Left.all({"w": [4, 2, 1]}, {"w": 2})
    item = {"tensor": "w", "axis": 1, "size": 2, "blocks": 2}

    def cut(removed: list[int], *, rows: list[int] | None = None) -> dict[str, Any]:
        items: list[dict[str, Any]] = [{**item, "removed": removed, "original": removed}] if removed else []
        if rows:
            items.append({"tensor": "w", "axis": 0, "size": 4, "blocks": 1, "removed": rows, "original": rows})
        return {"cut": 1, "tensors": items, "groups": {}}

    left = start.without(cut([0, 3]))
    assert left.shape("w") == (4, 1, 1)
    assert [place.reshape(-1).tolist() for place in left.places("w")[:2]] == [[0, 1, 2, 3], [1, 1, 0, 0]]
    gone = start.without(cut([], rows=[2, 3]))  # a group without rows
    assert gone.along["w", 1] == [0, 1]
    assert gone.shape("w") == (2, 2, 1)
    for unequal in (cut([0]), cut([], rows=[0]), cut([2, 3])):
        with pytest.raises(Refuted, match="groups of different size"):
            start.without(unequal)
    renamed = cut([0, 3])
    renamed["tensors"][0]["original"] = [1, 3]
    with pytest.raises(Refuted, match="other first indices"):
        start.without(renamed)


@pytest.fixture(scope="module")
def groups(tmp_path_factory: pytest.TempPathFactory) -> tuple[nn.Module, nn.Module, Path]:
    folder = tmp_path_factory.mktemp("groups")
    model = ZOO["grouped"].build()
    first = copy.deepcopy(model)
    with torch.no_grad():
        model.conv1.bias[[1, 6, 11]] = -900.0
    nd.NodeDrop(model, None, torch.rand(2, 3, 6, 6), ledger=folder / "ledger.jsonl").drop()
    return first, model, folder


@pytest.mark.parametrize("forge", [None, _swap, _fewer, _unlike, _alive])
def test_forged_cuts_of_groups_are_rejected(
    groups: tuple[nn.Module, nn.Module, Path], tmp_path: Path, forge: Callable[..., None] | None
) -> None:
    first, last, source = groups
    folder = tmp_path / "run"
    shutil.copytree(source, folder)
    lines = read(folder / "ledger.jsonl")
    cut = lines[1]
    item = next(item for item in cut["tensors"] if item["blocks"] > 1)
    assert item["removed"] == [1, 6, 11]
    path = folder / cut["witness"]["file"]
    kept = {name: value.copy() for name, value in load_file(path).items()}
    if forge is not None:
        forge(cut, kept, item)
    save_file(kept, path)
    cut["witness"]["sha256"] = sha256(path.read_bytes()).hexdigest()
    write(folder / "ledger.jsonl", mended(lines))
    verdict = verify_run(first, last, torch.rand(2, 3, 6, 6), folder / "ledger.jsonl")
    assert (verdict.status == "proved") == (forge is None), verdict


def test_a_killed_run_ends_with_the_same_ledger(run: Path, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        target.train(tmp_path, stop=55)
        with (tmp_path / "ledger.jsonl").open("a") as file:
            file.write('{"line": "unit", "cut"')  # half a line
        target.train(tmp_path)
    assert (tmp_path / "ledger.jsonl").read_bytes() == (run / "ledger.jsonl").read_bytes()
    assert check(tmp_path).status == "proved"


def dense() -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    nn.init.ones_(model[0].bias)
    return model


def cut_once(model: nn.Sequential, drop: nd.NodeDrop) -> None:
    """The first unit dies, and goes."""
    with torch.no_grad():
        model[0].bias[0] = -9.0
    assert drop.drop() is not None


def test_a_run_goes_on_with_its_ledger_if_only_nodedrop_is_among_its_parts(tmp_path: Path) -> None:
    contents = []
    for stops in ([4], [3, 4]):
        folder = tmp_path / str(len(stops))
        for stop in stops:
            model = dense()
            drop = nd.NodeDrop(model, None, torch.rand(2, 4), ledger=folder / "ledger.jsonl")
            checkpoints = nd.Checkpoints(folder / "checkpoint", model, drop=drop)
            for step in range((checkpoints.resume() or {"step": 0})["step"], stop):
                cut_once(model, drop)
                if step == 1:
                    checkpoints.write(step + 1)
        contents.append((folder / "ledger.jsonl").read_bytes())
    assert contents[0] == contents[1]
    assert verify_run(dense(), model, torch.zeros(2, 4), folder / "ledger.jsonl").status == "proved"


def test_proofs_are_not_written_over(tmp_path: Path) -> None:
    path, model = tmp_path / "ledger.jsonl", dense()
    drop = nd.NodeDrop(model, None, torch.rand(2, 4), ledger=path)
    assert drop.drop() is None  # the first line alone is no proof
    del drop
    drop = nd.NodeDrop(model, None, torch.rand(2, 4), ledger=path)
    cut_once(model, drop)
    before = path.read_bytes()
    sentence = r"ledger.jsonl' holds the proofs of 1 cut, and nothing says to go on from there; name another file"
    for given in (dense(), dense()):
        with torch.no_grad():
            given[0].bias[0] = -9.0
        with pytest.raises(InputError, match=sentence):
            nd.NodeDrop(given, None, torch.rand(2, 4), ledger=path).drop()
        with pytest.raises(InputError, match=sentence):
            nd.compact_(given, torch.rand(2, 4), ledger=path)
        assert given[0].out_features == 8
    other = nd.NodeDrop(given, None, torch.rand(2, 4), ledger=path)  # its first bias is another
    checkpoints = nd.Checkpoints(tmp_path / "checkpoint", given, drop=other)
    with pytest.raises(InputError, match=r"no checkpoint to go on from, and '.*' holds the proofs of 1 cut of another"):
        checkpoints.resume()
    state = drop.state_dict()
    with pytest.raises(InputError, match="is not the one that this run wrote"):
        drop.load_state_dict({**state, "ledger": {**state["ledger"], "last": "0" * 64}})
    drop.load_state_dict({key: value for key, value in state.items() if key != "ledger"})  # as older states are
    assert path.read_bytes() == before


def test_a_run_killed_before_its_first_checkpoint_begins_its_ledger_anew(tmp_path: Path) -> None:
    for stop in (1, 2):
        model = dense()
        drop = nd.NodeDrop(model, None, torch.rand(2, 4), ledger=tmp_path / "ledger.jsonl")
        checkpoints = nd.Checkpoints(tmp_path / "checkpoint", model, drop=drop, ledger=drop.ledger)
        if stop == 1:
            assert checkpoints.resume() is None
        else:
            with pytest.warns(UserWarning, match=r"so the ledger '.*', of 1 cut, begins anew") as caught:
                assert checkpoints.resume() is None
            assert len(caught) == 1
        for _ in range(stop):
            cut_once(model, drop)
    assert verify_run(dense(), model, torch.zeros(2, 4), tmp_path / "ledger.jsonl").status == "proved"


def test_a_full_disk_leaves_a_ledger_that_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files: list[int] = []

    def full(descriptor: int) -> None:
        files.append(descriptor)
        if len(files) == 2:  # the weights beside the ledger find room, the ledger does not
            raise OSError(28, "No space left on device")

    model = dense()
    drop = nd.NodeDrop(model, None, torch.rand(2, 4), ledger=tmp_path / "ledger.jsonl")
    cut_once(model, drop)
    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(InputError, match="cannot be written: No space left on device"):
        cut_once(model, drop)
    assert model[0].out_features == 7
    monkeypatch.undo()
    cut_once(model, drop)
    verdict = verify_run(dense(), model, torch.zeros(2, 4), tmp_path / "ledger.jsonl")
    assert (verdict.status, verdict.units) == ("proved", 2), verdict


def test_what_is_kept_is_small_and_makes_cuts_reversible(run: Path) -> None:
    dense = sum(p.numel() for p in target.network().parameters())
    lines = [line for line in read(run / "ledger.jsonl") if line["line"] == "cut"]
    removed = 0
    for cut in lines:
        kept = load_file(run / cut["witness"]["file"])
        removed += sum(value.size for name, value in kept.items() if name.startswith("removed/"))
        for item in cut["tensors"]:
            name = f"removed/{item['axis']}/{item['tensor']}"
            if f"whole/{item['tensor']}" not in kept:
                assert kept[name].shape[item["axis"]] == len(item["removed"])
    # every number is removed at most once; batch norm has two statistics beside its parameters
    assert removed <= dense + 16


def test_a_cut_can_be_undone(tmp_path: Path) -> None:
    model = target.network()
    with torch.no_grad():
        model[4].bias[[2, 3]] = -99.0
        model[6].bias[[0, 9]] = -99.0
    before = {name: value.clone() for name, value in model.state_dict().items()}
    drop = nd.NodeDrop(model, None, torch.rand(4, 1, 4, 4), ledger=tmp_path / "ledger.jsonl")
    assert drop.drop() is not None
    cut = read(tmp_path / "ledger.jsonl")[1]
    kept = load_file(tmp_path / cut["witness"]["file"])
    tensors = {name: value.numpy() for name, value in model.state_dict().items()}
    for item in sorted(cut["tensors"], key=lambda item: -item["axis"]):
        name, axis = item["tensor"], item["axis"]
        if f"whole/{name}" in kept:
            tensors[name] = kept[f"whole/{name}"]
            continue
        places = [k - j for j, k in enumerate(item["removed"])]
        tensors[name] = np.insert(tensors[name], places, kept[f"removed/{axis}/{name}"], axis)
    for name, value in before.items():
        assert np.array_equal(tensors[name], value.numpy()), name


def _live(lines: Lines, folder: Path) -> None:
    """Weights that were kept are changed, and the chain and all hashes with them: the units are alive now."""
    cut = next(line for line in lines if line["line"] == "cut")
    path = folder / cut["witness"]["file"]
    kept = dict(load_file(path))
    kept |= {name: value + 50.0 for name, value in kept.items() if name.endswith("bias")}
    save_file(kept, path)
    cut["witness"]["sha256"] = sha256(path.read_bytes()).hexdigest()


def _other(lines: Lines, folder: Path) -> None:
    cut = next(line for line in lines if line["line"] == "cut")
    cut["witness"]["file"] = "../model.safetensors"


def _lower(lines: Lines, folder: Path) -> None:
    unit = next(line for line in lines if line["line"] == "unit" and line["bound"] is not None)
    unit["bound"] -= 1.0


def _lost(lines: Lines, folder: Path) -> None:
    first, second = [k for k, line in enumerate(lines) if line["line"] == "cut"][:2]
    del lines[first:second]
    for line in lines[1:]:
        line["cut"] -= 1


def _index(lines: Lines, folder: Path) -> None:
    next(line for line in lines if line["line"] == "unit")["index"] += 1


def _renamed(lines: Lines, folder: Path) -> None:
    """A unit of the second cut is said to have been another one at first, wherever that is told."""
    unit = next(line for line in lines if line["line"] == "unit" and line["cut"] == 2)
    cut = next(line for line in lines if line["line"] == "cut" and line["cut"] == 2)
    place = (unit["weight"], unit["axis"])
    item = next(item for item in cut["tensors"] if (item["tensor"], item["axis"]) == place)
    other = next(k for k in range(item["size"]) if k not in item["original"])
    item["original"] = [other if k == unit["index"] else k for k in item["original"]]
    unit["index"] = other


def _order(lines: Lines, folder: Path) -> None:
    for line in lines[1:]:
        line["step"] = 100 - line["step"]


def _none(lines: Lines, folder: Path) -> None:
    next(line for line in lines if line["line"] == "cut")["witness"] = None


@pytest.mark.parametrize("forge", [_live, _other, _lower, _lost, _index, _renamed, _order, _none])
def test_a_forged_run_is_rejected(run: Path, tmp_path: Path, forge: Callable[[Lines, Path], Any]) -> None:
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    lines = read(folder / "ledger.jsonl")
    forge(lines, folder)
    write(folder / "ledger.jsonl", mended(lines))
    assert check(folder).status != "proved"


def test_another_model_at_the_end_is_refuted(run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    nd.save(target.network(), folder / "model.safetensors")
    assert check(folder).status == "refuted"


def test_the_command_on_a_run(run: Path) -> None:
    done = CliRunner().invoke(app, ["verify", str(run), "--model", MODEL, "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)["verdict"] == "proved"
    done = CliRunner().invoke(app, ["verify", str(run), "--model", MODEL, "--domain", "0,2"])
    assert done.exit_code == 1
    assert "another domain" in done.output


def test_the_command_on_two_files(tmp_path: Path) -> None:
    model = target.network()
    with torch.no_grad():
        model[4].bias[[2, 3]] = -99.0
    before, after, ledger = (str(tmp_path / name) for name in ("a.safetensors", "b.safetensors", "ledger.jsonl"))
    nd.save(model, before)
    nd.compact_(model, torch.rand(2, 1, 4, 4), ledger=ledger)
    nd.save(model, after)
    files = ["verify", "--before", before, "--after", after, "--model", MODEL]
    assert CliRunner().invoke(app, [*files, "--ledger", ledger]).exit_code == 0
    assert CliRunner().invoke(app, [*files, "--example", "2,1,4,4"]).exit_code == 0
    assert CliRunner().invoke(app, files).exit_code == 2
    assert CliRunner().invoke(app, [*files, "--example", "2,1,4,4", "--domain", "x"]).exit_code == 2
    assert CliRunner().invoke(app, [*files, "--ledger", str(tmp_path / "none.jsonl")]).exit_code == 2
    assert CliRunner().invoke(app, ["verify"]).exit_code == 2
    with torch.no_grad():
        model[8].weight += 0.1
    nd.save(model, after)
    assert CliRunner().invoke(app, [*files, "--ledger", ledger]).exit_code == 1
    assert CliRunner().invoke(app, [*files, "--example", "2,1,4,4"]).exit_code == 1


def test_the_schema_names_every_field() -> None:
    from nodedrop.verify import claims

    schema = json.loads((Path(claims.__file__).parent / "schema-1.json").read_text(encoding="utf-8"))
    for kind, fields in claims.FIELDS.items():
        assert set(schema["$defs"][kind]["required"]) == {*fields, "line", "prev", "hash"}, kind
        assert set(schema["$defs"][kind]["properties"]) == {*fields, "line", "prev", "hash"}, kind


def test_only_an_answer_to_the_runs_own_terms_is_kept(tmp_path: Path) -> None:
    """A domain that was mistyped must not brand a run as refuted for its next report."""

    def said(*words: str) -> int:
        return CliRunner().invoke(app, [*words]).exit_code

    folder, own = tmp_path / "run", "tests.experiments.own_target"
    mine = ["--model", f"{own}:net", "--data", f"{own}:data", "--set", "epochs=2", "--set", "batch=40"]
    assert said("train", *mine, "--out", str(folder)) == 0
    assert said("verify", str(folder)) == 0
    kept = (folder / "verdict.json").read_text()
    assert json.loads(kept)["verdict"] == "proved"
    assert said("verify", str(folder), "--domain", "0,2") == 1
    assert (folder / "verdict.json").read_text() == kept
    (folder / "ledger.jsonl").unlink()
    done = CliRunner().invoke(app, ["verify", str(folder)])
    assert done.exit_code == 2
    assert "holds no ledger.jsonl; name the folder of a run, or of a ledger" in done.stderr
