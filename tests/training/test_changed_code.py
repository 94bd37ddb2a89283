"""Code that changes between cuts: a number of its own, a hook, a module. Proofs speak of what runs now."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import nodedrop as nd


class Edge(nn.Module):
    """Units that fire above an edge, a number of the module's own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.act, self.last, self.edge = nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2), 5.0

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.last(self.act(self.first(x) - self.edge))
        return found


def lowered(model: Edge) -> None:
    model.edge = 0.0


def hooked(model: Edge) -> None:
    model.first.register_forward_hook(lambda module, args, out: out + 5.0)


def replaced(model: Edge) -> None:
    model.act = nn.GELU()  # type: ignore[assignment]


@pytest.mark.parametrize("change", [lowered, hooked, replaced])
@pytest.mark.parametrize("resumed", [False, True])
def test_what_changed_since_the_last_cut_is_traced_again(change: Callable[[Edge], None], resumed: bool) -> None:
    torch.manual_seed(0)
    model = Edge()
    with torch.no_grad():
        model.first.bias.fill_(7.0)
        model.first.bias[:2] = -9.0
    drop = nd.NodeDrop(model, None, torch.rand(2, 4))
    assert drop.drop() is not None
    if resumed:
        state = drop.state_dict()
        drop.close()
        drop = nd.NodeDrop(model, None, torch.rand(2, 4))
        drop.load_state_dict(state)
    with torch.no_grad():  # dead below an edge of 5, and fires above one of 0
        model.first.weight[0], model.first.bias[0], model.last.weight[:, 0] = 1.0, -3.5, 10.0
        model.first.bias[1] = -30.0  # dead in any case, but for GELU
    change(model)
    x = torch.ones(1, 4)
    before = model(x)
    event = drop.drop()
    assert torch.allclose(model(x), before, atol=1e-5)
    gone = [] if event is None else [item.index for item in event.removed]
    assert gone == ([] if change is replaced else [3])


def test_units_keep_their_first_indices_when_code_changes() -> None:
    model = Edge()
    with torch.no_grad():
        model.first.bias.fill_(7.0)
        model.first.bias[[2, 5]] = -9.0
    drop = nd.NodeDrop(model, None, torch.rand(2, 4))
    drop.drop()
    model.edge = 4.0
    with torch.no_grad():
        model.first.bias[2] = -9.0  # the fourth of the units that there were
    event = drop.drop()
    assert event is not None
    assert [item.index for item in event.removed] == [3]


class Grows(nn.Module):
    """A second way that is taken later, by a layer that no trace had seen."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.more, self.last, self.both = nn.Linear(4, 8), nn.Linear(4, 6), nn.Linear(8, 2), False
        self.end = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.last(torch.relu(self.first(x)))
        return found + self.end(torch.relu(self.more(x))) if self.both else found


def test_layers_that_come_into_use_are_cut_and_pressed_from_then_on() -> None:
    model = Grows()
    with torch.no_grad():
        for layer in (model.first, model.more):
            layer.bias.fill_(3.0)
        model.first.bias[:2] = -9.0
        model.more.bias[:3] = -9.0
    drop = nd.NodeDrop(model, None, torch.rand(2, 4))
    drop.drop()
    model.both = True
    with torch.no_grad():
        model.first.bias[0] = -9.0
    event = drop.drop()
    assert event is not None
    gone = [("first", 2), ("more", 0), ("more", 1), ("more", 2)]
    assert sorted((item.layer, item.index) for item in event.removed) == gone
    assert drop.widths == {"first": 5, "more": 3}
