"""Tensors and modules of a kind that nothing is known about are refused in a sentence, or left alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import nodedrop as nd
from nodedrop.bounds import propagate

from .test_bad_input import refused

EXAMPLE = torch.rand(3, 4)


class Holding(nn.Module):
    """A layer, and a tensor of some layout."""

    def __init__(self, held: Tensor) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 2)
        self.register_buffer("held", held)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(torch.relu(self.first(x if x.layout is torch.strided else x.to_dense())))
        return y


LAYOUTS = {
    "sparse_coo": lambda t: t.to_sparse(),
    "sparse_csr": lambda t: t.to_sparse_csr(),
    "nested": lambda t: torch.nested.nested_tensor([t, t[:2]]),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.filterwarnings("ignore:Sparse|.*nested")
def test_tensors_that_are_not_dense_are_refused(layout: str) -> None:
    strange = LAYOUTS[layout](torch.eye(4))
    model = Holding(strange)
    for call in (nd.analyze, nd.compact_):
        with pytest.raises(ValueError, match=f"'held' is a .*{layout}"):
            call(model, EXAMPLE)
    if layout != "nested":
        refused(Holding(torch.eye(4)), strange, ValueError, "input 0 of the model", layout, "to_dense()")


def test_the_module_of_an_exported_program_is_refused() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    exported = torch.export.export(model, (EXAMPLE,)).module()
    refused(exported, EXAMPLE, ValueError, "the model is the module of an exported program", "pass the nn.Module")
    refused(nn.Sequential(exported), EXAMPLE, ValueError, "'0' is the module of an exported program")


class Learned(nn.Module):
    """An activation of which one number is a buffer's."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.first, self.last = kind, nn.Linear(4, 4), nn.Linear(4, 2)
        self.register_buffer("edge", torch.tensor(0.1))
        with torch.no_grad():
            self.first.bias[0] = -9.0

    def forward(self, x: Tensor) -> Tensor:
        z, edge = self.first(x), self.edge.item()
        if self.kind == "threshold":
            z = F.threshold(z, edge, 0.0)
        elif self.kind == "threshold to":
            z = F.threshold(z, 0.0, edge)
        elif self.kind == "clamp":
            z = z.clamp(min=edge)
        else:
            z = z.clamp(0.0, edge)
        y: Tensor = self.last(z)
        return y


@pytest.mark.parametrize("kind", ["threshold", "threshold to", "clamp", "clamp to"])
def test_an_activation_with_an_edge_that_is_computed_is_taken_as_it_comes(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(propagate, "STRICT", False)  # no rule foresees it
    model, x = Learned(kind), torch.rand(9, 4)
    before = model(x)
    assert nd.analyze(model, EXAMPLE).units
    nd.compact_(model, EXAMPLE)
    torch.testing.assert_close(model(x), before)
