"""Forward passes and traces leave nothing behind, whatever the module does to itself."""

import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import nodedrop
from nodedrop.tracing.undisturbed import undisturbed


class Writer(nn.Module):
    """A network whose forward writes, in the way it is told, to what it is made of."""

    def __init__(self, write: Callable[["Writer"], object]) -> None:
        super().__init__()
        self.write = write
        self.first, self.norm, self.last = nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)
        flat = torch.arange(6.0)
        self.left, self.right = nn.Parameter(flat[:3]), nn.Parameter(flat[3:])  # one memory
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.write(self)
        found: Tensor = self.last(torch.relu(self.norm(self.first(x))))
        return found


WRITES: dict[str, Callable[[Writer], object]] = {
    "nothing": lambda m: None,
    "in place": lambda m: m.first.weight.mul_(2),
    "through a view": lambda m: m.first.weight[0].fill_(7),
    "several at once": lambda m: torch._foreach_add_([m.first.bias, m.last.bias], 1.0),
    "shared memory": lambda m: (m.left.add_(1), m.right.mul_(3)),
    "a buffer": lambda m: m.calls.add_(1),
    "a new buffer": lambda m: setattr(m, "calls", m.calls + 1),
    "mode": lambda m: m.norm.train(not m.norm.training),
    "random numbers": lambda m: (torch.rand(1), random.random()),
}


@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace")  # leaves it to Python
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("how", WRITES)
def test_what_a_pass_writes_is_put_back(how: str, compiled: bool) -> None:
    model = Writer(WRITES[how])
    run = torch.compile(model, backend="eager") if compiled else model
    before = {name: value.clone() for name, value in model.state_dict().items()}
    drawn, own = torch.get_rng_state(), random.getstate()
    with undisturbed(model), torch.no_grad():
        run(torch.randn(5, 3))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.norm.training
    assert torch.equal(torch.get_rng_state(), drawn)
    assert random.getstate() == own


class Rounded(nn.Linear):
    """Weights that are replaced for the pass alone."""

    def forward(self, x: Tensor) -> Tensor:
        kept = self.weight.data.clone()
        self.weight.data = torch.round(self.weight.data * 8) / 8
        found = nn.functional.linear(x, self.weight)
        found += self.bias
        self.weight.data = kept
        return torch.relu(found)


class Clamped(nn.Linear):
    """Weights that get new memory, and are then written to."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.weight.data = self.weight.data / self.weight.data.norm()
            self.weight.clamp_(-0.2, 0.2)
        return torch.relu(nn.functional.linear(x, self.weight, self.bias))


class Decayed(nn.Linear):
    """Weights that the exporter does not know as such, since they are reached through a list."""

    def __init__(self, inputs: int, units: int) -> None:
        super().__init__(inputs, units)
        self.decayed = [self.weight]

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            for weight in self.decayed:
                weight.mul_(0.999)
        return torch.relu(nn.functional.linear(x, self.weight, self.bias))


@pytest.mark.parametrize("layer", [Rounded, Clamped, Decayed])
def test_an_analysis_changes_no_weight(layer: type[nn.Linear]) -> None:
    model = nn.Sequential(layer(4, 16), nn.Identity(), nn.Linear(16, 2))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    nodedrop.analyze(model, torch.rand(8, 4))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_an_analysis_of_samples_changes_neither_statistics_nor_random_numbers() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Dropout(), nn.Linear(4, 1))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    samples, drawn = torch.rand(64, 3), torch.get_rng_state()
    found = nodedrop.analyze(model, samples[:4], evidence="observed", samples=[samples[:32], samples[32:]])
    assert found.units
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), drawn)
