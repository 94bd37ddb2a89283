"""What a NodeDrop holds on to may be replaced, or be of a kind that is cut otherwise."""

import copy

import pytest
import torch
from torch import Tensor, nn

from nodedrop import NodeDrop
from nodedrop.errors import InputError


def network() -> nn.Sequential:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    with torch.no_grad():
        model[0].bias[:3] = -9.0
    return model


def test_parameters_that_were_replaced_are_noticed() -> None:
    model = network()
    drop = NodeDrop(model, None, torch.rand(2, 4))
    model.load_state_dict({name: value.clone() for name, value in model.state_dict().items()}, assign=True)
    with pytest.raises(InputError, match="or were replaced, by other hands"):
        drop.drop()


def test_a_copy_is_told_to_make_its_own() -> None:
    drop = copy.deepcopy(NodeDrop(network(), None, torch.rand(2, 4)))
    with pytest.raises(InputError, match="after loading, copying"):
        drop.drop()


def test_an_optimizer_that_cannot_be_cut_is_known_by_its_parents() -> None:
    class Mine(torch.optim.LBFGS):
        pass

    model = network()
    with pytest.raises(InputError, match=r"^Mine keeps state that does not have its"):
        NodeDrop(model, Mine(model.parameters()), torch.rand(2, 4))


def test_a_state_that_cannot_be_read_changes_nothing() -> None:
    model = network()
    drop = NodeDrop(model, None, torch.rand(2, 4))
    state = drop.state_dict() | {"step": 77, "events": [{"step": 1}]}
    with pytest.raises(KeyError):
        drop.load_state_dict(state)
    assert drop.step == 0


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.layer, self.head = nn.Embedding(10, 8, sparse=True), nn.Linear(8, 16), nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(torch.relu(self.layer(torch.relu(self.table(x)).sum(1))))
        return found


def test_a_sparse_gradient_is_cut_with_its_table() -> None:
    model, x = Words(), torch.randint(0, 10, (6, 3))
    with torch.no_grad():
        model.table.weight[:, :3] = -1.0
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    drop = NodeDrop(model, optimizer, x, domain=None)
    model(x).square().mean().backward()
    gradient = model.table.weight.grad
    assert gradient is not None
    whole = gradient.to_dense()[:, 3:]
    assert drop.drop() is not None
    cut = model.table.weight.grad
    assert cut is not None
    assert cut.is_sparse
    assert torch.equal(cut.to_dense(), whole)
    optimizer.step()
