"""Everything a run consists of comes back, and the last few states are kept."""

from __future__ import annotations

import json
import os
import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler
from torch.optim.swa_utils import AveragedModel

import nodedrop as nd
from nodedrop.errors import InputError
from nodedrop.training.checkpoint import Checkpoints
from nodedrop.training.journal import Journal


def mlp(width: int = 8) -> nn.Sequential:
    """A network of eight units, or of more, or of less after a cut."""
    model = nn.Sequential(nn.Linear(4, max(width, 8)), nn.ReLU(), nn.Linear(max(width, 8), 2))
    if width < 8:
        with torch.no_grad():
            model[0].bias.fill_(1.0)[width:] = -9.0
        nd.compact_(model, torch.zeros(2, 4))
    return model


class Run:
    """A model, its optimizer and a generator, with a folder for checkpoints."""

    def __init__(self, folder: Path, width: int = 8, keep: int = 2, **more: Any) -> None:
        self.model = mlp(width)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1, momentum=0.9)
        self.batches = torch.Generator().manual_seed(0)
        parts = {"optimizer": self.optimizer, "batches": self.batches, **more}
        self.checkpoints = Checkpoints(folder, self.model, keep=keep, **parts)

    def step(self) -> float:
        loss = self.model(torch.rand(3, 4, generator=self.batches)).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def snapshot(self) -> dict[str, Tensor]:
        momentum = {f"momentum {k}": s["momentum_buffer"] for k, s in self.optimizer.state_dict()["state"].items()}
        found = {**self.model.state_dict(), **momentum, "batches": self.batches.get_state()}
        return {name: value.clone() for name, value in (found | {"torch": torch.get_rng_state()}).items()}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def two_checkpoints(folder: Path) -> tuple[Path, Path, dict[str, Tensor]]:
    """The files of steps 1 and 2, and the state of step 1."""
    run = Run(folder, width=5)
    run.step()
    first = run.checkpoints.write(1, {"epoch": 0})
    state = run.snapshot()
    run.step()
    return first, run.checkpoints.write(2, {"epoch": 1}), state


def test_no_checkpoint_at_all(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "metrics.jsonl")
    journal.append({"step": 1})  # of a run killed before its first checkpoint
    run = Run(tmp_path / "a" / "b", metrics=journal)
    assert run.checkpoints.resume() is None
    assert journal.position == 0
    assert not (tmp_path / "a").exists()
    assert run.checkpoints.write(0).parent == tmp_path / "a" / "b"


def test_the_last_ones_are_kept(tmp_path: Path) -> None:
    (tmp_path / ".step-00000003.safetensors.0123abcd.tmp").write_bytes(b"half of it")
    (tmp_path / ".tmpiY2vcm").touch()  # safetensors has a temporary name of its own
    (tmp_path / "notes.txt").touch()
    run = Run(tmp_path, keep=3)
    for step in (1, 2, 5, 7, 100_000_000):
        run.checkpoints.write(step)
    kept = ["step-00000005", "step-00000007", "step-100000000"]
    assert sorted(os.listdir(tmp_path)) == ["notes.txt", *(f"{name}.safetensors" for name in kept)]
    (tmp_path / ".step-00000003.safetensors.0123abcd.tmp").touch()
    assert Run(tmp_path).checkpoints.resume() == {"step": 100_000_000}
    assert len(os.listdir(tmp_path)) == 4
    run.checkpoints.write(100_000_000, {"again": True})
    assert Run(tmp_path).checkpoints.resume() == {"step": 100_000_000, "again": True}


def test_a_bad_one_is_not_counted_among_those_kept(tmp_path: Path) -> None:
    _, newest, _ = two_checkpoints(tmp_path)
    newest = newest.rename(tmp_path / "step-00000009.safetensors")
    newest.write_bytes(newest.read_bytes()[:-1])
    run = Run(tmp_path)
    with pytest.warns(UserWarning, match="passed over"):
        run.checkpoints.resume()
    run.checkpoints.write(2)
    run.checkpoints.write(3)
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"step-0000000{n}.safetensors" for n in (2, 3, 9)]
    run.checkpoints.write(9)
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"step-0000000{n}.safetensors" for n in (3, 9)]


