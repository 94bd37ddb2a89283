"""A run: its folder, its result, and that breaking it off changes nothing."""

import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.experiments.own_target import OWN
from torch import nn

from nodedrop import load as load_weights
from nodedrop.activations import ClampedReLU
from nodedrop.errors import InputError
from nodedrop.experiments import run as runs
from nodedrop.experiments.data import Data, load
from nodedrop.experiments.lock import InUseError, held, locked
from nodedrop.experiments.making import network
from nodedrop.experiments.recipes import Recipe, recipe
from nodedrop.experiments.run import Progress, Run, finished, train

TINY = recipe("mnist", "short", {"images": 500, "epochs": 2, "batch": 32, "lr": 0.01, "lam": 0.001, "least": 2})


@pytest.fixture(scope="module")
def mnist() -> Data:
    data = load("mnist")
    few = {name: getattr(data, name)[:500].clone() for name in ("train_images", "train_labels")}
    return replace(data, **few, test_images=data.test_images[:300], test_labels=data.test_labels[:300])


@pytest.fixture(scope="module")
def whole(mnist: Data, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing disturbs."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    train(TINY, folder, mnist)
    return folder


def told(folder: Path) -> dict[str, Any]:
    """All that a run left behind, but for the time it took."""
    result = json.loads((folder / "result.json").read_text())
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for record in (result, *result["epochs"], *rows):
        del record["seconds"], record["cutting"]
    weights = {name: value.numpy().tobytes() for name, value in load_file(folder / "model.safetensors").items()}
    return {"rows": rows, "result": result, "weights": weights}


def test_the_result_adds_up(whole: Path, mnist: Data) -> None:
    result = json.loads((whole / "result.json").read_text())
    assert result["recipe"] == json.loads((whole / "config.json").read_text())
    assert (result["parameters_dense"], result["units_dense"]) == (49850, 160)
    assert result["units"] == sum(result["widths"].values()) < 160
    assert result["parameters"] < 49850
    assert result["logit_change"] < 1e-4
    assert result["predictions_changed"] == 0
    assert result["test_error"] == result["test_error_before_cut"]
    assert [row["epoch"] for row in result["epochs"]] == [0, 1, 2]
    model = network(TINY, mnist)
    load_weights(model, whole / "model.safetensors")
    assert sum(p.numel() for p in model.parameters()) == result["parameters"]


@pytest.mark.parametrize("stops", [(1,), (16, 17), (9, 23, 31)])
def test_a_run_broken_off_ends_bit_identical(
    stops: tuple[int, ...], whole: Path, mnist: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "CHECKPOINT_SECONDS", 1e9)
    for stop in stops:
        with pytest.raises(KeyboardInterrupt):
            train(TINY, tmp_path, mnist, resume=True, stop=_at(stop, tmp_path))
        torch.rand(7)
    train(TINY, tmp_path, mnist, resume=True)
    widths = [row["widths"] for row in told(whole)["rows"]]
    assert widths[0] != widths[-1], "no unit went, so nothing was tested"
    for kind, one in told(tmp_path).items():
        assert one == told(whole)[kind], kind


def _at(step: int, folder: Path) -> Any:
    """Stop when the run as a whole has made so many steps."""
    done = [int(path.stem[5:]) for path in folder.glob("checkpoint/step-*")]
    left = step - max(done, default=0)

    def stop() -> bool:
        nonlocal left
        left -= 1
        return left <= 0

    return stop


def test_a_killed_run_goes_on_from_its_last_checkpoint(
    whole: Path, mnist: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "CHECKPOINT_SECONDS", 0.0)

    class Killed(Exception):
        pass

    def die(progress: Progress) -> None:
        if progress.epoch == 1 and progress.batch == 5:
            raise Killed

    with pytest.raises(Killed):
        train(TINY, tmp_path, mnist, watch=die)
    train(TINY, tmp_path, mnist, resume=True)
    assert told(tmp_path) == told(whole)


def test_progress_comes_after_every_batch(mnist: Data, tmp_path: Path) -> None:
    seen: list[Progress] = []
    train(replace(TINY, epochs=3, evaluate=2), tmp_path, mnist, watch=seen.append)
    assert len(seen) == 3 * (16 + 1)
    rows = {progress.epoch + 1: progress.row for progress in seen if progress.row is not None}
    assert list(rows) == [2, 3]  # every second epoch, and the last
    assert seen[20].test_error is not None
    assert [p.parameters for p in seen] == sorted((p.parameters for p in seen), reverse=True)
    assert seen[-1].seconds > 0


def test_a_finished_run_is_not_run_again(whole: Path, mnist: Data) -> None:
    before = told(whole)
    start = time.perf_counter()
    assert train(TINY, whole, mnist, resume=True)["units"] == before["result"]["units"]
    assert time.perf_counter() - start < 1
    with pytest.raises(InputError, match="holds a run already"):
        train(TINY, whole, mnist)
    with pytest.raises(InputError, match=r"has lam=0\.001, not 0\.02; take another folder"):
        train(replace(TINY, lam=0.02), whole, mnist, resume=True)
    assert told(whole) == before


def test_without_penalty_nothing_goes(mnist: Data, tmp_path: Path) -> None:
    result = train(replace(TINY, lam=0.0, activation="relu", epochs=1), tmp_path, mnist)
    assert (result["units"], result["parameters"], result["logit_change"]) == (160, 49850, 0.0)


def test_the_dead_go_while_the_penalty_rests(mnist: Data, tmp_path: Path) -> None:
    run = Run(replace(TINY, quiet=0.0, rest=1.0, fade=0.0), tmp_path, mnist)
    run.open()
    batches = len(run.batches)
    steps = run.steps()
    for _ in range(batches + 1):
        next(steps)
    assert run.drop.lam == 0.0
    before = run.units
    with torch.no_grad():
        run.model.dense.bias[0] = -1e4
    for _ in steps:
        pass
    assert run.units < before
    assert run.model.dense.out_features == run.widths["dense"]


def test_a_folder_belongs_to_one_process(tmp_path: Path) -> None:
    made = recipe("mnist", changes=OWN)
    with locked(tmp_path):
        assert held(tmp_path)
        with pytest.raises(InUseError, match=f"process {os.getpid()} is at work in"):
            train(made, tmp_path)
        assert not (tmp_path / "config.json").exists()
    assert not held(tmp_path)
    train(made, tmp_path)
    assert finished(made, tmp_path) is not None


def test_mistakes_leave_nothing_behind(mnist: Data, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(InputError, match="images must be at most 500"):
        train(replace(TINY, images=501), folder, mnist)
    with pytest.raises(InputError, match="too small for the poolings"):
        train(recipe("mnist", changes={**OWN, "network": "vgg16"}), folder)
    with pytest.raises(InputError, match="cifar10 is not in"):
        train(recipe("cifar10-vgg16"), folder, data_dir=tmp_path)
    assert not folder.exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written to"):
        train(recipe("mnist", changes=OWN), tmp_path / "file" / "run")


@pytest.mark.parametrize("text", ["", "[1]", '{"x": 1}'])
def test_a_foreign_configuration_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(InputError, match=r"config\.json"):
        train(recipe("mnist", changes=OWN), tmp_path, resume=True)


def test_own_images_are_scaled_to_the_domain(tmp_path: Path) -> None:
    made = recipe("mnist", changes={**OWN, "domain": "-0.7,2.1"})
    images = runs.example(made, runs.data_of(made), 100)
    assert float(images.min()) >= -0.7
    assert float(images.max()) <= 2.1
    assert float(images.max() - images.min()) > 2.7
    train(made, tmp_path)


def test_units_at_a_flat_place_for_every_image_are_stuck(tmp_path: Path) -> None:
    made = recipe("mnist", changes={**OWN, "lam": 0})
    run = Run(made, tmp_path, runs.data_of(made))
    layer = run.model[1]  # type: ignore[index]
    assert isinstance(layer, nn.Linear)
    with torch.no_grad():
        layer.bias[:5] = -1000.0
        layer.bias[5:9] = 1000.0
    base = run.stuck()
    assert 5 <= base < 20
    run.model[2] = ClampedReLU()  # type: ignore[index]
    with torch.no_grad():
        layer.weight *= 1e-3
        layer.bias[9:] = 0.5
    assert run.stuck() == 9


def test_the_seed_decides(mnist: Data, tmp_path: Path) -> None:
    small: Recipe = replace(TINY, images=64, epochs=1)
    results = [train(replace(small, seed=seed), tmp_path / str(n), mnist) for n, seed in enumerate((0, 0, 1))]
    losses = [result["epochs"][-1]["train_loss"] for result in results]
    assert losses[0] == losses[1] != losses[2]


def test_a_batch_may_go_through_in_parts(mnist: Data, tmp_path: Path) -> None:
    """Its gradient is the same, also where the last part is smaller, and the penalty counts once."""
    gradients, sums = [], []
    for part in (0, 12):
        run = Run(replace(TINY, part=part, quiet=0.0), tmp_path, mnist)
        images, labels = next(iter(run.batches))
        sums.append(run._backward(images, labels))
        gradients.append([p.grad for p in run.model.parameters()])
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-4, atol=1e-7)
    assert sums[0] == pytest.approx(sums[1], rel=1e-5)
    with pytest.raises(InputError, match="part must be 0 with batch norm"):
        Run(replace(TINY, part=12, batch_norm=True), tmp_path, mnist)
