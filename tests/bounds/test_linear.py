"""Linear relaxation: as sound as intervals, never wider, and often much narrower."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from tests.bounds.summation import rising
from tests.export.target import correlated
from tests.fuzz.generator import Description, Network, descriptions, example
from tests.oracle import Violation, check_bounds, check_graph
from torch import Tensor, nn

import nodedrop as nd
from nodedrop.bounds import Bounds, bound, lines, propagate
from nodedrop.errors import InputError
from nodedrop.tracing import tensors_of, trace

ACTS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU, "relu6": nn.ReLU6, "hardtanh": nn.Hardtanh, "clamped": nd.ClampedReLU, "soft": nd.SoftClampedReLU,
}  # fmt: skip


def dense(act: type[nn.Module], seed: int = 0, depth: int = 3, width: int = 12) -> nn.Sequential:
    torch.manual_seed(seed)
    sizes = [4] + [width] * depth
    layers = [layer for a, b in pairwise(sizes) for layer in (nn.Linear(a, b), act())]
    return nn.Sequential(*layers, nn.Linear(width, 2))


class Branches(nn.Module):
    """Sums, joins, pooling and batch norm, with and without zeros around."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.norm, self.third = nn.BatchNorm2d(4), nn.Conv2d(8, 3, 3, stride=2)
        self.pool, self.last = nn.AvgPool2d(2), nn.Linear(3, 5)
        self.norm.running_mean = torch.tensor([0.1, -0.2, 0.3, 0.0])
        self.norm.running_var = torch.tensor([0.5, 2.0, 1.0, 0.1])

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).relu()
        y = self.norm(self.second(x) - x).relu()
        z = self.third(torch.cat([x, y + 1], 1)).clamp(min=0)
        return self.last(self.pool(z).flatten(1)).relu()


@pytest.mark.parametrize("name", ACTS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_no_value_leaves_its_bounds(name: str, dtype: torch.dtype) -> None:
    examine(ACTS[name], dtype)


def examine(act: type[nn.Module], dtype: torch.dtype) -> None:
    for seed in range(4):
        check_bounds(dense(act, seed), [(3, 4)], (-1.0, 1.0), dtypes=[dtype], linear=True, samples=40, climbs=2)


def test_no_value_of_a_network_with_branches_leaves_its_bounds() -> None:
    check_bounds(Branches(), [(2, 2, 8, 8)], (0.0, 1.0), linear=True, samples=20, climbs=2)


def test_a_value_is_tightened_whether_it_is_pooled_before_or_after_its_activation() -> None:
    torch.manual_seed(0)
    first, second, pool = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 3), nn.MaxPool2d(2)
    bounds = []
    for rest in ((nn.ReLU(), pool), (pool, nn.ReLU())):
        net = nn.Sequential(first, nn.ReLU(), second, *rest)
        (graph,) = trace(net, torch.rand(2, 1, 8, 8)).in_mode("eval")
        last = [node.name for node in graph.nodes if node.op == "aten.conv2d.default"][-1]
        plain, linear = (bound(graph, tensors_of(net), (0.0, 1.0), linear=choice)[last] for choice in (False, True))
        assert (linear.hi < plain.hi).any()
        bounds.append(linear)
    assert torch.equal(bounds[0].hi, bounds[1].hi)
    assert torch.equal(bounds[0].lo, bounds[1].lo)


