"""What the calls of two modules are told beside tensors: numbers, types, places and signs must be the same as well."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nodedrop.verify import verify

Function = Callable[[Tensor, Tensor], Tensor]


class Net(nn.Module):
    """Two layers with a function of the units and a buffer between them."""

    def __init__(self, function: Function, t: Tensor, width: int = 4) -> None:
        super().__init__()
        self.function = function
        self.up, self.down = nn.Linear(2, width), nn.Linear(4, 2)
        self.register_buffer("t", t)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.function(self.up(x), self.t))


def nets(one: tuple[Function, Tensor], two: tuple[Function, Tensor]) -> tuple[nn.Module, nn.Module]:
    """The same weights around different functions and buffers."""
    before, after = Net(*one), Net(*two)
    after.up, after.down = copy.deepcopy(before.up), copy.deepcopy(before.down)
    return before, after


NOTHING, ORDER = torch.zeros(()), torch.tensor([1, 0, 3, 2])
BIG = torch.tensor([16777216])


def part(k: int) -> Function:
    return lambda y, t: F.pad(y.relu_().chunk(2, 1)[k], (0, 2))


def sampled(samples: Tensor) -> tuple[Function, Tensor]:
    def pooled(y: Tensor, t: Tensor) -> Tensor:
        image = y[:, :1, None, None] * torch.arange(36.0).cos().reshape(6, 6)
        return F.fractional_max_pool2d(image, 1, output_size=3, _random_samples=t).flatten(1)[:, 1:5]

    return pooled, samples


def strided(format: torch.memory_format) -> Function:
    return lambda y, t: y.reshape(1, 2, 2, -1).clone(memory_format=format).as_strided(y.shape, (4, 1))


# Each pair computes different things from the same weights.
DIFFERENT: dict[str, tuple[tuple[Function, Tensor], tuple[Function, Tensor]]] = {
    "another part": ((part(0), NOTHING), (part(1), NOTHING)),
    "another axis of a list of indices": ((lambda y, t: y[t], ORDER), (lambda y, t: y[:, t], ORDER)),
    "another axis that is written": (
        (lambda y, t: y.index_put((t[:1],), t[0] + 1.0), ORDER),
        (lambda y, t: torch.ops.aten.index_put(y, [None, t[:1]], t[0] + 1.0), ORDER),
    ),
    "a whole number and a real one": (
        (lambda y, t: y * (t == 16777216), BIG + 1), (lambda y, t: y * (t == 16777216.0), BIG + 1)),
    "zeros of another sign in the text": (
        (lambda y, t: torch.copysign(y, 0.0), NOTHING), (lambda y, t: torch.copysign(y, -0.0), NOTHING)),
    "zeros of another sign that fill": (
        (lambda y, t: torch.atan2(torch.full_like(y, 0.0), -y.abs()), NOTHING),
        (lambda y, t: torch.atan2(torch.full_like(y, -0.0), -y.abs()), NOTHING),
    ),
    "zeros of another sign behind a view": (
        (lambda y, t: torch.copysign(y, t.view(1, 1)), torch.zeros(1)),
        (lambda y, t: torch.copysign(y, t.view(1, 1)), -torch.zeros(1))),
    "zeros of another sign behind a product": (
        (lambda y, t: torch.copysign(y, t * 1), torch.zeros(1)),
        (lambda y, t: torch.copysign(y, t * 1), -torch.zeros(1))),
    "a buffer of another type": (
        (lambda y, t: y * (torch.full_like(y, 16777217, dtype=torch.int64) == t), BIG),
        (lambda y, t: y * (torch.full_like(y, 16777217, dtype=torch.int64) == t), BIG.float())),
    "other random samples": (sampled(torch.full((4, 1, 2), 0.1)), sampled(torch.full((4, 1, 2), 0.3))),
    "another memory format": ((strided(torch.contiguous_format), NOTHING), (strided(torch.channels_last), NOTHING)),
}  # fmt: skip


@pytest.mark.parametrize("name", DIFFERENT)
def test_what_calls_are_told_must_be_the_same(name: str) -> None:
    one, two = DIFFERENT[name]
    before, after = nets(one, two)
    x = torch.rand(4, 2)
    with torch.no_grad():
        assert not torch.allclose(before(x), after(x), atol=1e-3), "both are the same, so this shows nothing"
    assert verify(before, after, x, tries=1).status != "proved"
    if "memory" not in name:  # of which nothing is known
        assert all(verify(net, copy.deepcopy(net), x, tries=1).status == "proved" for net in (before, after))


def test_a_buffer_that_is_returned_is_of_the_same_type() -> None:
    class Returns(nn.Module):
        def __init__(self, t: Tensor) -> None:
            super().__init__()
            self.register_buffer("t", t)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return x + 1, self.t

    x, t = torch.rand(2, 2), torch.ones(3)
    assert verify(Returns(t), Returns(t.clone()), x).status == "proved"
    assert verify(Returns(t), Returns(t.double()), x).status == "not proved"


class Modes(nn.Module):
    """Training writes what evaluation reads: rolled by so many units, or a count of so many batches."""

    def __init__(self, width: int, shift: int, steps: int) -> None:
        super().__init__()
        self.up, self.down, self.shift, self.more = nn.Linear(2, width), nn.Linear(width, 2), shift, steps
        self.register_buffer("seen", torch.ones(width))
        self.register_buffer("steps", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        y = self.up(x).relu()
        if not self.training:
            return self.down(y * self.seen) + self.steps
        self.write(y[0])
        self.steps.add_(self.more)
        return self.down(y)

    def write(self, row: Tensor) -> None:
        self.seen.copy_(row.roll(self.shift))


class Normed(Modes):
    """Training writes the statistics of a norm, and nothing else but a count."""

    def __init__(self, width: int, shift: int, steps: int) -> None:
        super().__init__(width, shift, steps)
        self.register_buffer("spread", torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        y = self.up(x).relu()
        if not self.training:
            return self.down(F.batch_norm(y, self.seen, self.spread)) + self.steps
        self.steps.add_(self.more)
        y = F.batch_norm(y.roll(self.shift, 1), self.seen, self.spread, training=True).roll(-self.shift, 1)
        return self.down(y)


@pytest.mark.parametrize("kind", [Modes, Normed])
@pytest.mark.parametrize(("shift", "steps"), [(0, 1), (1, 1), (0, 2)])
def test_what_one_mode_writes_the_other_reads_alike(kind: type[Modes], shift: int, steps: int) -> None:
    before, after, x = kind(4, 0, 1), kind(3, shift, steps), torch.rand(5, 2)
    with torch.no_grad():
        before.up.bias.copy_(torch.tensor([9.0, 1.0, 3.0, 5.0]))
        before.down.weight[:, 0] = 0.0
        for new, old in zip(after.parameters(), before.parameters(), strict=True):
            new.copy_(old[tuple(slice(-n, None) for n in new.shape)])
    assert torch.allclose(before.eval()(x), after.eval()(x), atol=1e-5)
    proved = verify(before, after, x, tries=1).status == "proved"
    before.train()(x), after.train()(x)
    assert torch.allclose(before.eval()(x), after.eval()(x), atol=1e-5) == proved


def test_a_zero_may_have_another_sign_as_a_weight() -> None:
    layers = [(nn.Linear(2, 3), torch.rand(4, 2)), (nn.Conv1d(2, 3, 2), torch.rand(4, 2, 5))]
    for before, x in layers:
        after = copy.deepcopy(before)
        with torch.no_grad():
            before.weight[0], after.weight[0], before.bias[:2], after.bias[:2] = 0.0, -0.0, 0.0, -0.0
        assert verify(before, after, x, tries=1).status == "proved"


class Gated(nn.Module):
    """A gate that is closed until training opens it; training reads other weights, or the same ones."""

    def __init__(self, width: int, opens: bool) -> None:
        super().__init__()
        self.up, self.down, self.aside, self.opens = nn.Linear(2, width), nn.Linear(width, 2), nn.Linear(2, 2), opens
        self.register_buffer("gate", (torch.arange(width) >= width - 3).float())

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return self.down(self.up(x) * self.gate)
        if self.opens:
            self.gate.fill_(1.0)
        return self.aside(x)


@pytest.mark.parametrize("opens", [False, True])
def test_no_mode_relies_on_what_another_overwrites(opens: bool) -> None:
    before, after, x = Gated(4, opens), Gated(3, opens), torch.rand(5, 2)
    with torch.no_grad():
        for new, old in zip(after.parameters(), before.parameters(), strict=True):
            new.copy_(old[tuple(slice(-n, None) for n in new.shape)])
    assert torch.allclose(before.eval()(x), after.eval()(x), atol=1e-5)
    assert (verify(before, after, x, tries=1).status == "proved") != opens
    assert verify(before, after, x, modes="eval", tries=1).status == "proved"
    before.train()(x), after.train()(x)
    assert torch.allclose(before.eval()(x), after.eval()(x), atol=1e-5) != opens


def test_numbers_that_are_none_are_the_same() -> None:
    def filled(y: Tensor, t: Tensor) -> Tensor:
        return torch.nan_to_num(torch.full_like(y, float("nan")), nan=1.0) * y

    assert verify(*nets((filled, NOTHING), (filled, NOTHING)), torch.rand(2, 2), tries=1).status == "proved"