def test_a_new_run_does_not_write_among_the_checkpoints_of_another(tmp_path: Path) -> None:
    two_checkpoints(tmp_path)
    with pytest.raises(InputError, match=r"holds a checkpoint of step 2, later than step 1; call resume\(\) first"):
        Run(tmp_path).checkpoints.write(1)


class Stubborn:
    """Draws random numbers, and takes its state back only if it is told to."""

    willing = True

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        torch.rand(1), random.random()
        if not self.willing:
            raise KeyError("no such thing")


def test_all_or_nothing(tmp_path: Path) -> None:
    run = Run(tmp_path, width=5, last=Stubborn())
    run.step()
    run.checkpoints.write(1)
    part = Stubborn()
    part.willing = False
    again = Run(tmp_path, last=part)
    again.step()
    random.seed(1)
    before, sizes, other = again.snapshot(), repr(again.model), random.getstate()
    with pytest.raises(InputError, match=r"the state of 'last' in .* does not fit: 'no such thing'"):
        again.checkpoints.resume()
    assert same(again.snapshot(), before)
    assert (repr(again.model), random.getstate()) == (sizes, other)
    part.willing = True
    assert again.checkpoints.resume() == {"step": 1}
    assert again.step() == run.step()


SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "step": lambda o: lr_scheduler.StepLR(o, 2),
    "milestones": lambda o: lr_scheduler.MultiStepLR(o, [2, 4, 4]),
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda epoch: 0.9**epoch),
    "cosine": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
    "one cycle": lambda o: lr_scheduler.OneCycleLR(o, 0.2, total_steps=20),
    "cyclic": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=3),
    "sequence": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, total_iters=2), lr_scheduler.ExponentialLR(o, 0.9)], [3]
    ),
}


@pytest.mark.parametrize("kind", SCHEDULERS)
def test_schedulers(kind: str, tmp_path: Path) -> None:
    def rates(resume: bool) -> list[float]:
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.5)
        scheduler = SCHEDULERS[kind](optimizer)
        checkpoints = Checkpoints(tmp_path, model, optimizer=optimizer, scheduler=scheduler)
        start = checkpoints.resume() if resume else {"step": 0}
        found = []
        assert start is not None
        for step in range(start["step"], 8):
            optimizer.step()
            scheduler.step()
            found.append(optimizer.param_groups[0]["lr"])
            if step == 2 and not resume:
                checkpoints.write(step + 1)
        return found

    assert rates(resume=False)[3:] == rates(resume=True)


def test_plateaus_copies_other_modules_and_random_numbers(tmp_path: Path) -> None:
    def build() -> tuple[Any, ...]:
        model, critic = mlp(), nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        against = torch.optim.Adam(critic.parameters())
        return model, {
            "optimizer": optimizer,
            "against": against,
            "critic": critic,
            "plateau": lr_scheduler.ReduceLROnPlateau(optimizer, patience=1),
            "average": AveragedModel(model),
        }

    model, parts = build()
    parts["average"].update_parameters(mlp())
    for value in (1.0, 2.0, 2.0):
        parts["plateau"].step(value)
    parts["critic"](torch.rand(4, 3)).sum().backward()
    parts["against"].step()
    Checkpoints(tmp_path, model, **parts).write(1)
    expected = (torch.rand(2), random.random(), np.random.rand(2), random.gauss(0, 1), np.random.randn(1))
    again, other = build()
    assert Checkpoints(tmp_path, again, **other).resume() == {"step": 1}
    found = (torch.rand(2), random.random(), np.random.rand(2), random.gauss(0, 1), np.random.randn(1))
    assert repr(found) == repr(expected)
    assert same(model.state_dict(), again.state_dict())
    for name in ("critic", "average"):
        assert same(parts[name].state_dict(), other[name].state_dict())
    assert parts["plateau"].state_dict() == other["plateau"].state_dict()
    assert other["plateau"].num_bad_epochs == 0
    assert other["optimizer"].param_groups[0]["lr"] == pytest.approx(0.01)
    state, restored = (p["against"].state_dict()["state"] for p in (parts, other))
    assert all(same(state[k], restored[k]) for k in state)


