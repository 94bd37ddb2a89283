"""Models that are hard on a compiler: code that reads its own sizes, state that a forward rebinds, shared tensors."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import nodedrop as nd
from nodedrop import session
from nodedrop.errors import CollapseError, InputError, TraceError
from nodedrop.tracing import trace

from .exactness import run

Use = Callable[..., Any]
DEAD = (1, 5)
GONE = [("body.0", unit) for unit in DEAD]
ZEROS = torch.zeros(2, 3, dtype=torch.float64)


@pytest.fixture(autouse=True)
def double() -> Iterator[None]:
    """Everything in float64, from the same seed."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(before)


class Net(nn.Module):
    """Three inputs, eight units of which two never fire, two outputs; `use` is the forward."""

    def __init__(self, use: Use, dead: tuple[int, ...] = DEAD, **others: Any) -> None:
        super().__init__()
        self.body, self.use = nn.Sequential(awake(nn.Linear(3, 8)), nn.ReLU(), nn.Linear(8, 2)), use
        silence(self.body[0], dead)
        for name, value in others.items():
            setattr(self, name, value)

    def hidden(self, x: Tensor) -> Tensor:
        return torch.relu(self.body[0](x))

    def forward(self, *inputs: Tensor) -> Any:
        return self.use(self, *inputs)


def awake(layer: Any) -> Any:
    """Every unit fires for every input from zero on."""
    with torch.no_grad():
        layer.weight.uniform_(0.1, 1.0)
        layer.bias.uniform_(0.1, 1.0)
    return layer


def silence(layer: Any, units: tuple[int, ...], value: float = -0.1) -> None:
    """These units have one value whatever their input, so that even a part of a model can prove it."""
    with torch.no_grad():
        layer.weight[list(units)] = 0.0
        layer.bias[list(units)] = value


def parameter(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.rand(shape, dtype=torch.float64))


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """All parameters and buffers are the same afterwards."""
    before = copy.deepcopy(model.state_dict())
    yield
    now = model.state_dict()
    assert list(now) == list(before)
    assert all(torch.equal(now[name], tensor) for name, tensor in before.items())


def compacted(model: nn.Module, example: Any, *others: Any, tolerance: float = 1e-12, **options: Any) -> nd.Ledger:
    """The ledger of a cut that leaves the outputs alone: in both modes, on the example and on other inputs."""
    before = copy.deepcopy(model).requires_grad_(False)
    ledger = nd.compact_(model, example, **options)
    for inputs in (example, *others):
        inputs = inputs if isinstance(inputs, tuple) else (inputs,)
        for mode in ("eval", "train"):
            for old, new in zip(run(before, inputs, mode), run(model, inputs, mode), strict=True):
                assert float((old - new.detach()).abs().max()) <= tolerance * float(old.abs().max())
    return ledger


def removed(ledger: nd.Ledger) -> list[tuple[str, int]]:
    return [(certificate.layer, certificate.index) for certificate in ledger.removed]


def assert_pinned(ledger: nd.Ledger, *words: str) -> None:
    """Nothing was cut, and each dead unit says why, in one of these ways."""
    assert not ledger.removed
    assert ledger.parameters_before == ledger.parameters_after
    found = [unit.reason for unit in ledger.units if (unit.layer, unit.index) in GONE]
    assert len(found) == len(GONE)
    assert all(any(word in reason for word in words) for reason in found), found


def test_an_exception_of_any_kind_leaves_model_and_optimizer_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    net = Net(lambda net, x: net.body(x))
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.rand(4, 3)).sum().backward()
    optimizer.step()
    silence(net.body[0], DEAD)
    parameters = list(net.parameters())
    monkeypatch.setattr(session, "compare", lambda *_: 1 / 0)
    with unchanged(net), pytest.raises(ZeroDivisionError):
        nd.compact_(net, torch.rand(4, 3), optimizer=optimizer)
    monkeypatch.undo()
    assert net.body[0].out_features == 8
    assert all(now is old for now, old in zip(net.parameters(), parameters, strict=True))
    assert all(optimizer.state[p]["exp_avg"].shape == p.shape for p in parameters)
    assert removed(compacted(net, torch.rand(4, 3), optimizer=optimizer)) == GONE


