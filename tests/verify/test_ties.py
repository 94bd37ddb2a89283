"""Which elements go with which unit: what a ledger says of it must be so, and what cannot be followed is not held
against it."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.verify.forging import Lines, mended, read, write
from torch import Tensor, nn
from torch.nn import functional as F

import nodedrop as nd
from nodedrop.verify import Verdict, verify
from nodedrop.verify.run import verify_run


class Net(nn.Module):
    """Modules and parameters by name, and what is made of them."""

    def __init__(self, code: Callable[..., Tensor], **parts: Any) -> None:
        super().__init__()
        self.code = code
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x: Tensor) -> Tensor:
        return self.code(self, x)


def attention(net: Any, x: Tensor) -> Tensor:
    """Without softmax, so that units of q meet units of k that are rows of a product's left side."""
    return net.o(net.q(x).relu() @ (net.k(x).relu().transpose(1, 2) @ net.v(x)))


def mixing(net: Any, x: Tensor) -> Tensor:
    h = net.v(x).relu()
    return net.p(h).mean(1) + net.o(net.t(h.transpose(1, 2)).transpose(1, 2).mean(1))


def shuffled(net: Any, x: Tensor) -> Tensor:
    """Units that differ from place to place cannot be followed through a pool."""
    h = F.pixel_shuffle(net.l(x), 2).relu()
    return net.c(F.max_pool2d(h, 2)).mean((2, 3)) + net.d(h).mean((2, 3))


def plain() -> tuple[nn.Module, Tensor]:
    net = nn.Sequential(nn.Linear(2, 5), nn.ReLU(), nn.Linear(5, 6))
    return dead(net, net[0].bias, [1, 3]), torch.rand(2, 2)


def recurrent() -> tuple[nn.Module, Tensor]:
    net = Net(lambda s, x: s.r(s.l(x).relu())[0], l=nn.Linear(3, 6), r=nn.LSTM(6, 4, batch_first=True))
    return dead(net, net.l.bias, [1, 4]), torch.rand(2, 5, 3)


def gained() -> tuple[nn.Module, Tensor]:
    gain = nn.Parameter(torch.ones(1, 1, 6))
    net = Net(lambda s, x: s.o(s.l(x).relu() * s.g), l=nn.Linear(3, 6), g=gain, o=nn.Linear(6, 2))
    return dead(net, net.l.bias, [1, 4]), torch.rand(2, 5, 3)


def dead(net: nn.Module, bias: Any, units: list[int]) -> nn.Module:
    with torch.no_grad():
        bias.clamp_(min=0.5)  # the others live
        bias[units] = -50.0
    return net


def answered(net: nn.Module, x: Tensor, path: Path, forge: Callable[[Lines], Any] | None = None) -> Verdict:
    """The checker's word on a cut of a copy, and on its ledger, forged or not."""
    small = copy.deepcopy(net)
    nd.compact_(small, x, ledger=path, on_collapse="keep")
    lines = read(path)
    assert len(lines) > 2
    if forge is not None:
        forge(lines)
    return verify(net, small, x, ledger=write(path, mended(lines)), tries=1)


def weights(inputs: int, units: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(units, inputs) / inputs)


