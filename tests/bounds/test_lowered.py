"""Known values that are written in a lower type than their own are rounded, also where nothing is computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nodedrop as nd
from nodedrop.errors import InputError

HALF = torch.bfloat16
VALUE, OFF = 1.005, 1.006  # bfloat16 has 1.0078 next to both


class Read(nn.Module):
    """Two units, of which the first fires if VALUE is rounded before OFF is taken from it."""

    def __init__(self, write: Callable[[Read, Tensor], Tensor]) -> None:
        super().__init__()
        self.write, self.pre, self.layer, self.head = write, nn.Linear(8, 8), nn.Linear(8, 2), nn.Linear(2, 1)
        self.norms = nn.ModuleList([nn.LayerNorm(8), nn.BatchNorm1d(8), nn.GroupNorm(2, 8)])
        self.value, self.off = nn.Parameter(torch.zeros(8)), nn.Parameter(torch.zeros(8))
        with torch.no_grad():
            for norm in self.norms:
                norm.weight.zero_()
                norm.bias.zero_()
                norm.bias[0] = VALUE
            self.value[0], self.off[0] = VALUE, OFF
            self.layer.weight.fill_(1.0)
            self.layer.bias.copy_(torch.tensor([0.0, 9.0]))

    def forward(self, x: Tensor) -> Tensor:
        h = (self.write(self, x).float() - self.off) + 1e-3 * (x - 1)
        with torch.autocast("cpu", enabled=False):
            found: Tensor = self.head(torch.relu(self.layer(h)))
        return found

    def fires(self) -> bool:
        with torch.no_grad():
            h = (self.write(self, torch.ones(2, 8)).float() - self.off).float()
            return bool(self.layer(h).reshape(-1, 2)[0, 0] > 0)


def summed(model: Read, x: Tensor) -> Tensor:
    found = torch.zeros_like(model.pre(x))
    found += model.value
    return found


def sliced(model: Read, x: Tensor) -> Tensor:
    found = torch.zeros_like(model.pre(x))
    found[:] = model.value
    return found


TYPED: dict[str, Callable[[Read, Tensor], Tensor]] = {
    name: lambda model, x, k=k: model.norms[k](x.to(HALF)) for k, name in enumerate(["layer", "batch", "group"])
}
CAST: dict[str, Callable[[Read, Tensor], Tensor]] = {
    "batch norm": lambda model, x: model.norms[1](model.pre(x)),
    "to": lambda model, x: model.value.to(model.pre(x).dtype),
    "type_as": lambda model, x: model.value.type_as(model.pre(x)),
    "tensor": lambda model, x: torch.tensor([VALUE] + [0.0] * 7, dtype=model.pre(x).dtype),
    "sum": summed,
    "slice": sliced,
    "joined": lambda model, x: torch.cat([model.value.to(model.pre(x).dtype).expand(len(x), 8)], 1),
    "residual": lambda model, x: model.pre(x).clamp(0, 0) + model.value.to(model.pre(x).dtype),
}


def dead(model: Read, **options: Any) -> list[int]:
    found = nd.analyze(model, torch.rand(4, 8), **options).removable
    return [item.index for item in found if item.layer == "layer"]


@pytest.mark.parametrize("name", TYPED)
def test_a_norm_without_gain_writes_its_bias_in_the_type_of_its_input(name: str) -> None:
    model = Read(TYPED[name]).eval()
    assert model.fires()
    assert dead(model, mode="eval") == []


@pytest.mark.parametrize("name", CAST)
def test_a_known_value_under_autocast(name: str) -> None:
    model = Read(CAST[name]).eval()
    with torch.autocast("cpu", dtype=HALF):
        assert model.fires()
    assert not model.fires()
    assert dead(model, mode="eval", dtype=HALF) == []


def test_without_autocast_nothing_is_rounded() -> None:
    assert dead(Read(CAST["to"]).eval(), mode="eval") == [0]


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(1, 2), nn.Linear(2, 1)

    def forward(self, x: Tensor, scale: float = 1.0, mask: Tensor | None = None) -> Tensor:
        found: Tensor = self.head(torch.relu(self.layer(x * scale)))
        return found if mask is None else found * mask


def test_inputs_that_are_no_tensors_are_named_with_their_values() -> None:
    for given, told in (((2.0,), "with scale=2.0,"), ((), "shape (4, 1), and"), ((1.0, None), "scale=1.0, with mask=")):
        assert told in str(nd.analyze(Scaled(), (torch.rand(4, 1), *given)))


def test_a_box_that_fits_two_axes_is_asked_about() -> None:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.head = nn.Linear(3, 2), nn.Linear(2, 1)

        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = self.head(torch.relu(self.layer(x[:, -1])))
            return found

    hi = torch.tensor([5.0, 1.0, 1.0])
    with pytest.raises(InputError, match=r"hi of shape \(3,\) fits the second and the last axis.*hi.view\(1, -1\)"):
        nd.analyze(Last(), torch.rand(2, 3, 3), domain=nd.Box(0.0, hi))
    for box in (hi.view(1, -1), hi.view(-1, 1), torch.ones(3)):
        nd.analyze(Last(), torch.rand(2, 3, 3), domain=nd.Box(0.0, box))