@pytest.mark.parametrize(
    "use",
    [
        lambda net, x: (net.hidden(x)[:, :, None] * net.hidden(x)[:, None, :]).flatten(1).sum(1),
        lambda net, x: net.body[2](F.linear(net.hidden(x), net.row.expand(8, 8)).relu()),
        lambda net, x: net.body[2](F.linear(net.hidden(x), net.rows[:1].expand(8, 8), net.one.expand(8)).relu()),
    ],
    ids=["flattened outer product", "expanded weight", "expanded slice of a weight"],
)
def test_what_cannot_follow_a_cut_is_left_alone(use: Use) -> None:
    net = Net(use, row=parameter(1, 8), rows=parameter(4, 8), one=parameter(1))
    with unchanged(net):
        assert_pinned(compacted(net, torch.rand(2, 3), torch.rand(5, 3)), "own code")


def average(net: Any, x: Tensor) -> Tensor:
    """Rebinds a buffer in train mode."""
    h = net.hidden(x)
    if net.training:
        net.mean = 0.9 * net.mean + 0.1 * h.detach().mean(0)
    return net.body[2](h * net.mean)


def test_a_buffer_that_forward_rebinds_is_cut_with_its_units() -> None:
    net = Net(average, mean=nn.Buffer(torch.ones(8)))
    assert removed(compacted(net, torch.rand(2, 3), torch.rand(5, 3))) == GONE
    net.train()(torch.rand(5, 3))
    assert net.mean.shape == (6,)


def test_a_buffer_that_forward_rebinds_survives_a_rollback() -> None:
    net = Net(lambda net, x: average(net, x) / net.mean.shape[0], mean=nn.Buffer(torch.ones(8)))
    with unchanged(net):
        assert_pinned(compacted(net, torch.rand(2, 3), torch.rand(5, 3)), "own code")
    net.train()(torch.rand(5, 3))
    assert net.mean.shape == (8,)


def test_a_cache_that_forward_builds_is_neither_kept_nor_in_the_way() -> None:
    def positions(net: Any, x: Tensor) -> Tensor:
        if net.pos is None:
            net.pos = torch.zeros(x.shape[1], 1)
        return net.body(x + net.pos)

    net = Net(positions)
    net.register_buffer("pos", None, persistent=False)
    assert removed(compacted(net, torch.rand(2, 5, 3), torch.rand(4, 5, 3))) == GONE
    assert net.pos is None
    assert net(torch.rand(4, 7, 3)).shape == (4, 7, 2)


def test_an_embedding_that_renormalises_itself_keeps_its_weights() -> None:
    net = Net(lambda net, tokens: net.body(net.table(tokens)), table=nn.Embedding(10, 3, max_norm=0.5))
    with unchanged(net):
        nd.analyze(net, torch.arange(10))
    with unchanged(net.table):
        assert removed(nd.compact_(net, torch.arange(10))) == GONE


def attention(net: Any, x: Tensor) -> Tensor:
    q, k, v = net.hidden(x), net.key(x), net.value(x)
    return net.head((q @ k.transpose(1, 2) * q.size(-1) ** -0.5).softmax(-1) @ v)


SIZES: dict[str, Use] = {
    "divided by the width": lambda net, x: net.body[2](net.hidden(x)) / net.hidden(x).shape[1],
    "times the layer's width": lambda net, x: net.body(x) * net.body[0].out_features,
    "split(4)": lambda net, x: torch.stack([part.sum(1) for part in net.hidden(x).split(4, 1)], 1),
    "as many outputs as units": lambda net, x: [net.body(x) * k for k in range(net.body[0].out_features)],
    "attention scale": lambda net, x: attention(net, x[:, None, :].expand(-1, 4, -1)),
    "labels": lambda net, x: (net.body(x) / net.body[0].out_features + net.prior).argmax(-1),
}


@pytest.mark.parametrize("name", SIZES)
def test_code_that_reads_its_own_sizes_is_caught_even_where_the_example_does_not_show_it(name: str) -> None:
    others = {"key": nn.Linear(3, 8), "value": nn.Linear(3, 8), "head": nn.Linear(8, 2), "prior": parameter(2)}
    net = Net(SIZES[name], **others)
    with torch.no_grad():
        net.body[2].bias.zero_()
        net.body[0].bias.clamp_(max=0.0)
    with unchanged(net):
        assert_pinned(compacted(net, ZEROS, torch.rand(50, 3)), "own code", "split")


@pytest.mark.parametrize("example", [ZEROS * float("nan"), ZEROS + float("inf"), ZEROS[:0]])
def test_an_example_that_shows_nothing_is_refused(example: Tensor) -> None:
    for call in (nd.analyze, nd.compact_):
        with pytest.raises(InputError, match="empty, NaN or infinite"):
            call(Net(lambda net, x: net.body(x)), example)


