"""Regions that say whether gradients are kept, or that nothing is cast, change nothing in what is proved and cut."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nodedrop
from nodedrop.tracing import trace
from nodedrop.tracing.execute import execute
from nodedrop.tracing.graph import INPUT, tensors_of

Region = Callable[[], AbstractContextManager[Any]]
REGIONS: dict[str, Region] = {
    "no_grad": torch.no_grad,
    "enable_grad": torch.enable_grad,
    "no autocast": lambda: torch.autocast("cpu", enabled=False),
}


class Regions(nn.Module):
    """Six inputs, eight units of which three can fire, four of which two can, three outputs."""

    def __init__(self, kind: str, region: Region) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(6, 8), nn.Linear(8, 4), nn.Linear(4, 3)
        self.norm = nn.BatchNorm1d(8)
        self.register_buffer("seen", torch.zeros(8))
        self.kind, self.region = kind, region
        with torch.no_grad():
            for layer, alive in ((self.first, 3), (self.second, 2)):
                layer.weight[alive:], layer.bias[alive:] = 0.0, -1.0

    def forward(self, x: Tensor) -> Any:
        h = torch.relu(self.first(x))
        return getattr(self, self.kind)(h)

    def rest(self, h: Tensor) -> Tensor:
        return self.last(torch.relu(self.second(h)))

    def values(self, h: Tensor) -> Tensor:
        with self.region():
            h = h * 2
            h = h + 1
        return self.rest(h)

    def layers(self, h: Tensor) -> tuple[Tensor, Tensor]:
        with self.region():
            h = torch.relu(self.second(h))
        return self.last(h), h

    def nested(self, h: Tensor) -> dict[str, Tensor]:
        with self.region():
            scale = self.rest(h).sum(1, keepdim=True)
            with self.region():
                found = self.rest(h)
        return {"scaled": found * scale, "found": found, "again": found}

    def written(self, h: Tensor) -> Tensor:
        with self.region():
            h.mul_(2.0)
            h += 1
        return self.rest(h)

    def counted(self, h: Tensor) -> Tensor:
        with self.region():
            self.seen += h.detach().mean(0)
        return self.rest(h)

    def normed(self, h: Tensor) -> Tensor:
        with self.region():
            h = self.norm(h)
        return self.rest(h)

    def constant(self, h: Tensor) -> Tensor:
        with self.region():
            h = h * torch.arange(8.0)
        return self.rest(h)

    def norm_of_weights(self, h: Tensor) -> Tensor:
        with self.region():
            norm = self.first.weight.norm()
        return self.rest(h / (1 + norm))


KINDS = ("values", "layers", "nested", "written", "counted", "normed", "constant", "norm_of_weights")


@pytest.mark.parametrize("region", REGIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_region_changes_nothing_in_the_graph(kind: str, region: str) -> None:
    plain, model = Regions(kind, nullcontext), Regions(kind, REGIONS[region])
    example, x = torch.rand(4, 6), torch.rand(3, 6)
    expected = torch.utils._pytree.tree_leaves(model.eval()(x))
    for graph, without in zip(trace(model, example).graphs, trace(plain, example).graphs, strict=True):
        assert [node.op for node in graph.nodes] == [node.op for node in without.nodes]
        if "eval" in graph.modes:
            values = execute(graph, tensors_of(model), {node.name: x for node in graph.nodes if node.op == INPUT})
            torch.testing.assert_close([values[name] for name in graph.outputs], expected)


@pytest.mark.parametrize("kind", ["values", "layers", "nested"])
def test_units_behind_a_region_are_cut(kind: str) -> None:
    model = Regions(kind, torch.no_grad)
    nodedrop.compact_(model, torch.rand(4, 6))
    assert model.first.out_features == 3


def test_a_region_that_casts_is_not_looked_into() -> None:
    model = Regions("values", lambda: torch.autocast("cpu", dtype=torch.bfloat16))
    ops = {node.op for graph in trace(model, torch.rand(4, 6)).graphs for node in graph.nodes}
    assert "python.wrap_with_autocast" in ops


def test_within_autocast_a_region_without_it_is_one_of_its_own() -> None:
    model = Regions("values", REGIONS["no autocast"])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ops = {node.op for graph in trace(model, torch.rand(4, 6)).graphs for node in graph.nodes}
    assert "python.wrap_with_autocast" in ops
