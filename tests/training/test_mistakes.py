"""What users get wrong around training, and the sentence they read."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

import nodedrop as nd
from nodedrop.errors import CutError, InputError
from nodedrop.training import NodeDrop, schedules


def net(dead: int = 2) -> nn.Sequential:
    model = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2))
    with torch.no_grad():
        for layer in (model[0], model[2]):
            layer.bias.fill_(9.0)
        model[0].bias[:dead] = -9.0
    return model


def adam(*models: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam([p for model in models for p in model.parameters()])


def test_what_no_optimizer_moves_is_said_once() -> None:
    model = net()
    drop = NodeDrop(model, adam(model[2], model[4]), torch.rand(2, 3))
    with pytest.warns(UserWarning, match="the penalty does not move 0: the optimizer does not have their parameters"):
        drop.drop()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drop.drop()


def test_parameters_may_join_the_optimizer_until_the_first_look() -> None:
    model = net()
    optimizer = adam(model[2], model[4])
    drop = NodeDrop(model, optimizer, torch.rand(2, 3))
    optimizer.add_param_group({"params": model[0].parameters()})
    assert drop.drop() is not None


def test_a_state_from_before_a_cut_is_refused_and_one_from_after_it_is_taken() -> None:
    model = net()
    drop = NodeDrop(model, adam(model), torch.rand(2, 3))
    early = drop.state_dict()
    assert drop.drop() is not None
    with pytest.raises(InputError, match="from before cuts that this NodeDrop has made since; build model"):
        drop.load_state_dict(early)
    assert len(drop.events) == 1
    drop.load_state_dict(drop.state_dict())


def test_a_file_from_before_a_cut_needs_a_model_built_anew(tmp_path: Path) -> None:
    model = net()
    nd.save(model, tmp_path / "full.safetensors")
    nd.compact_(model, torch.rand(2, 3))
    with pytest.raises(InputError, match="if the file is from before a cut, load it into a model built anew"):
        nd.load(model, tmp_path / "full.safetensors")


def test_a_penalty_that_is_kept_to_be_looked_at_is_named() -> None:
    model = net()
    drop = NodeDrop(model, adam(model), torch.rand(2, 3))
    looked_at = drop.penalty()
    with pytest.raises(CutError, match=r"of a penalty that is only looked at keep \.item\(\) alone"):
        drop.drop()
    del looked_at
    assert drop.drop() is not None


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_model_that_was_cast_needs_a_new_nodedrop(dtype: torch.dtype) -> None:
    model = net()
    drop = NodeDrop(model, None, torch.rand(2, 3))
    model.to(dtype)
    with pytest.raises(InputError, match="changed shape or type, or were replaced, by other hands"):
        drop.drop()


def test_a_closed_nodedrop_says_so() -> None:
    model = net()
    drop = NodeDrop(model, None, torch.rand(2, 3))
    drop.close()
    for call in (drop.penalty, drop.drop):
        with pytest.raises(InputError, match="was closed, and has let go of the model"):
            call()


@pytest.mark.parametrize("value", [None, -1.0, float("nan")])
def test_a_schedule_that_gives_no_lam_is_refused(value: Any) -> None:
    drop = NodeDrop(net(), None, torch.rand(2, 3), lam=lambda step: value)
    with pytest.raises(InputError, match="λ must be a number from 0 on"):
        drop.penalty()


@pytest.mark.parametrize("name", ["steps", "after", "hold"])
def test_no_schedule_has_fewer_steps_than_none(name: str) -> None:
    with pytest.raises(InputError, match=f"{name} must be at least 0, not -5"):
        schedules.anneal(1e-3, 1e-5, **{"steps": 10, name: -5})


@pytest.mark.parametrize("average", [AveragedModel, copy.deepcopy])
def test_one_copy_needs_no_list(average: Any) -> None:
    model = net()
    averaged = average(model)
    drop = NodeDrop(model, None, torch.rand(2, 3), copies=averaged)
    assert drop.drop() is not None
    assert next(averaged.parameters()).shape == (4, 3)


def test_a_copy_is_a_module() -> None:
    model = net()
    with pytest.raises(InputError, match="such as AveragedModel, not OrderedDict"):
        NodeDrop(model, None, torch.rand(2, 3), copies=[model.state_dict()])  # type: ignore[list-item]


def test_an_event_prints_in_a_line() -> None:
    event = NodeDrop(net(), None, torch.rand(2, 3)).drop()
    assert repr(event).startswith("DropEvent(step=0, parameters=")
    assert len(repr(event)) < 150


def test_why_a_dead_unit_stays_is_told_by_what_holds_it() -> None:
    """A batch norm behind the activation makes another number of 0; in a sum the other unit is alive."""
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 1))
    with torch.no_grad():
        model[0].bias.copy_(torch.tensor([-9.0, -9.0, 9.0, 9.0]))
        model[2].bias.fill_(0.3)
    (first, _) = nd.analyze(model, torch.rand(2, 3, 4, 4)).accounts
    assert first.reasons == {"dead, but on its way to the next layer its 0 becomes another number": 2}

    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.head = nn.Linear(3, 4), nn.Linear(3, 4), nn.Linear(4, 2)
            nn.init.constant_(self.a.bias, -9.0)
            nn.init.constant_(self.b.bias, 9.0)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.a(x).relu() + self.b(x).relu())  # type: ignore[no-any-return]

    accounts = {item.layer: item for item in nd.analyze(Sum(), torch.rand(2, 3)).accounts}
    assert list(accounts["a"].reasons) == ["dead, but joined with units that are alive, or read by what is not 0 at 0"]
