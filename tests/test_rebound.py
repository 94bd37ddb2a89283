"""A forward pass that puts another tensor in the place of a buffer is not what a trace shows."""

import copy
from contextlib import suppress

import pytest
import torch
from torch import Tensor, nn

import nodedrop as nd


class Running(nn.Module):
    """Counts its calls in a buffer, which is added to its units."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, self.first, self.last = way, nn.Linear(8, 16), nn.Linear(16, 4)
        self.register_buffer("count", torch.ones(1))
        with torch.no_grad():
            self.first.weight[:6], self.first.bias[:6] = 1.0, -20.0

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(torch.relu(self.first(x) + self.count))
        if self.way == "assigned" or (self.way == "in train mode" and self.training):
            self.count = self.count + 1
        elif self.way == "by name":
            self._buffers["count"] = self.count + 1
        elif self.way == "same":
            self.count = self.count.clone()
        elif self.way == "written":
            self.count += 1
        return y


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("way", ["assigned", "in train mode", "by name", "written"])
def test_a_buffer_that_changes_is_no_constant(way: str, inside: bool) -> None:
    torch.manual_seed(0)
    model: nn.Module = Running(way)
    model = nn.Sequential(model) if inside else model
    before = copy.deepcopy(model)
    with suppress(nd.NodeDropError):  # where nothing else is left to trace
        nd.compact_(model, torch.rand(2, 8))
    for _ in range(100):
        x = torch.rand(4, 8)
        torch.testing.assert_close(model(x), before(x))


def test_a_buffer_that_is_replaced_by_its_like_is_one() -> None:
    model = nn.Sequential(Running("same"))
    assert len(nd.compact_(model, torch.rand(2, 8)).removed) == 6