@dataclass
class Output:
    logits: Tensor


@pytest.mark.parametrize("wrap", [Output, lambda y: [Output(y)], lambda y: (y * 1000).long() if y.any() else y])
def test_outputs_of_any_kind_are_compared(wrap: Callable[[Tensor], Any]) -> None:
    net = Net(lambda net, x: wrap(net.body(x) / net.body[0].out_features))
    with unchanged(net):
        assert_pinned(nd.compact_(net, torch.rand(4, 3), parts=True), "an output")
    assert removed(nd.compact_(Net(lambda net, x: wrap(net.body(x))), torch.rand(4, 3), parts=True)) == GONE


@pytest.mark.parametrize(("units", "gone"), [((1, 5), 2), ((1, 6), 0), ((1,), 0), ((0, 1, 2, 3), 0)])
def test_a_channel_shuffle_gives_up_the_same_place_of_every_group_or_nothing(units: tuple[int, ...], gone: int) -> None:
    net = nn.Sequential(awake(nn.Conv2d(3, 8, 1)), nn.ReLU(), nn.ChannelShuffle(2), nn.Conv2d(8, 2, 1))
    silence(net[0], units)
    assert len(compacted(net, torch.zeros(2, 3, 4, 4), torch.rand(3, 3, 4, 4)).removed) == gone


@pytest.mark.parametrize(
    "use",
    [
        lambda net, x: net.body[2](net.hidden(x).to(x.dtype)),
        lambda net, x: net.body[2](net.hidden(x).float().double()),
        lambda net, x: net.body[2](net.hidden(x).double()),
        lambda net, x: net.body[2](net.drop(net.hidden(x)[:, :, None, None]).flatten(1)),
    ],
    ids=["to", "float", "double", "Dropout2d"],
)
def test_casts_and_dropout_of_whole_units_pin_nothing(use: Use) -> None:
    assert removed(compacted(Net(use, drop=nn.Dropout2d(0.3)), torch.rand(2, 3), torch.rand(5, 3))) == GONE


def test_a_bare_weight_from_the_left_is_a_layer_and_is_not_emptied() -> None:
    net = Net(lambda net, x: net.outer @ (net.inner @ x).relu(), inner=parameter(4, 3), outer=parameter(2, 4))
    with torch.no_grad():
        net.inner[1] *= -1.0
    ledger = compacted(net, torch.rand(3, 5), torch.rand(3, 5))
    assert {account.layer: len(account.units) for account in ledger.analysis.accounts} == {"inner": 4, "outer": 2}
    assert removed(ledger) == [("inner", 1)]
    with torch.no_grad():
        net.inner.neg_()
    with unchanged(net), pytest.raises(CollapseError, match="'inner'"):
        nd.compact_(net, torch.rand(3, 5))
    compacted(net, torch.rand(3, 5), on_collapse="keep")
    assert net.inner.shape == (1, 3)


@pytest.mark.parametrize(
    ("gated", "gone"),
    [
        (lambda net, x: net.other(x), []),
        (lambda net, x: net.body[2].bias, []),
        (lambda net, x: F.linear(x, net.other.weight), [("body.0", 2)]),
    ],
    ids=["a tied bias", "the bias itself", "no other reader"],
)
def test_a_constant_is_not_folded_into_a_bias_that_something_else_reads(gated: Use, gone: list[Any]) -> None:
    net = Net(lambda net, x, gate: net.body(x) + gate * gated(net, x), dead=(), other=nn.Linear(3, 2))
    net.other.bias = net.body[2].bias
    silence(net.body[0], (2,), 0.7)
    assert removed(compacted(net, (ZEROS, torch.zeros(2, 1)), (torch.rand(5, 3), torch.rand(5, 1)))) == gone


@pytest.mark.parametrize("scale", [1.0, 1e4])
@pytest.mark.parametrize(("by_position", "by_mode"), [(1e-7, 0.0), (0.0, 1e-7)])
def test_a_value_that_differs_a_little_is_no_constant(by_position: float, by_mode: float, scale: float) -> None:
    def shifted(net: Any, x: Tensor) -> Tensor:
        h = net.body[0](x) + net.pos
        return net.body[2]((h + by_mode if net.training else h).relu())

    net = Net(shifted, dead=(), pos=nn.Parameter(torch.zeros(5, 8)))
    silence(net.body[0], (2,), 1.0)
    with torch.no_grad():
        net.pos[:, 2] = by_position * torch.arange(5)
        net.body[2].weight[:, 2], net.body[2].bias[:] = scale, -scale
    single, example, others = copy.deepcopy(net).float(), torch.rand(2, 5, 3), torch.rand(9, 5, 3)
    assert not compacted(net, example, others).removed
    compacted(single, example.float(), others.float(), tolerance=1e-5)


