"""Forward passes that leave no trace, and copy nothing that they only read."""

import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

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
    "behind autograd": lambda m: m.first.weight.data.mul_(2),
    "through a view": lambda m: m.first.weight[0].fill_(7),
    "several at once": lambda m: torch._foreach_add_([m.first.bias, m.last.bias], 1.0),
    "as an output": lambda m: torch.add(m.first.bias, 1.0, out=m.first.bias.data),
    "shared memory": lambda m: (m.left.add_(1), m.right.mul_(3)),
    "a buffer": lambda m: m.calls.add_(1),
    "a new buffer": lambda m: setattr(m, "calls", m.calls + 1),
    "mode": lambda m: m.norm.train(not m.norm.training),
    "random numbers": lambda m: (torch.rand(1), random.random()),
}


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


def test_weights_that_are_only_read_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    model, copied = Writer(WRITES["in place"]), list[tuple[int, ...]]()
    clone = Tensor.clone
    monkeypatch.setattr(Tensor, "clone", lambda t, **how: (copied.append(tuple(t.shape)), clone(t, **how))[1])
    with undisturbed(model), torch.no_grad():
        model(torch.randn(5, 3))
    assert (4, 3) in copied
    assert (2, 4) not in copied
