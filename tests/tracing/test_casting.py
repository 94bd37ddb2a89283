"""Regions of a forward that cast: what is written there is seen, and what runs there is part of what is compared."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.nn import functional as F

import nodedrop
from nodedrop.errors import TraceError
from nodedrop.tracing import trace
from nodedrop.tracing.export import trace_mode

from ..test_writes import PLAIN, SHARED, Use, assert_traced_as_it_computes, idle_dropout_in_place

WRITING = [use for use in (*PLAIN, *SHARED) if use is not idle_dropout_in_place]


def casting(use: Use) -> Use:
    def use_it(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            used = use(a, b, x)
        return used + a.sum() + b.sum() + x.sum()

    return use_it


@pytest.mark.parametrize("use", WRITING)
def test_writes_in_a_region_that_casts_are_seen(use: Use) -> None:
    assert_traced_as_it_computes(casting(use))


def a_value(net: Net, h: Tensor, x: Tensor) -> None:
    h[:, :1].add_(1.0)


def what_dropout_returns(net: Net, h: Tensor, x: Tensor) -> None:
    F.dropout(h, 0.5, training=False)[:, :1].add_(1.0)


def without_gradients(net: Net, h: Tensor, x: Tensor) -> None:
    with torch.no_grad():
        h[:, :1].add_(1.0)


def a_buffer(net: Net, h: Tensor, x: Tensor) -> None:
    net.offset[:1].add_((x.min() - 0.9).clamp(min=0) * 20)


class Net(nn.Module):
    """Adds to what unit 0 of the second layer reads, where that is the least expected."""

    def __init__(self, write: Callable[[Net, Tensor, Tensor], None]) -> None:
        super().__init__()
        self.write = write
        self.first, self.second, self.last = nn.Linear(8, 8), nn.Linear(8, 6), nn.Linear(6, 3)
        self.register_buffer("offset", torch.zeros(8))
        with torch.no_grad():
            self.first.weight.copy_(torch.eye(8))
            self.first.bias.zero_()
            self.second.weight[0], self.second.bias[0] = 1.0, -8.2

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x) + self.offset
        with torch.autocast("cpu", dtype=torch.bfloat16):
            self.write(self, h, x)
        return self.last(torch.relu(self.second(h)))


@pytest.mark.parametrize("write", [a_value, what_dropout_returns, without_gradients, a_buffer])
def test_no_unit_is_proved_dead_that_fires_by_a_write_there(write: Callable[[Net, Tensor, Tensor], None]) -> None:
    removed = nodedrop.compact_(Net(write), torch.rand(5, 8) * 0.5).removed
    assert ("second", 0) not in [(unit.layer, unit.index) for unit in removed]


def test_a_write_that_no_pass_of_the_exporter_brings_out_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ExportedProgram, "run_decompositions", lambda self, _: self)
    with pytest.raises(TraceError, match=r"add_\.Tensor at test_casting\.py:\d+ writes to a tensor from within a reg"):
        trace_mode(Net(a_value), (torch.rand(5, 8),), {}, "eval")


class Chosen(nn.Module):
    """A branch on data within a region, which the exporter then does not tell apart from what is around it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            h = self.first(x)
            h = torch.cond(h.sum() > 0, torch.sin, torch.cos, (h,))
        return self.last(h.float())


def test_what_is_cast_next_to_such_a_branch_is_seen_to_be() -> None:
    graph = trace_mode(Chosen(), (torch.rand(3, 4),), {}, "eval")
    first = next(node for node in graph.nodes if node.op == "aten.linear.default")
    assert {graph.by_name[name].dtype for name in first.inputs} == {torch.bfloat16}


class Noisy(nn.Module):
    """Does something else in train mode, but only where it casts."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            h = h * (2.0 if self.training else 1.0)
        return self.last(h)


def test_modes_that_differ_within_a_region_differ() -> None:
    assert len(trace(Noisy(), torch.rand(3, 4)).graphs) == 2
