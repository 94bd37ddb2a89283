"""A model, its weights and its example are after an analysis what they were, in whatever way a forward writes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import suppress

import pytest
import torch
from torch import Tensor, nn

import nodedrop as nd
from nodedrop.tracing.undisturbed import fresh, undisturbed


class Writer(nn.Module):
    """Writes to its first layer before it is used, in some way."""

    def __init__(self, write: Callable[[Writer, Tensor], object]) -> None:
        super().__init__()
        self.write, self.first, self.last = write, nn.Linear(4, 8), nn.Linear(8, 3)
        self.register_buffer("scale", torch.ones(8))
        with torch.no_grad():
            self.first.bias[:2] = -3.0

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.write(self, x)
        y: Tensor = self.last(torch.relu(self.first(x) * self.scale))
        return y


def assign(net: Writer, x: Tensor) -> None:
    net.first.weight.data = net.first.weight.data.abs() * 1.5


def assign_a_buffer(net: Writer, x: Tensor) -> None:
    net.scale.data = net.scale.data * 1.5


def hand_over(net: Writer, x: Tensor) -> None:
    net.first.weight.data = net.first.weight.data.clone()
    net.first.weight.data.abs_().mul_(1.5)


def replace(net: Writer, x: Tensor) -> None:
    net.first.weight = nn.Parameter(net.first.weight.abs() * 1.5)


def register(net: Writer, x: Tensor) -> None:
    net.register_parameter("more", nn.Parameter(x.sum()))


WRITES: dict[str, Callable[[Writer, Tensor], object]] = {
    "data =": assign,
    "data = of a buffer": assign_a_buffer,
    "data, then in place": hand_over,
    "data.mul_": lambda net, x: net.first.weight.data.abs_().mul_(1.5),
    "data of a buffer": lambda net, x: net.scale.data.mul_(1.5),
    "_foreach_mul_": lambda net, x: torch._foreach_mul_([net.first.weight], 1.5),
    "detach": lambda net, x: net.first.bias.detach().sub_(-1.5),
    "another Parameter": replace,
    "a new Parameter": register,
    "the input": lambda net, x: x.mul_(0.5),
}


def everything(net: nn.Module) -> list[tuple[str, int, Tensor]]:
    named = [*net.named_parameters(), *net.named_buffers()]
    return [(name, id(tensor), tensor.detach().clone()) for name, tensor in named]


@pytest.mark.parametrize("name", WRITES)
def test_an_analysis_changes_nothing(name: str) -> None:
    net, x = Writer(WRITES[name]), torch.rand(5, 4)
    before, memory, example = everything(net), net.first.weight.data_ptr(), x.clone()
    nd.analyze(net, x)
    assert torch.equal(x, example)
    assert net.first.weight.data_ptr() == memory
    for (old, key, value), (new, other, now) in zip(before, everything(net), strict=True):
        assert (old, key) == (new, other)
        assert torch.equal(value, now)


@pytest.mark.parametrize("name", WRITES)
def test_what_a_forward_changes_is_no_constant_of_a_proof(name: str) -> None:
    torch.manual_seed(0)
    net = Writer(WRITES[name])
    before = copy.deepcopy(net)
    with suppress(nd.NodeDropError):  # where nothing else is left to trace
        nd.compact_(net, torch.rand(5, 4))
    for _ in range(10):
        x = torch.rand(5, 4)
        torch.testing.assert_close(net(x.clone()), before(x.clone()))


def test_what_was_one_tensor_still_is() -> None:
    x = torch.rand(3)
    (first, second), by_name = fresh(([x, x], {"x": x}))
    assert first is second is by_name["x"]
    assert first is not x
    assert torch.equal(first, x)


def test_what_a_pass_has_changed_is_told() -> None:
    net = Writer(WRITES["data.mul_"])
    with undisturbed(net) as kept:
        net(torch.rand(2, 4))
        assert kept.put_back() == {"first.weight"}
        assert kept.put_back() == set()
