"""Every benchmark runs, tiny, and gives a record that the page can be made of."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from nodedrop.benchmarks import NAMES, benchmark, harness, steps
from nodedrop.benchmarks.harness import Settings
from nodedrop.benchmarks.inference import AS_CUT, RESULTS, SUBJECTS, Subject, compiled, cut, read
from nodedrop.benchmarks.run import Case, races
from nodedrop.cli.app import app
from nodedrop.errors import InputError
from nodedrop.experiments.networks import build
from nodedrop.reporting import benchmarks as pages

ROOT = Path(__file__).parents[2]
EXPECTED = {
    "activation": 7, "step": 3, "analysis": 2, "imports": 1, "cost": 4, "data": 1, "growth": 9, "run": 3, "peers": 6,
    "demo": 3, "inference": 2, "active": 2, "cifar": 0, "kept": 2, "widths": 2,
}  # fmt: skip


@pytest.fixture(scope="module")
def record(request: pytest.FixtureRequest) -> dict[str, Any]:
    return benchmark(request.param)(Settings(rounds=2, quick=True))


@pytest.mark.parametrize("record", NAMES, indirect=True)
def test_a_quick_look_gives_a_record(record: dict[str, Any], tmp_path: Path) -> None:
    name = record["benchmark"]
    assert len(record["figures"]) >= EXPECTED[name]
    for item in record["figures"]:
        assert item["low"] <= item["ratio"] <= item["high"]
        assert item["kept"] == (None if item["limit"] is None else item["ratio"] <= item["limit"])
        assert item["unit"] or item["ratio"] > 0
    assert record["machine"]["torch"] == torch.__version__
    assert record["quick"]
    harness.write(record, tmp_path)
    assert pages.read(tmp_path) == {}, "a quick look is no result"
    harness.write({**record, "quick": False}, tmp_path)
    made = pages.write(tmp_path, tmp_path / "page" / "benchmarks.md")
    text = made[0].read_text()
    assert all(item["name"] in text for item in record["figures"])
    assert [path.suffix for path in made[1:]] == ([".svg", ".png"] if name == "growth" else [])
    others = [other for other in NAMES if other != name]
    assert all(f"`nodedrop bench {other}`" in text for other in others)


def test_peers_reach_the_size_that_nodedrop_reached() -> None:
    rows = benchmark("peers")(Settings(quick=True, changes={"lam": 0.01, "lr": 0.05}))["rows"]
    held = {row["procedure"]: row for row in rows if row["network"] == "Dense320"}
    ours, dense = held["NodeDrop"], held["the dense ReLU network"]
    assert ours["parameters"] < dense["parameters"]
    theirs = next(row for name, row in held.items() if name.startswith("Torch-Pruning"))
    assert theirs["parameters"] <= ours["parameters"]
    assert theirs["multiply_adds"] < dense["multiply_adds"]


def test_peak_counts_what_a_step_holds_at_a_time() -> None:
    size = 2**20

    def step() -> None:
        first = torch.empty(size, dtype=torch.uint8)
        del first
        pair = [torch.empty(size, dtype=torch.uint8) for _ in range(2)]
        del pair

    assert steps.peak(step) == 2 * size


def test_multiply_adds_are_those_of_arithmetic() -> None:
    assert steps.multiply_adds(torch.nn.Linear(8, 5), torch.rand(3, 8)) == 40


def test_a_network_is_cut_to_the_widths_of_a_run(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    widths = {"conv1": 3, "conv2": 16, "conv3": 1, "conv4": 5, "dense": 7}
    recipe = {"network": "mnist-dense160", "width": 1.0, "batch_norm": False}
    path.write_text(json.dumps({"recipe": recipe, "widths": widths}))
    model = cut(read(path))
    assert [len(layer.weight) for layer in model if hasattr(layer, "weight")] == [3, 16, 1, 5, 7, 10]
    with pytest.raises(InputError, match="cannot be cut to 999"):
        cut(Subject("mnist-dense160", (999, 1, 1, 1, 1), {}))
    with pytest.raises(InputError, match="has 5 layers, and there are 2 widths"):
        cut(Subject("mnist-dense160", (1, 1), {}))
    path.write_text("{}")
    with pytest.raises(InputError, match="no result of a run"):
        read(path)


@pytest.mark.parametrize("name", RESULTS)
def test_the_limit_is_on_what_the_whole_runs_on_record_left(name: str) -> None:
    record = json.loads((ROOT / "results" / "bench" / f"{name}.json").read_text())
    for row in record["runs"]:
        recipe, subject = row["recipe"], RESULTS[name]
        assert tuple(row["nodedrop"]["widths"].values()) == subject.widths
        assert (recipe["network"], recipe["multiple"]) == (subject.network, subject.multiple)
        options = {"width": 1.0, **subject.options}
        assert options == {key: recipe[key] for key in options}
        assert subject.limit == 1.7


def test_what_an_export_writes_has_a_limit_and_widths_as_cut_have_none() -> None:
    assert len({subject.title for subject in SUBJECTS}) == len(SUBJECTS)
    figures = benchmark("inference")(Settings(rounds=2, quick=True))["figures"]
    limits = {item["name"].split(", ")[1]: item["limit"] for item in figures if "×" in item["name"]}
    assert limits == {"eager": 1.7, "ONNX Runtime": 1.7, AS_CUT: None}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_network_that_torch_would_not_compile_any_more_is_no_figure() -> None:
    torch.compiler.reset()
    limit = torch._dynamo.config.recompile_limit
    with torch.no_grad():
        for units in range(1, limit + 1):
            compiled(torch.nn.Linear(units, units), torch.rand(2, units))
        with pytest.raises(torch._dynamo.exc.FailOnRecompileLimitHit):
            compiled(torch.nn.Linear(limit + 1, 1), torch.rand(2, limit + 1))
    torch.compiler.reset()


def test_a_missing_data_set_is_said(tmp_path: Path) -> None:
    record = benchmark("cifar")(Settings(quick=True, data_dir=tmp_path))
    assert list(record["missing"]) == ["CIFAR-10 VGG16 without batch norm at width 0.125"]
    assert record["runs"] == record["figures"] == []


def test_both_sides_of_a_whole_run_are_alike(tmp_path: Path) -> None:
    record = benchmark("run")(Settings(quick=True, data_dir=tmp_path))
    (row,) = record["runs"]
    dense = build("mnist-dense320", activation="relu", width=0.125)
    assert row["dense"]["parameters"] == sum(p.numel() for p in dense.parameters())
    assert row["dense"]["cuts"] == 0 < row["nodedrop"]["seconds"]


def test_seeds_count_up_from_the_recipe_s() -> None:
    record = benchmark("run")(Settings(seeds=2, quick=True, changes={"seed": 3}))
    assert [row["recipe"]["seed"] for row in record["runs"]] == [3, 4]


def test_the_dense_side_may_have_values_of_its_own_and_what_is_set_holds_for_both() -> None:
    case = Case("mnist", {"network": "mnist-dense160", "lr": 1e-3}, 1.0, 1.0, {"lr": 2e-3, "optimizer": "sgd"})
    settings = Settings(quick=True, changes={"lam": 0.5, "C": 2.0})
    (row,) = races("run", {"MNIST": case}, settings)["runs"]
    sides = (row["recipe"], row["dense_recipe"])
    assert [side["lr"] for side in sides] == [1e-3, 2e-3]
    assert [side["lam"] for side in sides] == [0.5, 0.0], "whatever is set, the dense network has no penalty"
    assert [side["C"] for side in sides] == [2.0, 2.0]
    assert [side["optimizer"] for side in sides] == ["adam", "sgd"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nothing"], "there is no benchmark 'nothing'"),
        (["data", "--quick", "--results", "x"], "not recorded"),
        (["--results", "nowhere", "--page", "page.md"], "holds no record"),
        (["run", "--quick", "--set", "lam"], "--set needs name=value"),
    ],
)
def test_mistakes_are_said_in_a_sentence_and_leave_nothing(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["bench", *words])
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_the_command_prints_records_as_json() -> None:
    result = CliRunner().invoke(app, ["bench", "data", "--quick", "--rounds", "1", "--json"])
    assert result.exit_code == 0
    assert [item["benchmark"] for item in json.loads(result.stdout)] == ["data"]


def test_spoilt_records_are_named(tmp_path: Path) -> None:
    for text in ("{", "[]", '{"benchmark": "cost"}'):
        (tmp_path / "step.json").write_text(text)
        with pytest.raises(InputError, match=r"step\.json.*nodedrop bench step"):
            pages.read(tmp_path)