@pytest.mark.parametrize("implementation", ["fused", "foreach"])
def test_memory_formats(implementation: str, tmp_path: Path) -> None:
    def train(resume: bool) -> dict[str, Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3)).to(memory_format=torch.channels_last)
        optimizer = torch.optim.AdamW(model.parameters(), 0.01, **{implementation: True})
        checkpoints = Checkpoints(tmp_path, model, optimizer=optimizer)
        start = checkpoints.resume() if resume else {"step": 0}
        assert start is not None
        for step in range(start["step"] + 1, 7):
            model(torch.rand(2, 3, 6, 6).to(memory_format=torch.channels_last)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if step == 3:
                checkpoints.write(step)
        return model.state_dict()

    assert same(train(resume=False), train(resume=True))


def dying() -> nn.Sequential:
    torch.manual_seed(0)
    model = mlp()
    with torch.no_grad():
        for unit, bias in enumerate((-9.0, 0.05, 0.1)):
            model[0].weight[unit] = -model[0].weight[unit].abs()
            model[0].bias[unit] = bias
    return model


@pytest.mark.parametrize("order", ["built, then resumed", "loaded, built, then resumed"])
def test_nodedrop_goes_on_in_either_order(order: str, tmp_path: Path) -> None:
    def train(resume: bool) -> tuple[Any, ...]:
        model = dying()
        if resume and order.startswith("loaded"):
            nd.load(model, tmp_path / "step-00000004.safetensors")
        optimizer = torch.optim.Adam(model.parameters(), 0.02)
        drop = nd.NodeDrop(model, optimizer, torch.rand(2, 4), lam=0.01)
        checkpoints = Checkpoints(tmp_path, model, optimizer=optimizer, drop=drop)
        state = checkpoints.resume() if resume else {"step": 0}
        assert state is not None
        for step in range(state["step"] + 1, 13):
            loss = model(torch.rand(8, 4)).square().mean() + drop.penalty()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            drop.drop()
            if step == 4:
                checkpoints.write(step)
        return model, optimizer.state_dict(), drop.state_dict()

    model, optimizer, drop = train(resume=False)
    assert drop["events"][0]["step"] < 4 < drop["events"][-1]["step"]
    again, resumed, dropped = train(resume=True)
    assert repr(again) == repr(model)
    assert same(model.state_dict(), again.state_dict())
    assert repr(resumed) == repr(optimizer)
    assert dropped == drop


def test_the_file_is_plain_safetensors_and_a_model_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from safetensors import safe_open

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("pickle was used")

    for name in ("dump", "dumps", "Pickler", "load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    run = Run(tmp_path, width=5)
    run.step()
    model, first = mlp(), set()
    for step in range(72):  # headers of any length, whose lowest byte is the first of the file
        path = run.checkpoints.write(step, {"text": "x" * 4 * step})
        first.add(path.read_bytes()[0])
        nd.load(model, path, optimizer=torch.optim.SGD(model.parameters(), 0.1, momentum=0.9))
        assert Run(tmp_path).checkpoints.resume() == {"step": step, "text": "x" * 4 * step}
    assert first == set(range(0, 256, 8))
    assert same(model.state_dict(), run.model.state_dict())
    with safe_open(path, framework="pt") as file:
        assert torch.equal(file.get_tensor("0.weight"), run.model[0].weight)
        document = json.loads(file.metadata()["nodedrop"])
    assert (document["model"], document["run"]["step"]) == ("Sequential", 71)


def test_bad_arguments(tmp_path: Path) -> None:
    model = mlp()
    run = Run(tmp_path)
    for action, sentence in (
        (lambda: Checkpoints(tmp_path, 3), "the model must be an nn.Module, not int"),  # type: ignore[arg-type]
        (lambda: Checkpoints(tmp_path, model, keep=0), "keep must be a whole number from 1 on, not 0"),
        (lambda: Checkpoints(tmp_path, model, best=3), "'best' is a int, which has no state_dict"),
        (lambda: run.checkpoints.write(-1), "step must be a whole number from 0 on, not -1"),
        (lambda: run.checkpoints.write(1, {"a": [print]}), "'run.state.a.0' is a builtin_function_or_method, which is"),
        (
            lambda: Checkpoints(tmp_path, model, optimizer=torch.optim.SGD(mlp().parameters())).write(1),
            "the SGD holds none of the model's parameters",
        ),
    ):
        with pytest.raises(InputError, match=sentence):
            action()
    assert not list(tmp_path.iterdir())
