"""Code that reads its own sizes computes something else after a cut, and every such difference is found."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import nodedrop as nd
from nodedrop.bounds import propagate
from nodedrop.planning import walk


class Net(nn.Module):
    """Eight units of which one is dead. What the width decides shows for inputs of the domain, not for the example."""

    def __init__(self, use: Callable[[Net, Tensor, int], Tensor]) -> None:
        super().__init__()
        self.use, self.first, self.last = use, nn.Linear(8, 8), nn.Linear(8, 3)
        self.register_buffer("table", torch.arange(9.0))
        self.choice = nn.ParameterList([torch.tensor([[7.0]]), torch.tensor([[6.0]])])
        with torch.no_grad():
            self.first.bias[0] = -20.0

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.first(x))
        return self.last(h) * torch.where(self.use(self, x.sum(1, keepdim=True), h.shape[1]) > 0, 2.0, 1.0)


def casting(net: Net, total: Tensor, n: int) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return total - 0.9 * n


def rolled(net: Net, total: Tensor, n: int) -> Tensor:
    return total - net.table.roll(n)[3:4] - 2


def narrowed(net: Net, total: Tensor, n: int) -> Tensor:
    return total - net.table.narrow(0, n, 1) + 1


def stepped(net: Net, total: Tensor, n: int) -> Tensor:
    return total - net.table[5 :: 10 - n].sum() / 2


def flipped(net: Net, total: Tensor, n: int) -> Tensor:
    return total - net.table[5:9].reshape(2, 2).flip(n % 2)[:1, :1]


def scattered(net: Net, total: Tensor, n: int) -> Tensor:
    table = net.table * 1.0
    table[n - 1 : n] = 6.0
    return total - table[7:8]


READS: dict[str, Callable[[Net, Tensor, int], Tensor]] = {
    "fill value": lambda net, total, n: total - torch.full((1, 1), 0.9 * n),
    "new_full": lambda net, total, n: total - total.new_full((1, 1), 0.9 * n),
    "tensor": lambda net, total, n: total - torch.tensor(0.9 * n),
    "select": lambda net, total, n: total - net.table[n] + 0.8,
    "slice": lambda net, total, n: total - net.table[n : n + 1] + 0.8,
    "step of a slice": stepped,
    "narrow": narrowed,
    "roll": rolled,
    "axes": flipped,
    "write": scattered,
    "which parameter": lambda net, total, n: total - net.choice[n % 2],
    "wiring": lambda net, total, n: (total * 0.9, total * 1.1)[n % 2] - 6.8,
    "type": lambda net, total, n: total.to(torch.float16 if n % 2 else torch.bfloat16).float() - 6.555,
    "within a region that casts": casting,
}


@pytest.mark.parametrize("name", READS)
def test_a_cut_that_changes_what_the_code_does_is_refused(name: str) -> None:
    torch.manual_seed(0)
    net = Net(READS[name])
    before = copy.deepcopy(net)
    assert not nd.compact_(net, torch.rand(5, 8) * 0.5).removed
    for total in torch.linspace(5.0, 8.0, 61):
        x = (total / 8).expand(1, 8)
        torch.testing.assert_close(net(x), before(x))


class Returned(nn.Module):
    """Returns its values in an order, or writes to a buffer, that the width decides."""

    def __init__(self, written: bool) -> None:
        super().__init__()
        self.written, self.first, self.last = written, nn.Linear(8, 8), nn.Linear(8, 3)
        self.register_buffer("even", torch.zeros(()))
        self.register_buffer("odd", torch.zeros(()))
        with torch.no_grad():
            self.first.bias[0] = -20.0

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.relu(self.first(x))
        odd = h.shape[1] % 2
        top, y = (x - 0.5).clamp(min=0).sum() * 0.0 + x.sum() * 0.0, self.last(h)
        if self.written:
            (self.odd if odd else self.even).add_(x.sum())
        pair = (top, top.abs())
        return (y, pair[odd])


@pytest.mark.parametrize("written", [False, True])
def test_a_cut_that_changes_what_is_returned_or_written_is_refused(written: bool) -> None:
    assert not nd.compact_(Returned(written), torch.rand(5, 8)).removed


LEGITIMATE: dict[str, Callable[[Tensor], Tensor]] = {
    "the whole axis": lambda h: h[:, : h.shape[1]],
    "from the back": lambda h: h[:, -h.shape[1] :],
    "reshaped": lambda h: h.reshape(h.shape[0], h.shape[1], 1)[:, :, 0],
    "filled": lambda h: h * torch.full((1, h.shape[1]), 0.5) + h.new_zeros(h.shape),
    "split": lambda h: torch.cat(h.split([1, h.shape[1] - 1], 1)[::-1], 1)[:, 0:],
}


class Sized(nn.Module):
    """Reads its own width where that changes nothing."""

    def __init__(self, use: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.use, self.first, self.last = use, nn.Linear(8, 8), nn.Linear(8, 3)
        with torch.no_grad():
            self.first.bias[[2, 5]] = -20.0

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(self.use(torch.relu(self.first(x))))
        return y


@pytest.mark.parametrize("name", LEGITIMATE)
def test_sizes_that_follow_the_cut_do_not_stop_it(name: str) -> None:
    net = Sized(LEGITIMATE[name])
    before, x = copy.deepcopy(net), torch.rand(5, 8)
    assert len(nd.compact_(net, x).removed) == 2
    torch.testing.assert_close(net(x), before(x))


class Computed(Sized):
    """Takes a slice at a place that a buffer tells."""

    def __init__(self) -> None:
        super().__init__(lambda h: h)
        self.register_buffer("place", torch.tensor(3))
        self.register_buffer("table", torch.rand(9))

    def forward(self, x: Tensor) -> Tensor:
        place = self.place.item()
        torch._check(place >= 0)
        torch._check(place < 8)
        return super().forward(x) * self.table[place : place + 1]


def test_a_slice_at_a_place_that_is_computed_does_not_stop_a_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    for part in (propagate, walk):
        monkeypatch.setattr(part, "STRICT", False)  # no rule foresees it
    net = Computed()
    before, x = copy.deepcopy(net), torch.rand(5, 8)
    assert len(nd.compact_(net, x).removed) == 2
    torch.testing.assert_close(net(x), before(x))