@settings(
    max_examples=25, deadline=None, derandomize=True, database=None, phases=(Phase.generate,),
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
@given(description=descriptions())
def test_random_networks(description: Description) -> None:
    model, inputs = Network(description), example(description, torch.Generator().manual_seed(0))
    for graph in trace(model, inputs).graphs:
        found = check_graph(graph, tensors_of(model), description.domain, linear=True)
        assert_within(found, bound(graph, tensors_of(model), description.domain))


def assert_within(tighter: Bounds, wider: Bounds) -> None:
    for node in tighter.graph.nodes:
        if node.is_tensor:
            inner, outer = tighter[node.name].double(), wider[node.name].double()
            assert bool((inner.hi <= outer.hi).all()), node.name
            assert bool((inner.lo >= outer.lo).all()), node.name


def widths(model: nn.Module, shape: tuple[int, ...], *, linear: bool) -> list[float]:
    (graph,) = trace(model, torch.zeros(shape)).in_mode("eval")
    bounds = bound(graph, tensors_of(model), (-1.0, 1.0), linear=linear)
    sums = [node.name for node in graph.nodes if node.op in ("aten.linear.default", "aten.conv2d.default")]
    return [float((bounds[name].hi - bounds[name].lo).mean()) for name in sums]


def test_deep_layers_gain_most() -> None:
    plain, linear = (widths(dense(nn.ReLU), (2, 4), linear=choice) for choice in (False, True))
    ratios = [b / a for a, b in zip(plain, linear, strict=True)]
    assert ratios[0] == 1
    assert ratios[2] < ratios[1] < 0.9


def test_units_that_only_a_linear_bound_proves_dead_go() -> None:
    net = correlated()
    x = torch.linspace(-1, 1, 50, dtype=torch.float64).reshape(-1, 1)
    assert nd.analyze(net, x[:2], (-1, 1)).removable == ()
    before = net(x)
    done = nd.compact_(net, x[:2], (-1, 1), bounds="linear")
    assert [(c.layer, c.index) for c in done.removed] == [("2", 0)]
    torch.testing.assert_close(net(x), before, rtol=1e-12, atol=1e-12)


def test_a_unit_that_fires_by_rounding_alone_is_not_certified() -> None:
    unit = rising(torch.float32)
    net = nn.Sequential(nn.Linear(1, len(unit.weight)), nn.ReLU(), nn.Linear(len(unit.weight), 1), nn.ReLU())
    with torch.no_grad():
        net[0].weight.zero_()
        net[0].bias.copy_(unit.point)
        net[2].weight.copy_(unit.weight.reshape(1, -1))
        net[2].bias.copy_(unit.bias.reshape(1))
    (graph,) = trace(net, torch.zeros(2, 1)).in_mode("eval")
    last = [node.name for node in graph.nodes if node.op == "aten.linear.default"][-1]
    assert float(bound(graph, tensors_of(net), (0.0, 1.0), linear=True)[last].hi.max()) > 0


@pytest.mark.parametrize("wrong", ["above", "over", "below", "under"])
def test_a_wrong_line_is_found_out(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(lo: Tensor, hi: Tensor, node: Any) -> lines.Lines:
        found, shift = lines.clipped(lo, hi, 0.0, float("inf")), 0.5 * (hi - lo)
        down = wrong in ("above", "over")
        return replace_line(found, wrong, -shift if down else shift)

    monkeypatch.setitem(lines.LINES, "aten.relu.default", broken)
    with pytest.raises(Violation):
        examine(nn.ReLU, torch.float64)


def replace_line(found: lines.Lines, name: str, shift: Tensor) -> lines.Lines:
    return found._replace(**{name: getattr(found, name) + shift})


def by_the_book(weights: list[np.ndarray], biases: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """CROWN for a plain ReLU network and inputs in [−1, 1], written from its definition, one row at a time.

    The better of it and of intervals, as everywhere, and for rows whose sign intervals leave open.
    """
    ends = [(-np.ones(weights[0].shape[1]), np.ones(weights[0].shape[1]))]
    for depth, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        below, above = ends[-1] if depth == 0 else (np.maximum(end, 0) for end in ends[-1])
        up, down = np.maximum(weight, 0), np.minimum(weight, 0)
        lo, hi = up @ below + down @ above + bias, up @ above + down @ below + bias
        for row in np.flatnonzero((lo < 0) & (hi > 0)):
            lo[row] = max(lo[row], -largest(-weight[row], -bias[row], weights[:depth], biases[:depth], ends[1:]))
            hi[row] = min(hi[row], largest(weight[row], bias[row], weights[:depth], biases[:depth], ends[1:]))
        ends.append((lo, hi))
    return ends[-1]


def largest(slope: np.ndarray, shift: float, weights: list, biases: list, ends: list) -> float:
    """Of a linear function of the last activations."""
    for weight, bias, (lo, hi) in zip(reversed(weights), reversed(biases), reversed(ends), strict=True):
        slope = slope.copy()
        for unit in range(len(lo)):
            if hi[unit] <= 0:
                slope[unit] = 0
            elif lo[unit] < 0 < slope[unit]:
                slope[unit] *= hi[unit] / (hi[unit] - lo[unit])
                shift -= slope[unit] * lo[unit]
            elif lo[unit] < 0:
                slope[unit] *= hi[unit] >= -lo[unit]
        slope, shift = slope @ weight, shift + slope @ bias
    return shift + np.abs(slope).sum()


@pytest.mark.parametrize("seed", range(5))
def test_the_method_by_the_book_finds_the_same(seed: int) -> None:
    net = dense(nn.ReLU, seed, depth=4, width=6).double()
    (graph,) = trace(net, torch.zeros(2, 4).double()).in_mode("eval")
    ours = bound(graph, tensors_of(net), (-1.0, 1.0), linear=True)
    last = [node.name for node in graph.nodes if node.op == "aten.linear.default"][-2]
    layers = [layer for layer in net[:-1] if isinstance(layer, nn.Linear)]
    lo, hi = by_the_book([x.weight.detach().numpy() for x in layers], [x.bias.detach().numpy() for x in layers])
    np.testing.assert_allclose(ours[last].hi[0], hi, rtol=1e-9)
    np.testing.assert_allclose(ours[last].lo[0], lo, rtol=1e-9)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")  # which the library still uses
def test_a_library_of_others_finds_the_same() -> None:
    """Intervals in every layer; lines in the second. From there on slopes follow the better of both, here alone."""
    from bound_propagation import BoundModelFactory, HyperRectangle

    factory, compared = BoundModelFactory(adaptive_relu=True), 0
    region = HyperRectangle.from_eps(torch.zeros(1, 4).double(), 1.0)
    for seed in range(5):
        net = dense(nn.ReLU, seed, depth=4, width=6).double()
        (graph,) = trace(net, torch.zeros(2, 4).double()).in_mode("eval")
        plain, ours = (bound(graph, tensors_of(net), (-1.0, 1.0), linear=linear) for linear in (False, True))
        for depth, name in enumerate(node.name for node in graph.nodes if node.op == "aten.linear.default"):
            theirs = factory.build(net[: 2 * depth + 1])
            widest = theirs.ibp(region)
            np.testing.assert_allclose(plain[name].hi[0], widest.upper[0].detach(), rtol=1e-12, atol=1e-12)
            np.testing.assert_allclose(plain[name].lo[0], widest.lower[0].detach(), rtol=1e-12, atol=1e-12)
            if depth == 1:
                straight = theirs.crown(region).concretize()
                hi, lo = torch.minimum(straight.upper, widest.upper)[0], torch.maximum(straight.lower, widest.lower)[0]
                open_ = (plain[name].lo[0] < 0) & (plain[name].hi[0] > 0)
                np.testing.assert_allclose(ours[name].hi[0][open_], hi[open_].detach(), rtol=1e-10, atol=1e-10)
                np.testing.assert_allclose(ours[name].lo[0][open_], lo[open_].detach(), rtol=1e-10, atol=1e-10)
                compared += int(open_.sum())
    assert compared > 20


class Centred(nn.Module):
    """A value without axes between two that have some."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.last = nn.Linear(5, 8), nn.Linear(8, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.second(torch.relu(self.first(x)))
        return self.last(torch.relu(h - h.mean()) + torch.relu(h[0, 0] - h[0, 1]))


class Clipped(nn.Module):
    """0.1 is no float: the one next to it is larger."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu((x - 0.5).clamp(max=0.1).clamp(min=-0.1))


class Wrapped(nn.Module):
    """200 + 100 is 44 among whole numbers of eight bits."""

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu((x * 100).to(torch.int8) - 20)
        return torch.relu(y + torch.full((4,), 100, dtype=torch.int8)).float()


class Mixed(nn.Module):
    """Two types side by side, one of which does not hold all numbers of the other."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(torch.cat([torch.relu(x.bfloat16() - 0.5), (512 * x - 256).to(torch.int16) + 47], 1))


@pytest.mark.parametrize("build", [Centred, Clipped, Wrapped, Mixed])
def test_no_value_leaves_its_bounds_where_lines_end(build: type[nn.Module]) -> None:
    shape = (3, 5) if build is Centred else (3, 4)
    check_bounds(build(), [shape], (0.0, 1.0), dtypes=[torch.float32], linear=True, samples=20, climbs=2)


def test_one_sample_without_a_batch_is_bounded_like_one_in_a_batch() -> None:
    net, found = dense(nn.ReLU), []
    for shape in ((4,), (1, 4)):
        (graph,) = trace(net, torch.zeros(shape)).in_mode("eval")
        check_graph(graph, tensors_of(net), (-1.0, 1.0), linear=True)
        last = [node.name for node in graph.nodes if node.op == "aten.linear.default"][-2]
        plain, linear = (bound(graph, tensors_of(net), (-1.0, 1.0), linear=choice)[last].hi for choice in (False, True))
        assert bool((linear < plain).any())
        found.append(linear.reshape(-1))
    torch.testing.assert_close(*found, rtol=1e-12, atol=0.0)


def test_where_lines_cannot_speak_intervals_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def unforeseen(*_: Any) -> Any:
        raise RuntimeError

    net = dense(nn.ReLU)
    (graph,) = trace(net, torch.zeros(2, 4)).in_mode("eval")
    plain = bound(graph, tensors_of(net))
    monkeypatch.setattr(propagate, "tightened", unforeseen)
    with pytest.raises(RuntimeError):
        bound(graph, tensors_of(net), linear=True)
    monkeypatch.setattr(propagate, "STRICT", False)
    assert_within(bound(graph, tensors_of(net), linear=True), plain)


def test_mistakes() -> None:
    net = dense(nn.ReLU)
    with pytest.raises(InputError, match=r"^bounds must be 'interval' or 'linear', not 'zonotope'$"):
        nd.analyze(net, torch.rand(2, 4), bounds="zonotope")
    with pytest.raises(InputError, match="leave ledger= or bounds='linear' out"):
        nd.compact_(net, torch.rand(2, 4), bounds="linear", ledger="ledger.jsonl")
