"""What a user may get wrong around a cut: each is said in a sentence, before anything is lost."""

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import nodedrop as nd
from nodedrop.errors import CutError, InputError
from nodedrop.training import NodeDrop, schedules


def net(dead: int = 2) -> nn.Sequential:
    torch.manual_seed(0)
    made = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2))
    nn.init.constant_(made[0].bias, 0.5)
    nn.init.constant_(made[0].bias[:dead], -9.0)
    return made


def shrinking(model: nn.Module, example: Tensor | None = None, **options: object) -> NodeDrop:
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    return NodeDrop(model, optimizer, torch.rand(2, 4) if example is None else example, **options)


def test_every_penalty_that_is_not_yet_differentiated_forbids_a_cut() -> None:
    model = net()
    drop = shrinking(model, lam=1e-3)
    first, second = (model(torch.rand(3, 4)).sum() + drop.penalty() for _ in range(2))
    second.backward()
    with pytest.raises(CutError, match=r"call it after optimizer\.step\(\)"):
        drop.drop()
    first.backward()
    assert drop.drop() is not None


def test_a_pending_loss_is_seen_before_the_penalty_begins_to_act() -> None:
    model = net()
    drop = shrinking(model, lam=schedules.warm_up(1e-3, steps=10))
    loss = model(torch.rand(3, 4)).sum() + drop.penalty()
    with pytest.raises(CutError, match="between penalty"):
        drop.drop()
    loss.backward()
    assert drop.drop() is not None


def test_a_loss_that_was_given_up_forbids_nothing() -> None:
    model = net()
    drop = shrinking(model)
    _ = model(torch.rand(3, 4)).sum() + drop.penalty()
    del _
    assert drop.drop() is not None


def normalised() -> nn.Sequential:
    torch.manual_seed(0)
    made = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2))
    nn.init.constant_(made[1].bias[:3], -90.0)
    nn.init.constant_(made[1].bias[3], 1.0)
    return made


def test_batches_larger_than_the_proofs_allow_are_refused() -> None:
    model, image = normalised(), torch.rand(2, 1, 4, 4)
    drop = shrinking(model, image, evidence="batch-proved", batch_size=8)
    model(torch.rand(8, 1, 4, 4))
    drop.penalty()
    model.eval()
    model(torch.rand(100, 1, 4, 4))  # evaluation has no batch statistics
    drop.penalty()
    model.train()
    model(torch.rand(9, 1, 4, 4))
    with pytest.raises(InputError, match=r"as many values as 9 samples.* up to batch_size=8"):
        drop.penalty()


def test_a_layer_left_with_one_unit_is_still_penalised() -> None:
    model = normalised()
    drop = shrinking(model, torch.rand(2, 1, 4, 4), evidence="batch-proved", batch_size=8, lam=1.0)
    assert drop.drop() is not None
    assert drop.widths == {"0": 1}
    drop.penalty().backward()
    assert model[1].bias.grad is not None
    assert model[1].bias.grad.item() != 0


def test_the_original_index_of_a_last_unit_survives_a_restart() -> None:
    model = normalised()
    drop = shrinking(model, torch.rand(2, 1, 4, 4), evidence="batch-proved", batch_size=8)
    drop.drop()
    state, weights = drop.state_dict(), copy.deepcopy(model.state_dict())
    fresh = normalised()
    again = shrinking(fresh, torch.rand(2, 1, 4, 4), evidence="batch-proved", batch_size=8)
    nd.load(fresh, weights)
    again.load_state_dict(state)
    assert again.state_dict() == state
    assert state["origin"]["0.weight:0"] == [3]
    assert again.widths == {"0": 1}


def test_a_model_cut_by_other_hands_is_refused() -> None:
    model = net()
    drop = shrinking(model)
    nd.compact_(model, torch.rand(2, 4))
    with pytest.raises(InputError, match="changed their shapes by other hands"):
        drop.drop()


def test_neither_a_part_nor_the_whole_gets_a_second_nodedrop() -> None:
    inner = net()
    outer = nn.Sequential(inner, nn.Linear(2, 2))
    first = shrinking(inner)
    with pytest.raises(InputError, match="already has a NodeDrop"):
        shrinking(outer)
    del first
    second = shrinking(outer)
    with pytest.raises(InputError, match="already has a NodeDrop"):
        shrinking(inner)
    del second


@pytest.mark.parametrize("lam", ["1e-5", None, True, float("nan"), float("inf"), -1])
def test_lam_must_be_a_number(lam: object) -> None:
    with pytest.raises(InputError, match="λ must be a number from 0 on"):
        shrinking(net(), lam=lam)


@pytest.mark.parametrize("name", ["lam_of", "spare_of"])
def test_a_layer_that_is_not_there_is_refused(name: str) -> None:
    with pytest.raises(InputError, match=rf"{name} names 'fc\*', and no layer that the penalty acts on does: 0, 2"):
        shrinking(net(), **{name: {"fc*": 0.5}})


class Other(nn.Sequential):
    pass


def test_a_file_of_another_class_is_loaded_with_a_warning(tmp_path: Path) -> None:
    nd.save(net(), tmp_path / "a.safetensors")
    with pytest.warns(UserWarning, match="was written from a Sequential, and Other has tensors of the same names"):
        nd.load(Other(*net()), tmp_path / "a.safetensors")