TRUE: dict[str, Callable[[], tuple[nn.Module, str, list[int], Tensor]]] = {
    "linear attention": lambda: (
        Net(attention, q=nn.Linear(3, 6), k=nn.Linear(3, 6), v=nn.Linear(3, 4), o=nn.Linear(4, 2)),
        "q.bias", [1], torch.rand(2, 5, 3),
    ),
    "a layer across places": lambda: (
        Net(mixing, v=nn.Linear(3, 6), t=nn.Linear(5, 5, bias=False), o=nn.Linear(6, 2), p=nn.Linear(6, 2)),
        "v.bias", [1], torch.rand(2, 5, 3),
    ),
    "pixel shuffle": lambda: (
        Net(shuffled, l=nn.Conv2d(3, 16, 1), c=nn.Conv2d(4, 2, 1), d=nn.Conv2d(4, 2, 1)),
        "l.bias", [4, 5, 6, 7], torch.rand(2, 3, 4, 4),
    ),
    "a masked weight": lambda: (
        Net(lambda s, x: s.o(F.linear(x, s.w * torch.tensor([1.0, 0.3, 0.7]), s.b).relu()),
            w=weights(3, 6), b=nn.Parameter(torch.zeros(6)), o=nn.Linear(6, 2)),
        "b", [1, 4], torch.rand(2, 3),
    ),
    "einsum": lambda: (
        Net(lambda s, x: s.o((torch.einsum("nd,hd->nh", x, s.w) + s.b).relu()),
            w=weights(3, 6), b=nn.Parameter(torch.zeros(6)), o=nn.Linear(6, 2)),
        "b", [1, 4], torch.rand(2, 3),
    ),
    "joined weights": lambda: (
        Net(lambda s, x: s.o(F.linear(x, torch.cat([s.one, s.two]), s.b).relu()),
            one=weights(3, 4), two=weights(3, 4), b=nn.Parameter(torch.zeros(8)), o=nn.Linear(8, 2)),
        "b", [1, 6, 7], torch.rand(2, 3),
    ),
    "a low rank added": lambda: (
        Net(lambda s, x: s.o(F.linear(x, s.w + s.a @ s.c, s.b).relu()), w=weights(3, 6), a=weights(2, 6),
            c=weights(3, 2), b=nn.Parameter(torch.zeros(6)), o=nn.Linear(6, 2)),
        "b", [1], torch.rand(2, 3),
    ),
    "weights on the left": lambda: (
        Net(lambda s, x: s.v @ (s.w @ x + s.b).relu(), w=weights(5, 6), b=nn.Parameter(torch.zeros(6, 1)),
            v=weights(6, 2)),
        "b", [1], torch.rand(5, 4),
    ),
    "einsum, weights first": lambda: (
        Net(lambda s, x: torch.einsum("ho,bh->bo", s.v, (torch.einsum("ih,bi->bh", s.w, x) + s.b).relu()),
            w=weights(6, 3), b=nn.Parameter(torch.zeros(6)), v=weights(2, 6)),
        "b", [1], torch.rand(2, 3),
    ),
    "einsum with heads": lambda: (
        Net(lambda s, x: s.o((torch.einsum("bi,hid->bhd", x, s.w) + s.b).relu().sum(1)),
            w=nn.Parameter(torch.randn(2, 3, 6)), b=nn.Parameter(torch.zeros(6)), o=nn.Linear(6, 2)),
        "b", [1], torch.rand(2, 3),
    ),
    "a weight twice in a joined one": lambda: (
        Net(lambda s, x: F.linear(F.linear(x, torch.cat([s.w, -s.w]), s.b).relu(), s.o),
            w=weights(3, 4), b=nn.Parameter(torch.zeros(8)), o=weights(8, 2)),
        "b", [1, 5], torch.rand(2, 3),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TRUE)
def test_true_ledgers_are_proved(name: str, tmp_path: Path) -> None:
    net, bias, units, x = TRUE[name]()
    verdict = answered(dead(net, net.get_parameter(bias), units), x, tmp_path / "ledger.jsonl")
    assert verdict.status == "proved", verdict
    assert verdict.units >= 1


def test_units_of_joined_weights_have_the_places_of_their_own(tmp_path: Path) -> None:
    net, _, units, x = TRUE["joined weights"]()
    nd.compact_(dead(net, net.b, units), x, ledger=tmp_path / "ledger.jsonl")
    told = [(line["weight"], line["at"]) for line in read(tmp_path / "ledger.jsonl")[2:]]
    assert sorted(told) == [("one", 1), ("two", 2), ("two", 3)]


@pytest.mark.parametrize(
    ("build", "key"),
    [(plain, "0.bias:0"), (plain, "2.weight:1"), (recurrent, "r.weight_ih_l0:1"), (gained, "g:2")],
)
def test_an_element_told_with_another_unit_is_refuted(build: Any, key: str, tmp_path: Path) -> None:
    def swap(lines: Lines) -> None:
        one, two = lines[2]["with"], lines[3]["with"]
        one[key], two[key] = two[key], one[key]

    net, x = build()
    assert answered(net, x, tmp_path / "true").status == "proved"
    verdict = answered(net, x, tmp_path / "false", swap)
    assert verdict.status == "refuted"
    assert "does not go with it" in verdict.reason


@pytest.mark.parametrize(("layer", "weight", "axis"), [("2", "2.weight", 1), ("0.weight", "0.weight", 0),
                                                       ("0.bias", "0.bias", 0)])  # fmt: skip
def test_an_invented_unit_is_refuted(layer: str, weight: str, axis: int, tmp_path: Path) -> None:
    def invent(lines: Lines) -> None:
        lines.append({**copy.deepcopy(lines[2]), "layer": layer, "weight": weight, "axis": axis})
        lines[1]["units"] += 1

    verdict = answered(*plain(), tmp_path / "ledger", invent)
    assert verdict.status == "refuted"
    assert "is told twice, or is none that a layer makes" in verdict.reason


@pytest.mark.parametrize("layer", [nn.Linear, lambda inputs, units: nn.Conv2d(inputs, units, 1)])
def test_a_run_has_a_line_for_each_unit(layer: Callable[[int, int], nn.Module], tmp_path: Path) -> None:
    """Two layers whose units go together, and a ledger that tells those of one."""
    parts = {"a": layer(3, 5), "b": layer(3, 5), "o": layer(5, 2)}
    net = Net(lambda s, x: s.o(s.a(x).relu() + s.b(x).relu()), **parts)
    x = torch.rand(2, 3) if layer is nn.Linear else torch.rand(2, 3, 4, 4)
    first, path = copy.deepcopy(net), tmp_path / "ledger.jsonl"
    drop = nd.NodeDrop(net, None, x, ledger=path)
    for name in ("a", "b"):
        dead(net, parts[name].bias, [1, 2])
    assert drop.drop() is not None
    assert verify_run(first, net, x, path).units == 4
    lines = [line for line in read(path) if line.get("layer") != "b"]
    lines[1]["units"] -= 2
    write(path, mended(lines))
    assert "the ledger has no line for it" in verify_run(first, net, x, path).reason


def test_a_gain_is_no_unit_of_its_own(tmp_path: Path) -> None:
    def invent(lines: Lines) -> None:
        for unit in lines[2:]:
            own = {"g:2": unit["with"].pop("g:2")}
            lines.append({**unit, "layer": "g", "weight": "g", "axis": 2, "with": own, "bound": None})
        lines[1]["units"] *= 2

    verdict = answered(*gained(), tmp_path / "ledger", invent)
    assert verdict.status == "refuted"
    assert "is none that a layer makes" in verdict.reason


@pytest.mark.parametrize("bound", [float("nan"), float("-inf")])
def test_what_is_no_number_is_no_bound(bound: float, tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    net, x = plain()
    small = copy.deepcopy(net)
    nd.compact_(small, x, ledger=path)
    lines, last = [json.loads(text) for text in path.read_text().splitlines()], "0" * 64
    for line in lines:
        del line["hash"]
        line["prev"] = last
        if line["line"] == "unit":
            line["bound"] = bound
        last = line["hash"] = sha256(json.dumps(line, sort_keys=True).encode()).hexdigest()
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert verify(net, small, x, ledger=path).status == "refuted"


def scaled(**scales: float) -> Callable[..., Tensor]:
    return lambda s, x: torch.addmm(s.b, s.l(x).relu(), s.w, **scales)


@pytest.mark.parametrize("scales", [{"alpha": 2}, {"beta": 2}, {"beta": 0}])
def test_a_constant_is_scaled_on_its_way_into_a_bias(scales: dict[str, float]) -> None:
    def made(units: int) -> Any:
        parts = {"l": nn.Linear(3, units), "b": nn.Parameter(torch.randn(2)), "w": weights(2, units)}
        return Net(scaled(**scales), **parts)

    wide, small = made(4), made(3)
    with torch.no_grad():
        wide.l.weight[1], wide.l.bias[1] = 0.0, 1.0
        for mine, its in ((small.l.weight, wide.l.weight), (small.l.bias, wide.l.bias), (small.w, wide.w)):
            mine.copy_(its[[0, 2, 3]])
        small.b.copy_(wide.b + wide.w[1])
    x = torch.rand(2, 3)
    assert (wide(x) - small(x)).abs().max() > 0.05
    assert verify(wide, small, x, domain=(0.0, 1.0), tries=0).status != "proved"


@pytest.mark.parametrize(
    ("one", "two", "code"),
    [
        (torch.tensor([1 + 1j]), torch.tensor([1 + 2j]), lambda s, x: (x * s.c).abs()),
        (torch.tensor([0.0]), torch.tensor([-0.0]), lambda s, x: torch.copysign(x, s.c)),
        (torch.tensor([2**53]), torch.tensor([2**53 + 1]), lambda s, x: x * (s.c % 2)),
    ],
    ids=["imaginary", "sign of zero", "large"],
)  # fmt: skip
def test_numbers_are_compared_as_what_they_are(one: Tensor, two: Tensor, code: Any) -> None:
    nets = [Net(code), Net(code)]
    for net, value in zip(nets, (one, two), strict=True):
        net.register_buffer("c", value)
    x = torch.rand(2, 3)
    assert (nets[0](x) - nets[1](x)).abs().max() > 0.1
    assert verify(nets[0], nets[1], x, domain=(0.0, 1.0), tries=1).status != "proved"


def test_an_epsilon_below_the_normal_numbers_is_rounded_coarsely() -> None:
    class Normed(nn.Module):
        def __init__(self, units: int) -> None:
            super().__init__()
            self.a, self.n, self.o = nn.Linear(1, units), nn.BatchNorm1d(units, eps=2e-45), nn.Linear(units, 1)
            with torch.no_grad():
                self.a.weight.fill_(1e-22)[-1], self.n.bias.fill_(-2.4)[-1] = 5e-23, 1.0
                for zero in (self.a.bias, self.n.running_var, self.o.bias):
                    zero.zero_()
                self.o.weight.fill_(1.0)

        def forward(self, x: Tensor) -> Tensor:
            return self.o(self.n(self.a(x)).relu())

    torch.manual_seed(0)
    wide, small, x = Normed(2).eval(), Normed(1).eval(), torch.ones(2, 1)
    assert (wide(x) - small(x)).abs().min() > 0.2
    assert verify(wide, small, x, domain=(0.0, 1.0), modes=("eval",), tries=0).status != "proved"
    analysis = nd.analyze(wide, x, domain=(0.0, 1.0), mode="eval")
    assert not [unit for unit in analysis.units if unit.status == "removed"]
