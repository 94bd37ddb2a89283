"""Models that are hard on a compiler: code that reads its own sizes, state that a forward rebinds, shared tensors."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import nodedrop as nd
from nodedrop import session
from nodedrop.errors import CollapseError, InputError, NodeDropError, TraceError

from .exactness import leaves, run

Use = Callable[[Any, Tensor], Any]
ZEROS = torch.zeros(2, 3, dtype=torch.float64)
DEAD = (1, 5)


@pytest.fixture(autouse=True)
def double() -> Iterator[None]:
    """Everything in float64, from the same seed."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(before)


class Net(nn.Module):
    """Eight units of which two never fire, and `use`, which says what becomes of them."""

    def __init__(self, use: Use, **others: Any) -> None:
        super().__init__()
        self.first, self.last = awake(nn.Linear(3, 8)), nn.Linear(8, 2)
        silence(self.first, DEAD)
        self.use = use
        for name, value in others.items():
            setattr(self, name, value)

    def forward(self, x: Tensor) -> Any:
        return self.use(self, self.first(x).relu())


def awake(layer: nn.Module) -> Any:
    """Every unit fires for every input above zero."""
    with torch.no_grad():
        layer.weight.uniform_(0.1, 1.0)
        layer.bias.uniform_(0.1, 1.0)
    return layer


def silence(layer: Any, units: tuple[int, ...]) -> None:
    """These units are below zero whatever the input of the layer, so that even a part can prove it."""
    with torch.no_grad():
        layer.weight[list(units)] = 0.0
        layer.bias[list(units)] = -0.1


def fix(layer: Any, unit: int, value: float) -> None:
    """This unit has one value for all inputs."""
    with torch.no_grad():
        layer.weight[unit] = 0.0
        layer.bias[unit] = value


def state(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def assert_unchanged(model: nn.Module, before: dict[str, Tensor]) -> None:
    now = model.state_dict()
    assert list(now) == list(before)
    assert all(torch.equal(now[name], tensor) for name, tensor in before.items())


def compacted(model: nn.Module, example: Any, *others: Any, tolerance: float = 1e-12, **options: Any) -> nd.Ledger:
    """The ledger of a cut that leaves the outputs alone: in both modes, on the example and on other inputs."""
    before = copy.deepcopy(model)
    ledger = nd.compact_(model, example, **options)
    for inputs in (example, *others):
        inputs = inputs if isinstance(inputs, tuple | dict) else (inputs,)
        for mode in ("eval", "train"):
            for old, new in zip(run(before, inputs, mode), run(model, inputs, mode), strict=True):
                assert float((old - new).abs().max()) <= tolerance * float(old.abs().max())
    return ledger


def removed(ledger: nd.Ledger) -> list[tuple[str, int]]:
    return [(certificate.layer, certificate.index) for certificate in ledger.removed]


def reasons(found: nd.Ledger | nd.Analysis, layer: str) -> set[str]:
    """Why the dead units of a layer are pinned."""
    return {unit.reason for unit in found.units if unit.layer == layer and unit.index in DEAD}


def assert_pinned(ledger: nd.Ledger, *words: str, layer: str = "first") -> None:
    """Nothing was cut, and each dead unit says why, in one of these ways."""
    assert not ledger.removed
    assert ledger.parameters_before == ledger.parameters_after
    found = reasons(ledger, layer)
    assert found
    assert all(any(word in reason for word in words) for reason in found), found


GONE = [("first", unit) for unit in DEAD]


# All or nothing


def interrupted(*_: object) -> float:
    raise RuntimeError("something nobody thought of")


def test_an_exception_of_any_kind_leaves_model_and_optimizer_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    net = Net(lambda self, h: self.last(h))
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.rand(4, 3)).sum().backward()
    optimizer.step()
    silence(net.first, DEAD)
    before, parameters = state(net), list(net.parameters())
    monkeypatch.setattr(session, "compare", interrupted)
    with pytest.raises(RuntimeError, match="nobody thought of"):
        nd.compact_(net, torch.rand(4, 3), optimizer=optimizer)
    assert_unchanged(net, before)
    assert all(now is old for now, old in zip(net.parameters(), parameters, strict=True))
    assert net.first.out_features == 8
    assert all(optimizer.state[p]["exp_avg"].shape == p.shape for p in parameters)
    monkeypatch.undo()
    assert removed(compacted(net, torch.rand(4, 3), optimizer=optimizer)) == GONE


