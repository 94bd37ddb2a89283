"""What a unit costs, against what a network saves without it; and the pressure that follows from it."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import nodedrop as nd
from nodedrop.training.cost import costs


class Twice(nn.Module):
    """A residual block, and a layer that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.inner, self.back = nn.Linear(3, 6), nn.Linear(6, 5), nn.Linear(5, 6)
        self.head = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        for _ in range(2):
            x = x + torch.relu(self.back(torch.relu(self.inner(x))))
        return self.head(x)


def networks() -> dict[str, tuple[nn.Module, Tensor]]:
    images = torch.rand(2, 3, 9, 9)
    relu, pool, flat = nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()
    plain = nn.Sequential(nn.Conv2d(3, 4, 3), relu, pool, nn.Conv2d(4, 5, 2), relu, flat, nn.Linear(20, 6), relu)
    parted = nn.Sequential(nn.Conv2d(3, 6, 3), relu, nn.Conv2d(6, 6, 3, groups=6), relu, nn.Conv2d(6, 2, 1))
    turned = nn.Sequential(nn.Conv2d(3, 4, 3), relu, nn.ConvTranspose2d(4, 5, 3, stride=2), relu, nn.Conv2d(5, 2, 1))
    steps = nn.Sequential(nn.Linear(4, 8), relu, nn.Linear(8, 3))
    return {
        "plain": (nn.Sequential(*plain, nn.Linear(6, 2)), images),
        "depthwise": (parted, images),
        "transposed": (turned, images),
        "positions": (steps, torch.rand(2, 7, 4)),
        "twice": (Twice(), torch.rand(2, 3)),
    }


TOGETHER = {"depthwise": [("0", "2")], "twice": [("stem", "back")]}  # layers whose units can only go together


def multiply_adds(model: nn.Module, example: Tensor) -> int:
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(example)
    return int(counter.get_total_flops()) // 2


@pytest.mark.parametrize("name", networks())
def test_a_unit_costs_what_the_network_saves_without_it(name: str) -> None:
    torch.manual_seed(0)
    model, example = networks()[name]
    for layer in (item for item in model.modules() if isinstance(item, nn.Linear | nn.Conv2d | nn.ConvTranspose2d)):
        nn.init.constant_(layer.bias, 0.5)
    drop = nd.NodeDrop(model, None, example)
    found = costs(drop._session.structure, drop.targets)
    assert len(found) >= 1
    for target, cost in zip(drop.targets, found, strict=True):
        other = copy.deepcopy(model)
        for path in next((group for group in TOGETHER.get(name, ()) if target.layer in group), [target.layer]):
            layer = other.get_submodule(path)
            weight = layer.weight.transpose(0, 1) if isinstance(layer, nn.ConvTranspose2d) else layer.weight
            with torch.no_grad():
                weight[0], layer.bias[0] = 0.0, -1.0
        before = multiply_adds(other, example)
        assert len(nd.compact_(other, example, learning=True).removed) >= 1
        assert before - multiply_adds(other, example) == pytest.approx(cost)


def test_a_unit_that_one_group_reads_costs_what_that_group_does_with_it() -> None:
    """Groups keep one size, so a unit of each has to go."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Conv2d(6, 4, 3, groups=2), nn.ReLU(), nn.Conv2d(4, 2, 1))
    example = torch.rand(2, 3, 9, 9)
    nn.init.constant_(model[0].bias, 0.5)
    drop = nd.NodeDrop(model, None, example)
    (cost, *_) = costs(drop._session.structure, drop.targets)
    before = multiply_adds(model, example)
    with torch.no_grad():
        model[0].weight[::3], model[0].bias[::3] = 0.0, -1.0
    event = drop.drop()
    assert event is not None
    assert len(event.removed) == 2
    assert before - multiply_adds(model, example) == pytest.approx(2 * cost)


def test_the_toll_is_more_pressure_where_units_cost_more() -> None:
    """λ's factors are costs beside their mean, to the given power, on top of those of `lam_of`."""
    model, example = networks()["plain"]
    plain = nd.NodeDrop(copy.deepcopy(model), None, example, lam=1e-3)
    assert [factor for factor, *_ in plain._terms] == [1.0, 1.0, 1.0]
    found = costs(plain._session.structure, plain.targets)
    mean = sum(found) / 3
    for power in (0.5, 1.0):
        drop = nd.NodeDrop(copy.deepcopy(model), None, example, lam=1e-3, toll=power, lam_of={"0": 3.0})
        wanted = [3 * (found[0] / mean) ** power, *((cost / mean) ** power for cost in found[1:])]
        assert [factor for factor, *_ in drop._terms] == pytest.approx(wanted)
    assert found[0] > found[2], "a unit of a convolution costs more than one of a small dense layer"


def test_a_layer_of_one_unit_has_the_mean() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    nn.init.constant_(model[0].bias[1:], -9.0)
    nn.init.constant_(model[0].bias[:1], 1.0)
    drop = nd.NodeDrop(model, None, torch.rand(2, 3), lam=1e-3, toll=1.0)
    assert drop.drop() is not None
    assert drop.widths == {"0": 1}
    assert float(drop.penalty().detach()) > 0