@pytest.mark.parametrize(("dtype", "slope"), [(torch.float32, 4e-3), (torch.float64, 1e-11)])
def test_a_unit_that_varies_by_a_few_round_offs_is_not_folded(dtype: torch.dtype, slope: float) -> None:
    net = nn.Sequential(nn.Linear(1, 2), nn.ReLU(), nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1)).to(dtype)
    with torch.no_grad():
        for part, weight, bias in (
            (net[0], [[slope], [1.0]], [1000.0, 0.1]),
            (net[2], [[-1.0, 0.0], [0.0, 1.0]], [1000.0 + slope / 10, 0.0]),  # leaves what varies, magnified below
            (net[4], [[1 / slope, 1.0]], [0.0]),
        ):
            part.weight.copy_(torch.tensor(weight, dtype=torch.float64))
            part.bias.copy_(torch.tensor(bias, dtype=torch.float64))
    assert nd.compact_(net, torch.full((1, 1), 0.2, dtype=dtype)).removed == ()


def test_a_model_traced_in_parts_is_pinned_unless_it_is_allowed() -> None:
    net = Net(lambda net, x: net.body(x) if x.mean() > 0.5 else net.hidden(x))
    assert_pinned(compacted(net, torch.ones(2, 3), ZEROS), "parts=True")
    assert removed(nd.compact_(net, torch.ones(2, 3), parts=True)) == GONE


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_depth_drawn_from_python_random_is_refused_whatever_is_drawn(seed: int) -> None:
    net = Net(lambda net, x: x @ net.inner if net.training and random.random() < 0.5 else x, inner=parameter(3, 3))
    random.seed(seed)
    with pytest.raises(TraceError, match=r"draws from Python's or NumPy's `random`[^\n]*$"):
        nd.compact_(net, torch.rand(2, 3))
    assert random.random() == random.Random(seed).random()


def test_parts_under_python_random_are_pinned_with_the_sentence() -> None:
    net = Net(lambda net, x: net.body(x) * 2 if net.training and random.random() < 0.5 else net.body(x))
    ledger = nd.compact_(net, torch.rand(2, 3))
    assert_pinned(ledger, "parts=True")
    assert any("draws from Python's or NumPy's `random`" in note for note in ledger.analysis.notes)


def test_a_lazy_layer_and_a_type_without_arithmetic_are_named() -> None:
    byte = nn.Parameter(torch.rand(8, 3).to(torch.float8_e4m3fn), requires_grad=False)
    narrow = Net(lambda net, x: net.body[2](F.linear(x, net.byte.double()).relu()), byte=byte)
    lazy = nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.Linear(8, 2))
    for net, sentence in ((lazy, r"'0\.weight' is lazy[^\n]*$"), (narrow, r"'byte' is of type torch\.float8[^\n]*$")):
        for call in (nd.analyze, nd.compact_):
            with pytest.raises(InputError, match=sentence):
                call(net, torch.rand(2, 3))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"batch_size": "x"}, "batch_size must be a whole number .* 'x'"),
        ({"dtype": "float16"}, "dtype must be what the forward pass computes in, one of .*, not 'float16'"),
        ({"optimizer": 3}, "optimizer must be .* not int"),
        ({"domain": nd.Box("a", 1)}, "domain of input .* lo is 'a', not a number"),  # type: ignore[arg-type]
    ],
)
def test_an_option_of_the_wrong_kind_is_named(options: dict[str, Any], sentence: str) -> None:
    net = Net(lambda net, x: net.body(x))
    with unchanged(net), pytest.raises(InputError, match=f"^{sentence}$"):
        nd.compact_(net, torch.rand(2, 3), **options)


@pytest.mark.parametrize(("domain", "gone"), [((0, 255), 1), ([(0, 255)], 1), (None, 0)])
def test_pixels_as_bytes_have_a_domain(domain: Any, gone: int) -> None:
    net = Net(lambda net, x: net.body(x.double() / 255), dead=())
    with torch.no_grad():
        net.body[0].weight[1], net.body[0].bias[1] = 1.0, -3.01
    example, brightest = torch.randint(0, 256, (4, 3), dtype=torch.uint8), torch.full((2, 3), 255, dtype=torch.uint8)
    assert len(compacted(net, example, brightest, domain=domain).removed) == gone


