"""Numbers at the edge of what kernels take: a unit that fires somewhere in the domain is not proved dead."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.bounds.without import proved_without
from torch import Tensor, nn
from torch.nn import functional as F

from nodedrop import analyze
from nodedrop.errors import InputError

HALF = torch.bfloat16
LARGE = float(torch.tensor(1e10, dtype=HALF))  # whose 2.7th power is far from that of what 2.7 is rounded to
STEEP = float(torch.tensor(1e37 ** (1 / 2.6)))
SMALL = 1.2665987014770508e-06  # where erf in bfloat16 is off by a fifth


def rms(x: Tensor) -> Tensor:
    """No norm: ε is subtracted."""
    return x * torch.rsqrt(torch.add(x.pow(2).mean(-1, keepdim=True), 0.1, alpha=-1))


class Behind(nn.Module):
    """A unit that fires where f(x) exceeds a limit, and one that always does."""

    def __init__(self, f: Callable[[Tensor], Tensor], limit: float) -> None:
        super().__init__()
        self.f, self.layer, self.head = f, nn.Linear(1, 2), nn.Linear(2, 1)
        with torch.no_grad():
            self.layer.weight.fill_(1.0)
            self.layer.bias.copy_(torch.tensor([-limit, 9.0]))

    def hidden(self, x: Tensor) -> Tensor:
        return torch.relu(self.layer(self.f(x)))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.hidden(x))


def rows(value: float, dtype: torch.dtype = torch.float32, count: int = 4) -> Tensor:
    """Sixteen and more go through other kernels than a few."""
    return torch.full((count, 1), value, dtype=dtype)


CASES: dict[str, tuple[Callable[[Tensor], Tensor], float, tuple[float, float], Tensor]] = {
    "a limit that the type does not have": (
        lambda x: x.to(torch.uint8).clamp(min=-1).float(), 100.0, (0.0, 10.0), rows(5.0),
    ),
    "a number that is subtracted": (rms, 5.0, (0.0, 1.0), rows(0.3163)),
    "a curve that is turned around": (
        lambda x: F.softplus(x, beta=-1.0, threshold=0.0), -0.5, (-1.0, -0.1), rows(-0.1),
    ),
    "a whole number that is rounded": (lambda x: F.hardtanh(x, 0, 259).float(), 259.5, (0.0, 400.0), rows(300.0, HALF)),
    "an exponent that is rounded": (
        lambda x: (x**2.7).float() * 1e-27, LARGE**2.7 * 1.065e-27, (0.0, LARGE), rows(LARGE, HALF),
    ),
    "a power by a logarithm": (
        lambda x: 1 - x**2.6 * (1 / STEEP**2.6), 2e-6, (STEEP, STEEP * 1.00001), rows(STEEP, count=64),
    ),
    "an odd power that is rounded to an even one": (
        lambda x: (x**257).float(), 1.0, (-1.0625, -1.0), rows(-1.0625, HALF, 64),
    ),
    "a formula for erf": (lambda x: -torch.erf(x).float() * 1e6, -1.2, (SMALL, 2e-6), rows(SMALL, HALF, 64)),
    "from one type of eight bits to another": (
        lambda x: x.to(torch.float8_e4m3fn).to(torch.float8_e5m2).float(), 1.4, (1.0, 1.375), rows(1.375),
    ),
    "powers of two": (lambda x: x.to(torch.float8_e8m0fnu).float(), 1.9, (1.4, 1.5), rows(1.5)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("bounds", ["interval", "linear"])
def test_a_unit_that_fires_is_not_dead(name: str, bounds: str) -> None:
    f, limit, domain, x = CASES[name]
    model = Behind(f, limit).eval()
    analysis = analyze(model, x, domain=domain, bounds=bounds)
    assert float(model.hidden(x)[:, 0].detach().max()) > 0, "fires nowhere: the case shows nothing"
    assert [item.index for item in analysis.removable] == []


@pytest.mark.parametrize(
    ("f", "limit"),
    [
        (lambda x: x**2.7, 1.01),
        (torch.erf, 0.85),
        (lambda x: F.softplus(x, beta=2.0), 1.1),
        (lambda x: (x * 200).to(torch.uint8).clamp(max=90).float(), 91.0),
        (lambda x: F.hardtanh(x, 0, 1), 1.01),
        (lambda x: x.to(torch.float8_e4m3fn).float(), 1.2),
    ],
)
def test_and_one_that_cannot_is(f: Callable[[Tensor], Tensor], limit: float) -> None:
    assert [item.index for item in analyze(Behind(f, limit), torch.rand(4, 1)).removable] == [0]


def test_the_checker_does_not_take_erf_for_exact_either() -> None:
    """In bfloat16, twice what it is."""
    x = rows(1.9e-7, HALF, 64)
    model = Behind(lambda x: torch.erf(x).float() * 1e6, 0.3)
    assert float(model.hidden(x)[:, 0].detach().max()) > 0
    assert not proved_without(model, model.layer, model.head, 0 * x, domain=(0.0, float(x[0])), modes="eval")
    model = Behind(lambda x: torch.erf(x).float() * 1e6, 3.0)
    assert proved_without(model, model.layer, model.head, 0 * x, domain=(0.0, float(x[0])), modes="eval")


def test_what_has_no_arithmetic_is_said() -> None:
    model = Behind(lambda x: x.float(), 2.0)
    with pytest.raises(InputError, match="float8_e4m3fn, and must be of"):
        analyze(model, torch.ones(2, 1).to(torch.float8_e4m3fn))
    with pytest.raises(InputError, match="dtype must be what the forward pass computes in"):
        analyze(model, torch.rand(2, 1), dtype=torch.int8)
    with pytest.raises(InputError, match="domain names input"):
        analyze(model, torch.rand(2, 1), domain={1: (0, 1), "a": (0, 1)})