UNCUTTABLE: dict[str, tuple[Use, dict[str, tuple[int, ...]]]] = {
    "flattened outer product": (lambda self, h: (h[:, :, None] * h[:, None, :]).flatten(1).sum(1), {}),
    "expanded weight": (lambda self, h: self.last(F.linear(h, self.row.expand(8, 8)).relu()), {"row": (1, 8)}),
    "expanded slice": (
        lambda self, h: self.last(F.linear(h, self.rows[:1].expand(8, 8), self.one.expand(8)).relu()),
        {"rows": (4, 8), "one": (1,)},
    ),
}


@pytest.mark.parametrize("name", UNCUTTABLE)
def test_what_cannot_follow_a_cut_is_left_alone(name: str) -> None:
    use, shapes = UNCUTTABLE[name]
    net = Net(use, **{key: nn.Parameter(torch.rand(shape)) for key, shape in shapes.items()})
    before = state(net)
    ledger = compacted(net, torch.rand(2, 3), torch.rand(5, 3))
    if not ledger.removed:
        assert_unchanged(net, before)
        assert all(reasons(ledger, "first"))


# State that a forward pass changes


class Averaging(nn.Module):
    """Rebinds a buffer in train mode, and reads how many units there are."""

    def __init__(self, divisor: Callable[[Tensor], float]) -> None:
        super().__init__()
        self.first, self.last, self.divisor = awake(nn.Linear(3, 8)), nn.Linear(8, 2), divisor
        silence(self.first, DEAD)
        self.register_buffer("mean", torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x).relu()
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * h.detach().mean(0)
        return self.last(h + self.mean) / self.divisor(self.mean)


def test_a_buffer_that_forward_rebinds_survives_a_rollback() -> None:
    net = Averaging(lambda mean: mean.shape[0])
    before = state(net)
    compacted(net, ZEROS, torch.rand(5, 3))
    assert_unchanged(net, before)
    net.train()(torch.rand(5, 3))
    assert net.mean.shape == (8,)


def test_a_buffer_that_forward_rebinds_is_cut_with_its_units() -> None:
    net = Net(lambda self, h: self.last(h * self.gain), gain=None)
    del net.gain
    net.register_buffer("gain", torch.rand(8))
    net.use = lambda self, h: (setattr(self, "gain", self.gain * 1.0), self.last(h * self.gain))[1]
    assert removed(compacted(net, torch.rand(2, 3), torch.rand(5, 3))) == GONE
    assert net.gain.shape == (6,)
    net.train()(torch.rand(5, 3))


class Cached(nn.Module):
    """Builds a table of positions on its first pass."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = awake(nn.Linear(3, 8)), nn.Linear(8, 2)
        silence(self.first, DEAD)
        self.register_buffer("pos", None, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.pos is None:
            self.pos = torch.zeros(x.shape[1], 1)
        return self.last(self.first(x + self.pos).relu())


def test_a_cache_that_forward_builds_is_neither_kept_nor_in_the_way() -> None:
    net = Cached()
    assert removed(compacted(net, torch.rand(2, 5, 3), torch.rand(4, 5, 3))) == GONE
    assert net.pos is None
    assert net(torch.rand(4, 7, 3)).shape == (4, 7, 2)


def test_an_embedding_that_renormalises_itself_is_not_renormalised() -> None:
    table = nn.Embedding(10, 4, max_norm=1.0)
    net = nn.Sequential(table, awake(nn.Linear(4, 8)), nn.ReLU(), nn.Linear(8, 2))
    silence(net[1], DEAD)
    before = table.weight.detach().clone()
    assert (before.norm(dim=1) > 1.0).any()
    nd.analyze(net, torch.arange(10))
    assert torch.equal(table.weight, before)
    assert removed(nd.compact_(net, torch.arange(10))) == [("1", unit) for unit in DEAD]
    assert torch.equal(table.weight, before)


# Code that reads its own sizes. The example is all zeros, where much of the damage would not show.

SIZES: dict[str, Use] = {
    "divided by the width": lambda self, h: self.last(h) / h.shape[1],
    "divided by the layer's width": lambda self, h: self.last(h) * self.first.out_features,
    "split(4)": lambda self, h: torch.stack([part.sum(1) for part in h.split(4, 1)], 1),
    "first half": lambda self, h: h[:, : h.shape[1] // 2].sum(1),
    "mean written as a sum": lambda self, h: (h - h.sum(1, keepdim=True) / h.shape[1]).pow(2).sum(1),
    "as many outputs as units": lambda self, h: [self.last(h) * k for k in range(h.shape[1])],
}
OWN_CODE = ("own code", "split", "position", "slice")


@pytest.mark.parametrize("name", SIZES)
def test_code_that_reads_its_own_sizes_is_caught(name: str) -> None:
    net = Net(SIZES[name])
    with torch.no_grad():
        net.last.bias.zero_()
        net.first.bias.zero_()
        net.first.bias[list(DEAD)] = -0.1
    before = state(net)
    assert_pinned(compacted(net, ZEROS, torch.rand(5, 3)), *OWN_CODE)
    assert_unchanged(net, before)


class Attention(nn.Module):
    """Scaled by the width of the queries; at zero the scale is without effect."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.key, self.value = (nn.Linear(6, 8, bias=bias) for bias in (True, False, False))
        self.last = nn.Linear(8, 6)
        silence(awake(self.first), DEAD)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.first(x).relu(), self.key(x), self.value(x)
        scores = q @ k.transpose(1, 2) * q.size(-1) ** -0.5
        return self.last(scores.softmax(-1) @ v)