def accounted(model: nn.Module, example: Tensor) -> dict[str, int]:
    """Units per layer; every one of them once."""
    analysis = nd.analyze(model, example)
    pairs = [(unit.layer, unit.index) for unit in analysis.units]
    assert len(set(pairs)) == len(pairs)
    return {account.layer: len(account.units) for account in analysis.accounts}


def test_tied_weights_are_accounted_for_once_for_every_side_that_is_read() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    net[2].weight = net[0].weight
    assert accounted(net, torch.rand(2, 4)) == {"0": 4, "4": 2}
    net = Net(lambda net, x: F.linear(net.hidden(x), net.body[0].weight.t()))
    assert sorted(accounted(net, torch.rand(2, 3)).values()) == [3, 8]
    assert removed(compacted(net, torch.rand(2, 3), torch.rand(5, 3))) == GONE


def test_packed_projections_are_accounted_for_once() -> None:
    net = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
    silence(net.linear1, DEAD)
    widths = {"self_attn.in_proj_weight": 24, "self_attn.out_proj": 8, "linear1": 16, "linear2": 8}
    assert accounted(net, torch.rand(2, 5, 8)) == widths
    assert {("linear1", unit) for unit in DEAD} <= set(removed(compacted(net, torch.rand(2, 5, 8))))


@pytest.mark.parametrize(
    ("batch_size", "bias", "gone"), [(2, -3.2, 0), (2, -3.4, 1), (4, -4.7, 0), (4, -4.9, 1), (None, -50.0, 0)]
)
def test_a_declared_batch_counts_the_rows_folded_into_it(batch_size: int | None, bias: float, gone: int) -> None:
    """Batch norm stays below √(B·T - 1): √11 ≈ 3.32 for two samples of six rows, √23 ≈ 4.80 for four."""

    def folded(net: Any, x: Tensor) -> Tensor:
        rows = net.body[0](x).view(x.shape[0] * x.shape[1], -1)
        return net.body[2](net.norm(rows).relu()).view(*x.shape[:2], -1)

    net = Net(folded, dead=(), norm=nn.BatchNorm1d(8))
    with torch.no_grad():
        net.norm.bias.fill_(9.0)
        net.norm.bias[1] = bias
    old, spike = copy.deepcopy(net), torch.zeros(batch_size or 2, 6, 3)
    spike[0, 0] = 1.0
    assert len(nd.compact_(net, torch.rand(2, 6, 3), mode="train", batch_size=batch_size).removed) == gone
    for x in (spike, 1.0 - spike):
        torch.testing.assert_close(net.train()(x), old.train()(x), rtol=0.0, atol=1e-12)


class ReadsStatistics(nn.Module):
    """Its training pass reads the mean that batch norm has just written."""

    def __init__(self, reads: bool) -> None:
        super().__init__()
        self.reads, self.norm, self.head = reads, nn.BatchNorm1d(3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        return self.head((y + self.norm.running_mean if self.reads else y).relu())


@pytest.mark.parametrize("reads", [False, True])
def test_statistics_that_something_else_reads_have_a_data_edge(reads: bool) -> None:
    graph = next(g for g in trace(ReadsStatistics(reads), torch.rand(4, 3)).graphs if g.mode == "train")
    written = {buffer for buffer, _ in graph.mutations}
    assert bool(written) == reads
    assert any(node.op == "aten.batch_norm.default" for node in graph.nodes) != reads


def test_a_grouped_convolution_left_with_one_group() -> None:
    """The exporter leaves `groups=1` out of the call, and the prediction spelled it."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 2, 1), nn.ReLU(), nn.Conv2d(2, 4, 3, groups=2), nn.ReLU(), nn.Conv2d(4, 1, 1))
    with torch.no_grad():
        model[0].weight.abs_()
        model[0].bias.copy_(torch.tensor([-9.0, 1.0]))
        model[2].weight.abs_()
        model[2].bias.copy_(torch.tensor([-1.0, -1.0, 1.0, 1.0]))
    images = torch.rand(2, 1, 5, 5)
    before = model(images)
    nd.compact_(model, images)
    assert (model[2].groups, model[2].out_channels, model[2].in_channels) == (1, 2, 1)
    torch.testing.assert_close(model(images), before)


class Halves(nn.Module):
    """Its code needs an even number of channels."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Conv2d(1, 4, 1), nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x).relu()
        n, c, h, w = y.shape
        return self.head(y.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, -1, h, w))


