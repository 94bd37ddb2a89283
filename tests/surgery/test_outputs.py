"""A cut changes nothing in what a model returns, numbers and names among it."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nodedrop as nd
from nodedrop.errors import CutError
from nodedrop.surgery.check import Returned, compare

Pair = namedtuple("Pair", ["value", "size"])


class Net(nn.Module):
    """Eight units, two of them dead; `wrap` makes the output from the values and the width."""

    def __init__(self, wrap: Callable[[Tensor, int], Any]) -> None:
        super().__init__()
        self.wrap, self.first, self.last = wrap, nn.Linear(8, 8), nn.Linear(8, 3)
        with torch.no_grad():
            self.first.bias[:2] = -20.0

    def forward(self, x: Tensor) -> Any:
        h = torch.relu(self.first(x))
        return self.wrap(self.last(h), h.shape[1])


CHANGING: dict[str, Callable[[Tensor, int], Any]] = {
    "float": lambda y, n: (y, n**-0.5),
    "whole number": lambda y, n: (y, n),
    "truth": lambda y, n: (y, n == 8),
    "nested": lambda y, n: {"logits": y, "info": [{"width": n}]},
    "key": lambda y, n: {f"of {n} units": y},
    "text": lambda y, n: (y, f"{n} units"),
    "nothing": lambda y, n: (y, None if n == 8 else 0),
    "namedtuple": Pair,
    "list or tuple": lambda y, n: [y] if n == 8 else (y,),
}


@pytest.mark.parametrize("name", CHANGING)
def test_a_cut_that_changes_what_else_is_returned_is_refused(name: str) -> None:
    net, x = Net(CHANGING[name]), torch.rand(2, 8)
    before = Returned(net(x)).rest
    ledger = nd.compact_(net, x)
    assert not ledger.removed
    assert Returned(net(x)).rest == before


KEPT: dict[str, Callable[[Tensor, int], Any]] = {
    "numbers": lambda y, n: (y, 3, 0.5, True, None, "text"),
    "names": lambda y, n: {"logits": y, "more": [y, (y,)]},
    "namedtuple": lambda y, n: Pair(y, 1),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_does_not_change_stops_no_cut(name: str) -> None:
    assert len(nd.compact_(Net(KEPT[name]), torch.rand(2, 8)).removed) == 2


@dataclass
class Output:
    logits: Tensor
    loss: float


def test_a_difference_is_told_with_its_place() -> None:
    y = torch.ones(2)
    old, new = ({"eval": Returned({"found": [Output(y, loss)]})} for loss in (0.5, 0.75))
    with pytest.raises(CutError, match=r"the output\['found'\]\[0\]\.loss changes from 0\.5 to 0\.75 in eval mode"):
        compare(old, new, ("eval",))
    assert compare(old, new, ("train",)) == 0.0


def test_a_float_that_was_read_off_a_tensor_may_be_rounded_otherwise() -> None:
    old, new = ({"eval": Returned((torch.ones(2), loss))} for loss in (0.5, 0.5 + 1e-7))
    assert compare(old, new, ("eval",)) == 0.0
