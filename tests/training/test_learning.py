"""What goes while a network learns has no part in gradients: a weight that is 0 for the moment has."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import nodedrop as nd
from nodedrop.training import NodeDrop


class Scaled(nn.Module):
    """A branch that starts from 0."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight.view(1, -1)


def zero(layer: nn.Module) -> nn.Module:
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)
    return layer


BEGINNINGS: dict[str, Callable[[], list[nn.Module]]] = {
    "a layer": lambda: [zero(nn.Linear(8, 8))],
    "a layer and tanh": lambda: [zero(nn.Linear(8, 8)), nn.Tanh()],
    "a norm": lambda: [zero(nn.BatchNorm1d(8))],
    "a layer norm": lambda: [zero(nn.LayerNorm(8))],
    "a scale": lambda: [Scaled()],
}


def network(name: str) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), *BEGINNINGS[name](), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    nn.init.constant_(model[-3].bias, 1.0)
    nn.init.constant_(model[0].bias, 1.0)
    return model


def gradients(model: nn.Module) -> float:
    torch.manual_seed(1)
    x = torch.rand(16, 4)
    nn.functional.cross_entropy(model(x), (x.sum(1) > 2).long()).backward()
    return float(next(model[2].parameters()).grad.abs().max())


@pytest.mark.filterwarnings("ignore:nothing was cut, and in train mode batch norm")
@pytest.mark.parametrize("options", [{}, {"evidence": "observed", "samples": torch.rand(16, 4)}])
@pytest.mark.parametrize("name", BEGINNINGS)
def test_zeros_that_are_learned_stay(name: str, options: dict[str, object]) -> None:
    model = network(name)
    assert gradients(model) > 1e-3
    drop = NodeDrop(model, None, torch.rand(2, 4), lam=0.0, **options)
    assert drop.drop() is None
    assert model[-1].in_features == 8


@pytest.mark.parametrize("name", sorted(set(BEGINNINGS) - {"a layer norm"}))  # units before one are pinned
def test_they_go_if_nothing_is_learned_any_more(name: str) -> None:
    model = network(name)
    before = copy.deepcopy(model).eval()
    assert nd.compact_(model, torch.rand(2, 4), on_collapse="keep").removed
    x = torch.rand(16, 4)
    torch.testing.assert_close(model.eval()(x), before(x), rtol=0, atol=1e-7)


def test_frozen_zeros_go() -> None:
    model = network("a scale")
    model[2].weight.requires_grad_(False)
    drop = NodeDrop(model, None, torch.rand(2, 4), lam=0.0)
    assert drop.drop() is not None
    assert model[3].in_features == 1


def test_what_is_cut_has_no_gradients() -> None:
    """Dead by its bias, and behind it a layer that starts from 0: only the dead go."""
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), zero(nn.Linear(8, 8)), nn.ReLU(), nn.Linear(8, 2))
    nn.init.constant_(model[0].bias, 1.0)
    nn.init.constant_(model[0].bias[:3], -9.0)
    nn.init.constant_(model[2].bias[:2], -1.0)
    plain = copy.deepcopy(model)
    drop = NodeDrop(model, None, torch.rand(2, 4), lam=0.0)
    event = drop.drop()
    assert [(c.layer, c.index) for c in event.removed] == [("0", 0), ("0", 1), ("0", 2), ("2", 0), ("2", 1)]
    torch.nn.functional.cross_entropy(plain(torch.rand(16, 4)), torch.zeros(16, dtype=torch.long)).backward()
    for certificate in event.removed:
        layer = plain[int(certificate.layer)]
        assert not layer.weight.grad[certificate.index].any()
        assert layer.bias.grad[certificate.index] == 0