def test_what_the_models_own_code_refuses_is_pinned_and_said() -> None:
    torch.manual_seed(0)
    model = Halves()
    with torch.no_grad():
        model.first.weight.abs_()
        model.first.bias.copy_(torch.tensor([-9.0, -9.0, -9.0, 1.0]))
    images = torch.rand(2, 1, 3, 3)
    before = model(images)
    ledger = nd.compact_(model, images)
    torch.testing.assert_close(model(images), before)
    kept = [unit.reason or "" for unit in ledger.units if unit.layer == "first" and unit.status == "pinned"]
    assert len(ledger.removed) + sum(bool(reason) for reason in kept) == 3
    assert all("own code" in reason or "even" in reason or "split" in reason for reason in kept)


EDGES: dict[str, tuple[Callable[[Tensor], Tensor], bool]] = {
    "relu": (torch.relu, True),
    "relu6": (nn.functional.relu6, True),
    "hardtanh": (lambda x: nn.functional.hardtanh(x, 0.0, 1.0), True),
    "threshold": (lambda x: nn.functional.threshold(x, 0.0, 0.0), True),
    "clamp": (lambda x: x.clamp(min=0.0), False),
    "clamp to 1": (lambda x: x.clamp(0.0, 1.0), False),
    "clamp_min": (lambda x: torch.clamp_min(x, 0), False),
    "maximum": (lambda x: torch.maximum(x, torch.zeros_like(x)), False),
    "minimum": (lambda x: -torch.minimum(-x, torch.zeros_like(x)), False),
}


@pytest.mark.parametrize("name", EDGES)
def test_a_unit_that_just_reaches_a_sloped_edge_still_has_gradients_and_stays(name: str) -> None:
    activation, flat = EDGES[name]
    net = nn.Sequential(awake(nn.Linear(3, 4)), awake(nn.Linear(4, 6)), nn.Identity(), awake(nn.Linear(6, 2)))
    net[2].forward = activation
    with torch.no_grad():
        net[0].bias.zero_()
        net[0].weight.abs_()  # so that an input of zeros makes zeros
        net[1].weight[1:3] = -net[1].weight[1:3].abs()
        net[1].bias[1:3] = torch.tensor([0.0, -0.1])
    before, zeros = copy.deepcopy(net), torch.zeros(2, 3)
    gone = [("1", 1), ("1", 2)] if flat else [("1", 2)]
    assert removed(nd.compact_(net, zeros + 0.5)) == gone
    kept = [k for k in range(6) if ("1", k) not in gone]
    for model in (before, net):
        model(zeros).sum().backward()
    assert torch.allclose(before[0].bias.grad, net[0].bias.grad, rtol=1e-12)
    assert torch.allclose(before[1].weight.grad[kept], net[1].weight.grad, rtol=1e-12)


def test_a_unit_that_just_reaches_saturation_of_clamp_still_has_gradients_and_stays() -> None:
    net = nn.Sequential(awake(nn.Linear(3, 4)), nn.Identity(), awake(nn.Linear(4, 2)))
    net[1].forward = lambda x: x.clamp(min=1.0).clamp(max=1.0)  # always 1, with a slope where the input is 1, too
    with torch.no_grad():
        net[0].weight[1] = 0.1
    assert removed(nd.compact_(net, torch.rand(2, 3), domain=(0.0, 1.0), on_collapse="keep")) == [("0", 1)]


class Scaled(nn.Module):
    """A layer of a kind that nodedrop does not know, with numbers that happen to equal its width."""

    def __init__(self, width: int, period: int) -> None:
        super().__init__()
        self.weight, self.bias = parameter(width, 3), parameter(width)
        self.nf = self.hidden_size = width
        self.period = self.kernel_size = self.seed = period

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


def test_numbers_of_unknown_modules_that_are_no_widths_stay() -> None:
    net = nn.Sequential(Scaled(8, period=8), nn.ReLU(), nn.Linear(8, 2))
    silence(net[0], DEAD)
    assert removed(nd.compact_(net, torch.rand(2, 3))) == [("0", unit) for unit in DEAD]
    layer = net[0]
    assert (layer.nf, layer.hidden_size) == (6, 6)
    assert (layer.period, layer.kernel_size, layer.seed) == (8, 8, 8)