@pytest.mark.parametrize("length", [1, 5])
def test_an_attention_scale_read_from_the_queries_is_caught(length: int) -> None:
    net = Attention()
    before = state(net)
    assert_pinned(compacted(net, torch.zeros(2, length, 6), torch.rand(3, 7, 6)), *OWN_CODE)
    assert_unchanged(net, before)


@pytest.mark.parametrize("example", [torch.full((2, 3), float("nan")), torch.full((2, 3), float("inf")), ZEROS[:0]])
def test_an_example_that_shows_nothing_is_refused(example: Tensor) -> None:
    net = Net(lambda self, h: self.last(h) / h.shape[1])
    for call in (nd.analyze, nd.compact_):
        with pytest.raises(InputError, match="empty, NaN or infinite"):
            call(net, example.double())


# Outputs of any kind are compared


@dataclass
class Output:
    """What many libraries return."""

    logits: Tensor


class Wrapped(nn.Module):
    """A traceable part, and code around it that is not: it reads the part's width."""

    def __init__(self, wrap: Callable[[Tensor], Any], *, reads_width: bool) -> None:
        super().__init__()
        self.body = nn.Sequential(awake(nn.Linear(3, 8)), nn.ReLU(), nn.Linear(8, 2))
        silence(self.body[0], DEAD)
        self.wrap, self.reads_width = wrap, reads_width

    def forward(self, x: Tensor) -> Any:
        y = self.body(x)
        return self.wrap(y / self.body[0].out_features if self.reads_width else y)


WRAPS: dict[str, Callable[[Tensor], Any]] = {
    "dataclass": Output,
    "dataclass in a list": lambda y: [Output(y)],
    "integer": lambda y: (y * 1000).long() if y.sum() < 1e9 else y,
}


@pytest.mark.parametrize("name", WRAPS)
def test_outputs_of_any_kind_are_compared(name: str) -> None:
    net = Wrapped(WRAPS[name], reads_width=True)
    before = state(net)
    assert_pinned(nd.compact_(net, torch.rand(4, 3), parts=True), "an output", layer="body.0")
    assert_unchanged(net, before)
    free = Wrapped(WRAPS[name], reads_width=False)
    assert len(nd.compact_(free, torch.rand(4, 3), parts=True).removed) == len(DEAD)


def test_labels_alone_are_compared_too() -> None:
    net = Net(lambda self, h: (self.last(h) / h.shape[1] + self.prior).argmax(-1), prior=nn.Parameter(torch.rand(2)))
    old, x = copy.deepcopy(net), torch.rand(200, 3)
    assert_pinned(nd.compact_(net, x[:4]), "own code")
    assert torch.equal(net(x), old(x))


# Movements of units


