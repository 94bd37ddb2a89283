"""Statistics as kernels form them: in long sums, of batches of any size, channels last, beside any ε."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.bounds.without import proved_without
from torch import Tensor, nn

from nodedrop import analyze, compact_, verify

CENTRE = 1.8442211151123047


def dead(model: nn.Module, example: Any, **options: Any) -> list[int]:
    return [item.index for item in analyze(model, example, **options).removable]


def units(layer: nn.Module, weight: float, bias: list[float]) -> None:
    """Unit 0 is the one that should be dead, unit 1 always fires; both read the first input alone."""
    with torch.no_grad():
        layer.weight.zero_()
        layer.weight[:, 0] = weight
        layer.bias.copy_(torch.tensor(bias))


def behind_batch_norm(bias: float) -> nn.Sequential:
    model = nn.Sequential(nn.BatchNorm1d(1), nn.Linear(1, 2), nn.ReLU(), nn.Linear(2, 1))
    units(model[1], 1.0, [bias, 1.0])
    model[0].running_mean.fill_(CENTRE)
    return model


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Several would add up parts of a batch, and lose less."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
def test_a_long_sum_is_off_by_its_length() -> None:
    model, x = behind_batch_norm(-0.01), torch.full((8192, 1), CENTRE)
    assert float(model.train()[:3](x)[:, 0].detach().max()) > 0
    for options in ({}, {"mode": "train"}, {"mode": "train", "batch_size": 8192}):
        assert dead(model, x[:4], domain=(CENTRE - 1e-6, CENTRE + 1e-6), **options) == []
    narrow = {"domain": (CENTRE - 1e-6, CENTRE + 1e-6), "modes": "train"}
    assert not proved_without(model, model[1], model[3], x[:4], **narrow)
    assert dead(behind_batch_norm(-330.0), x[:4], domain=(1.0, 2.0)) == []  # 316 is what the spread allows
    assert dead(behind_batch_norm(-1e3), x[:4], domain=(1.0, 2.0)) == [0]
    model = behind_batch_norm(-1e3)
    assert proved_without(model, model[1], model[3], x[:4], domain=(1.0, 2.0), modes="train")


class Grouped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.hidden, self.head = nn.GroupNorm(2, 4), nn.Conv2d(4, 2, 1), nn.Conv2d(2, 1, 1)
        units(self.hidden, 1.0, [-3.0, 0.5])

    def fires(self, x: Tensor) -> float:
        return float(self.hidden(self.norm(x))[:, 0].detach().max())

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.hidden(self.norm(x))))


def test_a_variance_may_cancel_where_channels_lie_last() -> None:
    model, x = Grouped(), torch.full((256, 4, 1, 2), 100.0)
    x[:, 0, 0, 0] += torch.linspace(0, 0.05, 256)
    last = x.contiguous(memory_format=torch.channels_last)
    assert model.fires(last) > 0 > model.fires(x)
    assert dead(model, last, domain=(90.0, 101.0)) == []
    assert dead(model, x, domain=(90.0, 101.0)) == [0]
    for example, proved in ((last, False), (x, True)):
        model = Grouped()
        assert proved_without(model, model.hidden, model.head, example[:2], domain=(90.0, 101.0)) is proved


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_what_is_proved_of_small_values_the_checker_proves_too(memory_format: torch.memory_format) -> None:
    model, x = Grouped(), torch.rand(2, 4, 1, 2).contiguous(memory_format=memory_format)
    before = copy.deepcopy(model)
    ledger = compact_(model, x)
    assert [item.index for item in ledger.removed] == [0]
    assert verify(before, model, x).status == "proved"


class Times(nn.Module):
    """Samples times a number that all share."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.hidden, self.head = nn.BatchNorm1d(2), nn.Linear(2, 2), nn.Linear(2, 1)
        units(self.hidden, 1.0, [-2.2, 1.0])

    def inner(self, shared: Tensor, x: Tensor) -> Tensor:
        return torch.relu(self.hidden(self.norm(x * shared.mean())))

    def forward(self, shared: Tensor, x: Tensor) -> Tensor:
        return self.head(self.inner(shared, x))


def test_a_batch_is_counted_by_the_input_that_has_it() -> None:
    model, x = Times().train(), torch.zeros(16, 2)
    x[0] = 1
    assert float(model.inner(torch.ones(16), x)[:, 0].detach().max()) > 0
    assert dead(model, (torch.ones(16), torch.rand(4, 2)), mode="train", batch_size=16) == []
    assert dead(model, (torch.ones(16), torch.rand(4, 2)), mode="train", batch_size=4) == [0]
    for size, proved in ((16, False), (4, True)):
        model = Times()
        inputs = (torch.ones(16), torch.rand(4, 2))
        assert proved_without(model, model.hidden, model.head, inputs, modes="train", batch_size=size) is proved


def test_a_range_may_go_beyond_its_end() -> None:
    class Ranged(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.hidden, self.head = nn.Linear(1, 2), nn.Linear(2, 1)
            units(self.hidden, 1e8, [0.0, 1.0])
            with torch.no_grad():
                self.hidden.weight[1] = 1.0

        def inner(self, x: Tensor) -> Tensor:
            return torch.relu(self.hidden(x * torch.arange(-1.50000001, 0.0, 0.1).amax()))

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.inner(x))

    model = Ranged()
    assert float(model.inner(torch.ones(1, 1))[0, 0].detach()) > 0
    assert dead(model, torch.rand(3, 1)) == []


def test_nothing_is_bounded_where_a_variance_may_be_zero() -> None:
    class Below(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.hidden, self.norm, self.head = nn.Linear(1, 2), nn.BatchNorm1d(2), nn.Linear(2, 1)
            with torch.no_grad():
                self.hidden.weight.fill_(1.0)
                self.hidden.bias.zero_()
                self.norm.bias.copy_(torch.tensor([-5100.0, 1.0]))
                self.norm.running_var.fill_(torch.nextafter(torch.tensor(0.3), torch.tensor(1.0)))

        def forward(self, x: Tensor) -> Tensor:
            n = self.norm
            normed = torch.batch_norm(
                self.hidden(x), n.weight, n.bias, n.running_mean, n.running_var, False, 0.1, -0.3, False
            )
            return self.head(torch.relu(normed))

    assert dead(Below().eval(), torch.ones(3, 1), mode="eval") == []