@pytest.mark.parametrize("which", ["weight", "bias"])
def test_parameters_that_share_memory_stay_tied(which: str) -> None:
    """Two parameters, one memory: a cut of either would part them."""
    net = Net(lambda net, x: net.body(x) + net.head(net.hidden(x) + net.other(x)), other=nn.Linear(3, 8))
    net.head = nn.Linear(8, 2)
    silence(net.other, DEAD)
    getattr(net.other, which).data = getattr(net.body[0], which).data
    with unchanged(net):
        assert_pinned(nd.compact_(net, torch.rand(2, 3)), "shares its memory")
    assert getattr(net.body[0], which).data_ptr() == getattr(net.other, which).data_ptr()


def test_parts_of_one_memory_are_cut_as_ever() -> None:
    """Parameters laid out one after another in one block (as recurrent layers do) share nothing."""
    net = nn.Sequential(awake(nn.Linear(3, 8)), nn.ReLU(), awake(nn.Linear(8, 2)))
    silence(net[0], DEAD)
    block, start = torch.cat([p.data.flatten() for p in net.parameters()]), 0
    for p in net.parameters():
        p.data, start = block[start : start + p.numel()].view(p.shape), start + p.numel()
    assert removed(nd.compact_(net, torch.rand(2, 3))) == [("0", unit) for unit in DEAD]