class Shuffled(nn.Module):
    def __init__(self, units: tuple[int, ...]) -> None:
        super().__init__()
        self.first, self.shuffle, self.last = awake(nn.Conv2d(3, 8, 1)), nn.ChannelShuffle(2), nn.Conv2d(8, 2, 1)
        silence(self.first, units)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.shuffle(self.first(x).relu()))


@pytest.mark.parametrize(("units", "gone"), [((1, 5), 2), ((1, 6), 0), ((1,), 0), ((0, 1, 2, 3), 0)])
def test_a_channel_shuffle_gives_up_the_same_place_of_every_group_or_nothing(units: tuple[int, ...], gone: int) -> None:
    ledger = compacted(Shuffled(units), torch.zeros(2, 3, 4, 4), torch.rand(3, 3, 4, 4))
    assert len(ledger.removed) == gone


NEUTRAL: dict[str, Use] = {
    "to(dtype)": lambda self, h: self.last(h.to(self.last.weight.dtype)),
    "float()": lambda self, h: self.last(h.float().double()),
    "double()": lambda self, h: self.last(h.double()),
    "Dropout2d": lambda self, h: self.last(self.drop(h[:, :, None, None]).flatten(1)),
}


@pytest.mark.parametrize("name", NEUTRAL)
def test_casts_and_dropout_of_whole_units_pin_nothing(name: str) -> None:
    ledger = compacted(Net(NEUTRAL[name], drop=nn.Dropout2d(0.3)), torch.rand(2, 3), torch.rand(5, 3))
    assert removed(ledger) == GONE


class FromTheLeft(nn.Module):
    """Bare parameters times columns of data."""

    def __init__(self, dead: tuple[int, ...]) -> None:
        super().__init__()
        self.inner, self.outer = nn.Parameter(torch.rand(4, 3)), nn.Parameter(torch.rand(2, 4))
        with torch.no_grad():
            self.inner[list(dead)] *= -1.0

    def forward(self, x: Tensor) -> Tensor:
        return self.outer @ (self.inner @ x).relu()


def test_a_bare_weight_from_the_left_is_a_layer() -> None:
    ledger = compacted(FromTheLeft((1,)), torch.rand(3, 5), torch.rand(3, 5))
    assert {account.layer: len(account.units) for account in ledger.analysis.accounts} == {"inner": 4, "outer": 2}
    assert removed(ledger) == [("inner", 1)]


def test_a_bare_weight_is_not_emptied() -> None:
    net = FromTheLeft((0, 1, 2, 3))
    before = state(net)
    with pytest.raises(CollapseError, match="'inner'"):
        nd.compact_(net, torch.rand(3, 5))
    assert_unchanged(net, before)
    compacted(net, torch.rand(3, 5), on_collapse="keep")
    assert net.inner.shape == (1, 3)


# Constants


class SharedBias(nn.Module):
    """A constant unit whose reader's bias is read elsewhere as well, where the gate is open."""

    def __init__(self, gated: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.last, self.other = awake(nn.Linear(3, 8)), nn.Linear(8, 2), nn.Linear(3, 2)
        self.other.bias = self.last.bias
        fix(self.first, 2, 0.7)
        self.gated = gated

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        return self.last(self.first(x).relu()) + gate * self.gated(self, x)


@pytest.mark.parametrize(
    ("gated", "gone"),
    [
        (lambda self, x: self.other(x), []),
        (lambda self, x: self.last.bias, []),
        (lambda self, x: F.linear(x, self.other.weight), [("first", 2)]),
    ],
    ids=["a tied bias", "the bias itself", "no other reader"],
)
def test_a_constant_is_not_folded_into_a_bias_that_something_else_reads(
    gated: Callable[[Any, Tensor], Tensor], gone: list[tuple[str, int]]
) -> None:
    shut, opened = torch.zeros(2, 1), torch.rand(5, 1)
    assert removed(compacted(SharedBias(gated), (ZEROS, shut), (torch.rand(5, 3), opened))) == gone


class AlmostConstant(nn.Module):
    """A unit whose value differs by 1e-7 between positions or modes, in front of a large weight."""

    def __init__(self, *, by: str, scale: float) -> None:
        super().__init__()
        self.first, self.last = awake(nn.Linear(3, 8)), nn.Linear(8, 2)
        self.pos = nn.Parameter(torch.zeros(5, 8))
        self.shift = 1e-7 if by == "mode" else 0.0
        fix(self.first, 2, 1.0)
        with torch.no_grad():
            self.last.weight[:, 2], self.last.bias[:] = scale, -scale
            if by == "position":
                self.pos[:, 2] = 1e-7 * torch.arange(5)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x) + self.pos
        return self.last((h + self.shift if self.training else h).relu())