class Paired(nn.Module):
    """A layer for which there is no rule."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = awake(nn.Linear(3, 4)), nn.Bilinear(4, 4, 5), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x).relu()
        return self.c(self.b(h, h).relu())


def test_units_of_layers_without_a_rule_are_counted() -> None:
    normed = nn.utils.parametrizations.weight_norm(nn.Linear(4, 5))
    plain = nn.Sequential(awake(nn.Linear(3, 4)), nn.ReLU(), normed, nn.ReLU(), nn.Linear(5, 2))
    held = "2.parametrizations.weight.original1"
    for net, layer, words in ((Paired(), "b", "bilinear"), (plain, held, "_weight_norm")):
        analysis = nd.analyze(net, torch.rand(2, 3))
        assert sum(analysis.count(status) for status in ("removed", "alive", "pinned")) == 4 + 5 + 2
        units = next(account.units for account in analysis.accounts if account.layer == layer)
        assert all(unit.status == "pinned" and f"{words}.default has no rule" in unit.reason for unit in units)


BETWEEN = {
    "nothing": (nn.ReLU(), 1),
    "dropout": (nn.Sequential(nn.ReLU(), nn.Dropout(0.1)), 2),
    "batch norm": (nn.BatchNorm1d(8, dtype=torch.float64), 2),
}


@pytest.mark.parametrize(("between", "graphs"), BETWEEN.values(), ids=BETWEEN)
def test_modes_that_compute_the_same_share_a_graph(between: nn.Module, graphs: int) -> None:
    net = nn.Sequential(awake(nn.Linear(3, 8)), between, nn.ReLU(), nn.Linear(8, 2))
    program = trace(net, torch.rand(2, 3))
    assert len(program.graphs) == graphs
    assert [len(program.in_mode(mode)) for mode in ("eval", "train")] == [1, 1]
    silence(net[0], DEAD)
    for mode, stated in (("both", ("eval", "train")), ("train", ("train",)), ("eval", ("eval",))):
        analysis = nd.analyze(net, torch.rand(2, 3), mode=mode, learning=True)
        assert all(certificate.modes == stated for certificate in analysis.removable)


class Doubling(nn.Module):
    """A kernel that every pass in training mode doubles."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kernel", torch.ones(3, 1, 1, 1))
        self.bias, self.last = nn.Parameter(torch.tensor([-1.5, 1.0, 1.0])), nn.Conv2d(3, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        found = torch.relu(nn.functional.conv2d(x, self.kernel, self.bias))
        if self.training:
            self.kernel.mul_(2.0)
        return self.last(found)


def test_what_training_writes_is_not_what_eval_mode_knows() -> None:
    """Modes share what is known of kernels, but not of one that is another after each pass."""
    for mode, units in (("both", 3), ("train", 3), ("eval", 2)):
        net = Doubling()
        nd.compact_(net, torch.ones(2, 1, 3, 3), mode=mode)
        assert len(net.kernel) == units


def test_an_rms_norm_without_epsilon_is_not_bounded() -> None:
    """Squares that underflow make it return more than the square root of its width."""
    net = nn.Sequential(nn.Linear(1, 1), nn.RMSNorm(1, eps=0.0), nn.Linear(1, 3), nn.ReLU(), nn.Linear(3, 1)).float()
    with torch.no_grad():
        net[0].weight.fill_(1.0), net[0].bias.zero_(), net[2].weight.fill_(1.0)
        net[2].bias.copy_(torch.tensor([-1.1, 1.0, 1.0]))
    assert (net[:3](torch.tensor([[4.5e-23]]).float())[0, 0] > 0.1).all()
    assert not [unit for unit in nd.analyze(net, torch.rand(2, 1).float()).units if unit.status == "removed"]


def test_an_einsum_of_three_magnifies_what_underflows() -> None:
    class Three(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.b, self.c = (nn.Parameter(torch.full((1,), value)) for value in (1e-23, 1e38))
            self.layer, self.last = nn.Linear(1, 3), nn.Linear(3, 1)
            with torch.no_grad():
                self.layer.weight.fill_(1e7), self.layer.bias.copy_(torch.tensor([-1.1, 1.0, 1.0]))

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.layer(torch.einsum("bi,i,i->bi", x * 1e-22, self.b, self.c)).relu())

    found = nd.analyze(Three().float(), torch.ones(2, 1).float())
    assert not [unit for unit in found.units if unit.status == "removed"]


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("early", [False, True])
def test_a_module_that_writes_its_own_weights_is_left_alone(frozen: bool, early: bool) -> None:
    class Writing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.last = nn.Linear(1, 3), nn.Linear(3, 1)
            self.layer.weight.requires_grad_(not frozen)
            with torch.no_grad():
                self.layer.bias.fill_(-9.0)

        def forward(self, x: Tensor) -> Tensor:
            if early:
                self.write()
            found = self.layer(x).relu()
            if not early:
                self.write()
            return self.last(found)

        def write(self) -> None:
            with nullcontext() if frozen else torch.no_grad():
                self.layer.weight.mul_(2.0)

    found = nd.analyze(Writing(), torch.ones(2, 1))
    assert not [unit for unit in found.units if unit.status == "removed"]


def loose(bias: tuple[float, ...], mean: float = 0.0) -> nn.Sequential:
    """A batch norm whose units are dead for small batches, or by their running statistics."""
    made = nn.Sequential(awake(nn.Linear(3, 4)), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
    with torch.no_grad():
        made[1].bias[: len(bias)] = torch.tensor(bias)
        made[1].running_mean[3] = mean
    return made


def test_an_analysis_says_what_a_largest_batch_would_prove() -> None:
    hint = "more can go, 2 with batch_size=4 and 3 with mode='eval': in train mode the batch bounds batch norm"
    model, example = loose((-3.0, -30.0), mean=100.0), torch.rand(4, 3)
    assert hint in str(nd.analyze(model, example))
    assert hint in str(nd.compact_(model, example))
    for options in ({"batch_size": 4}, {"mode": "eval"}, {"mode": "train"}, {"evidence": "batch-proved"}):
        assert "more can go" not in str(nd.analyze(model, example, **options))
    assert nd.analyze(model, example, batch_size=4).count("removed") == 2


def test_where_a_largest_batch_would_change_nothing_there_is_no_hint() -> None:
    for model in (loose(()), loose((-9000.0,)), Net(lambda net, x: net.body(x))):
        assert "more can go" not in str(nd.analyze(model, torch.rand(4, 3)))


def test_an_analysis_names_the_domain_of_every_input() -> None:
    def use(net: Net, x: Tensor, y: Tensor, index: Tensor, z: Tensor) -> Tensor:
        return net.body(x + y + z + index[:, None])

    inputs = torch.rand(2, 3), torch.rand(2, 3), torch.zeros(2, dtype=torch.long), torch.rand(2, 3)
    box = nd.Box(torch.zeros(3), torch.tensor([1.0, 2.0, 4.5]))
    analysis = nd.analyze(Net(use), inputs, domain=[(0, 1), (0, 1), None, box])
    assert analysis.notes[-1].startswith(
        "holds for inputs in [0, 1] of shape (2, 3), (2, 3) and in (-∞, ∞) of shape (2,) and in a box within [0, 4.5] "
        "of shape (2, 3), and other batch sizes"
    )
    seen = nd.analyze(Net(use), inputs, evidence="observed", samples=inputs)
    assert seen.notes[-1] == "holds for the samples that were given, and says nothing of others"


def test_a_norm_that_averages_by_its_count_is_named_with_what_helps() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, momentum=None), nn.ReLU(), nn.Linear(4, 2))
    notes = nd.analyze(net, torch.rand(2, 3)).notes
    assert any("'1' has momentum=None and averages by its count of batches" in note for note in notes)