@pytest.mark.parametrize("by", ["position", "mode"])
@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_a_value_that_differs_a_little_by_position_or_mode_is_no_constant(by: str, scale: float) -> None:
    example, others = torch.rand(2, 5, 3), torch.rand(9, 5, 3)
    assert not compacted(AlmostConstant(by=by, scale=scale), example, others).removed
    single = AlmostConstant(by=by, scale=scale).float()
    compacted(single, example.float(), others.float(), tolerance=1e-5)


# Models that are no single graph


class Branching(nn.Module):
    """Looks into its part on the branch that the example does not take."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(awake(nn.Linear(3, 8)), nn.ReLU(), nn.Linear(8, 2))
        silence(self.body[0], DEAD)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x) if x.mean() > 0.5 else self.body[1](self.body[0](x))


def test_a_model_traced_in_parts_is_pinned_unless_it_is_allowed() -> None:
    net = Branching()
    other = net(ZEROS)
    assert_pinned(compacted(net, torch.ones(2, 3), ZEROS), "parts=True", layer="body.0")
    assert torch.equal(net(ZEROS), other)
    assert len(nd.compact_(net, torch.ones(2, 3), parts=True).removed) == len(DEAD)


class StochasticDepth(nn.Module):
    def __init__(self, body: nn.Module | None = None) -> None:
        super().__init__()
        self.body, self.weight = body, nn.Parameter(torch.rand(3, 3))

    def forward(self, x: Tensor) -> Tensor:
        if not (self.training and random.random() < 0.5):
            x = x + (self.body(x) if self.body is not None else (x @ self.weight).relu())
        return x @ self.weight


def test_depth_drawn_from_python_random_is_refused_whatever_is_drawn() -> None:
    for seed in range(3):
        random.seed(seed)
        drawn = random.getstate()
        with pytest.raises(TraceError, match=r"draws from Python's `random`[^\n]*$"):
            nd.compact_(StochasticDepth(), torch.rand(2, 3))
        assert random.getstate() == drawn


def test_parts_under_python_random_are_pinned_with_the_sentence() -> None:
    body = nn.Sequential(awake(nn.Linear(3, 8)), nn.ReLU(), nn.Linear(8, 3))
    silence(body[0], DEAD)
    ledger = nd.compact_(StochasticDepth(body), torch.rand(2, 3))
    assert_pinned(ledger, "parts=True", layer="body.0")
    assert any("draws from Python's `random`" in note for note in ledger.analysis.notes)


# One sentence


class Float8(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(8, 3).to(torch.float8_e4m3fn), requires_grad=False)
        self.last = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.linear(x, self.weight.double()).relu())


def assert_one_sentence(error: NodeDropError, *words: str) -> None:
    message = str(error)
    assert "\n" not in message
    assert all(word in message for word in words), message


def test_a_lazy_layer_and_a_type_without_arithmetic_are_named() -> None:
    with pytest.warns(UserWarning, match="Lazy"):
        lazy = nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.Linear(8, 2))
    for net, words in ((lazy, ("'0.weight'", "lazy")), (Float8(), ("'weight'", "float8"))):
        for call in (nd.analyze, nd.compact_):
            with pytest.raises(InputError) as caught:
                call(net, torch.rand(2, 3))
            assert_one_sentence(caught.value, *words)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch_size": "x"}, ("batch_size", "'x'")),
        ({"batch_size": 2.5}, ("batch_size", "2.5")),
        ({"dtype": "float16"}, ("dtype", "torch.dtype", "'float16'")),
        ({"optimizer": 3}, ("optimizer", "int")),
        ({"domain": nd.Box("a", 1)}, ("domain", "'a'", "not a number")),  # type: ignore[arg-type]
        ({"domain": (None, 1)}, ("domain", "None")),
        ({"domain": 5}, ("domain", "5")),
    ],
)
def test_an_option_of_the_wrong_kind_is_named(options: dict[str, Any], words: tuple[str, ...]) -> None:
    net = Net(lambda self, h: self.last(h))
    before = state(net)
    with pytest.raises(InputError) as caught:
        nd.compact_(net, torch.rand(2, 3), **options)
    assert_one_sentence(caught.value, *words)
    assert_unchanged(net, before)


@pytest.mark.parametrize("order", [torch.argsort, torch.sort, lambda h: h.topk(2), lambda h: h.argmax()])
def test_an_order_of_the_units_pins_them(order: Callable[[Tensor], Any]) -> None:
    net = Net(lambda self, h: (self.last(h), *leaves(order(h))))
    assert_pinned(compacted(net, torch.rand(2, 3), torch.rand(5, 3)), "argsort", "sort", "topk", "argmax")


# Inputs


def test_pixels_as_bytes_have_a_domain() -> None:
    class Pixels(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = awake(nn.Linear(3, 8)), nn.Linear(8, 2)
            with torch.no_grad():
                self.first.weight[1], self.first.bias[1] = 1.0, -3.01

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.first(x.double() / 255).relu())

    example, brightest = torch.randint(0, 256, (4, 3), dtype=torch.uint8), torch.full((2, 3), 255, dtype=torch.uint8)
    for domain in ((0, 255), [(0, 255)]):
        assert removed(compacted(Pixels(), example, brightest, domain=domain)) == [("first", 1)]
    assert not compacted(Pixels(), example, brightest, domain=None).removed


# Every unit once


def accounted(model: nn.Module, example: Tensor) -> dict[str, int]:
    """Units per layer; every one of them once."""
    analysis = nd.analyze(model, example)
    pairs = [(unit.layer, unit.index) for unit in analysis.units]
    assert len(set(pairs)) == len(pairs)
    return {account.layer: len(account.units) for account in analysis.accounts}


def test_tied_weights_are_accounted_for_once() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    net[2].weight = net[0].weight
    assert accounted(net, torch.rand(2, 4)) == {"0": 4, "4": 2}


def test_a_weight_read_from_both_sides_has_units_on_both() -> None:
    net = Net(lambda self, h: F.linear(h, self.first.weight.t()))
    assert sorted(accounted(net, torch.rand(2, 3)).values()) == [3, 8]
    assert removed(compacted(net, torch.rand(2, 3), torch.rand(5, 3))) == GONE


def test_packed_projections_are_accounted_for_once() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
    silence(layer.linear1, DEAD)
    assert accounted(layer, torch.rand(2, 5, 8)) == {
        "self_attn.in_proj_weight": 24,
        "self_attn.out_proj": 8,
        "linear1": 16,
        "linear2": 8,
    }
    assert set(removed(compacted(layer, torch.rand(2, 5, 8), torch.rand(3, 5, 8)))) >= {("linear1", u) for u in DEAD}


# Batch norm over rows that were folded into the batch


class Folded(nn.Module):
    """B samples of T rows are B·T rows to the batch norm, whose values stay below √(B·T - 1)."""

    def __init__(self, bias: float) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)
        with torch.no_grad():
            self.norm.bias.fill_(9.0)
            self.norm.bias[1] = bias

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        return self.last(self.norm(self.first(x).view(batch * length, -1)).relu()).view(batch, length, -1)


@pytest.mark.parametrize(
    ("batch_size", "bias", "gone"), [(2, -3.2, 0), (2, -3.4, 1), (4, -4.7, 0), (4, -4.9, 1), (None, -50.0, 0)]
)
def test_a_declared_batch_counts_the_rows_folded_into_it(batch_size: int | None, bias: float, gone: int) -> None:
    """√11 ≈ 3.32 bounds two samples of six rows, √23 ≈ 4.80 bounds four; without a declared batch there is no bound."""
    net = Folded(bias)
    old, spikes = copy.deepcopy(net), torch.zeros(2, batch_size or 2, 6, 3)
    spikes[0, 0, 0], spikes[1], spikes[1, 0, 0] = 1.0, 1.0, 0.0
    ledger = nd.compact_(net, torch.rand(2, 6, 3), mode="train", batch_size=batch_size)
    assert len(ledger.removed) == gone
    for spike in spikes:
        torch.testing.assert_close(net.train()(spike), old.train()(spike), rtol=0, atol=1e-12)
