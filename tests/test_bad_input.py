"""Bad input gets one clear sentence, and the model stays as it was."""

import copy

import pytest
import torch
from torch import Tensor, nn

import nodedrop as nd
from nodedrop.errors import CollapseError, InputError, TraceError


def small() -> nn.Sequential:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    with torch.no_grad():
        net[0].bias.uniform_(0.1, 1.0)
        net[0].bias[2] = -10.0
    return net


def refused(model: nn.Module, example: object, error: type[Exception], *words: str, **options: object) -> None:
    """Both calls refuse with a single sentence that holds these words, and change nothing."""
    before = {k: v.clone() for k, v in model.state_dict().items()} if isinstance(model, nn.Module) else {}
    for call in (nd.analyze, nd.compact_):
        with pytest.raises(error) as caught:
            call(model, example, **options)  # type: ignore[operator]
        message = str(caught.value)
        assert "\n" not in message
        for word in words:
            assert word in message
    for name, tensor in before.items():
        now = model.state_dict()[name]
        assert now.is_meta or torch.equal(tensor.nan_to_num(), now.nan_to_num())


EXAMPLE = torch.full((2, 4), 0.5)


@pytest.mark.parametrize(
    ("example", "words"),
    [
        (torch.rand(2, 5), ["does not run", "(2, 5)"]),
        (torch.zeros(2, 4, dtype=torch.long), ["does not run"]),
        ("images", ["tensor", "str"]),
        (None, ["NoneType"]),
    ],
)
def test_example_of_wrong_shape_or_type(example: object, words: list[str]) -> None:
    refused(small(), example, InputError, *words)


@pytest.mark.parametrize(
    ("domain", "words"),
    [
        ((1.0, 0.0), ["lo > hi"]),
        ((float("nan"), 1.0), ["NaN"]),
        ((0.0, 1.0, 2.0), ["must be (lo, hi)"]),
        ((torch.zeros(3), torch.ones(3)), ["(3,)", "does not fit"]),
        ([(0.0, 1.0), (0.0, 1.0)], ["2 entries", "1 tensor inputs"]),
        ({"y": (0.0, 1.0)}, ["'y'", "'input'"]),
        ("unit", ["must be (lo, hi)"]),
        ((0.6, 1.0), ["outside the declared domain [0.6, 1]", "domain=(0.5, 0.5) holds"]),
    ],
)
def test_domain(domain: object, words: list[str]) -> None:
    refused(small(), EXAMPLE, InputError, *words, domain=domain)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_numbers(value: float) -> None:
    net = small()
    with torch.no_grad():
        net[2].weight[0, 0] = value
    refused(net, EXAMPLE, InputError, "'2.weight'", "NaN or infinite")


def test_meta_model() -> None:
    with torch.device("meta"):
        net = nn.Linear(4, 2)
    refused(net, EXAMPLE, InputError, "meta")


def test_scripted_and_frozen_model() -> None:
    with pytest.warns(DeprecationWarning, match="jit"):
        frozen = torch.jit.freeze(torch.jit.trace(small().eval(), EXAMPLE))
    refused(frozen, EXAMPLE, InputError, "TorchScript", "original nn.Module")


def test_model_without_gradients_is_cut_like_any_other() -> None:
    net = small().requires_grad_(False)
    assert len(nd.compact_(net, EXAMPLE).removed) == 1
    assert not net[0].weight.requires_grad


def test_not_a_module_and_no_parameters() -> None:
    refused(lambda x: x, EXAMPLE, InputError, "nn.Module")  # type: ignore[arg-type]
    refused(nn.ReLU(), EXAMPLE, InputError, "no parameters")


def test_wrapped_model() -> None:
    refused(nn.DataParallel(small()), EXAMPLE, InputError, "model.module")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"evidence": "guessed"}, ["evidence"]),
        ({"evidence": "observed"}, ["samples="]),
        ({"mode": "test"}, ["mode"]),
        ({"batch_size": 0}, ["batch_size"]),
        ({"lam": 1.0}, ["'lam'"]),
    ],
)
def test_options(options: dict[str, object], words: list[str]) -> None:
    refused(small(), EXAMPLE, InputError, *words, **options)


class Branching(nn.Module):
    """Takes another path when the data says so: not a graph, but its parts are."""

    def __init__(self) -> None:
        super().__init__()
        self.body = small()
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x)
        return y * self.scale if y.sum() > 0 else -y


def test_a_model_that_cannot_be_traced_is_cut_in_its_parts() -> None:
    net = Branching()
    with torch.no_grad():
        net.body[0].weight[2] = 0.0  # the input of a part is unbounded, so only the weights can tell
    cautious = nd.analyze(net, EXAMPLE)
    assert cautious.count("removed") == 0
    assert all("parts=True" in unit.reason for unit in cautious.units if unit.layer == "body.0")
    found = nd.analyze(net, EXAMPLE, parts=True)
    assert [(c.layer, c.index) for c in found.removable] == [("body.0", 2)]
    assert any("'body'" in note and "test_bad_input.py" in note for note in found.notes)
    before = net(EXAMPLE)
    nd.compact_(net, EXAMPLE, parts=True)
    torch.testing.assert_close(net(EXAMPLE), before)


class Hopeless(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight if x.sum() > 0 else x


def test_a_model_without_traceable_part_says_where_and_what_to_do() -> None:
    refused(Hopeless(), EXAMPLE, TraceError, "test_bad_input.py", "branches")


class Unknown(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.special.bessel_j0(self.first(x).relu()))


def test_an_operator_without_a_rule_pins_and_is_named_with_its_line() -> None:
    net = Unknown()
    with torch.no_grad():
        net.first.bias[1] = -10.0
    found = nd.analyze(net, EXAMPLE)
    assert found.count("removed") == 0
    reasons = {unit.reason for unit in found.units if unit.layer == "first"}
    assert len(reasons) == 1
    (reason,) = reasons
    assert "bessel_j0" in reason
    assert "test_bad_input.py:" in reason
    assert any("bessel_j0" in note for note in found.notes)


def test_nothing_to_remove_says_why_for_every_layer() -> None:
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.GELU(), nn.Linear(5, 3))
    nn.init.ones_(net[0].bias)
    text = str(nd.compact_(net, EXAMPLE))
    assert "nothing can go" in text
    assert "6 can still fire, the nearest has an upper bound of" in text
    assert "5 pinned: GELU has no zero region" in text
    assert "3 pinned: network output" in text


def test_a_cut_that_would_empty_a_layer_is_refused() -> None:
    net = small()
    with torch.no_grad():
        net[0].bias.fill_(-10.0)
    before = copy.deepcopy(net.state_dict())
    with pytest.raises(CollapseError, match=r"'0'.*unchanged"):
        nd.compact_(net, EXAMPLE)
    assert all(torch.equal(before[k], v) for k, v in net.state_dict().items())
    output = net(EXAMPLE)
    nd.compact_(net, EXAMPLE, on_collapse="keep")
    assert net[0].out_features == 1
    torch.testing.assert_close(net(EXAMPLE), output)


class FixedWidth(nn.Module):
    """A size written into the code: the cut fails its check, is pinned with the reason, and rolled back."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.free = nn.Linear(4, 6), nn.Linear(6, 5), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).relu().view(-1, 6)
        return self.free(self.second(x).relu())


def test_a_size_in_the_models_code_pins_only_what_it_touches() -> None:
    net = FixedWidth()
    with torch.no_grad():
        net.first.bias.fill_(1.0)
        net.first.bias[[1, 4]] = -10.0
        net.second.bias.fill_(10.0)
        net.second.weight[2] = 0.0
        net.second.bias[2] = -1.0
    ledger = nd.compact_(net, EXAMPLE)
    assert [(c.layer, c.index) for c in ledger.removed] == [("second", 2)]
    pinned = {unit.reason for unit in ledger.units if unit.layer == "first" and unit.index in (1, 4)}
    assert pinned
    assert all("own code" in reason for reason in pinned)
    assert net.first.out_features == 6


def test_an_optimizer_of_another_model() -> None:
    net = small()
    with pytest.raises(InputError, match="holds none of the model's parameters"):
        nd.compact_(net, EXAMPLE, optimizer=torch.optim.SGD(small().parameters(), 0.1))
    with pytest.raises(InputError, match="Optimizer"):
        nd.compact_(net, EXAMPLE, optimizer="adam")  # type: ignore[arg-type]


@pytest.mark.parametrize("state", [torch.ones(3), [torch.eye(6), torch.eye(4)], {"Q": (None, torch.eye(6))}])
def test_optimizer_state_that_cannot_be_carried_is_refused_and_nothing_changes(state: object) -> None:
    net = small()
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    net(EXAMPLE).sum().backward()
    optimizer.step()
    optimizer.state[net[0].weight]["factored"] = state
    before = copy.deepcopy(net.state_dict())
    with torch.no_grad():
        net[0].bias[2] = -10.0
        before["0.bias"][2] = -10.0
    with pytest.raises(InputError, match=r"SGD keeps 'factored'"):
        nd.compact_(net, EXAMPLE, optimizer=optimizer)
    assert all(torch.equal(before[k], v) for k, v in net.state_dict().items())
    assert optimizer.state[net[0].weight]["momentum_buffer"].shape == (6, 4)


def test_optimizer_state_in_lists_and_dicts_is_carried_along() -> None:
    net = small()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with torch.no_grad():
        net[0].bias[2] = -10.0
    own = torch.arange(24.0).reshape(6, 4)
    optimizer.state[net[0].weight] = {"history": [own, {"older": own + 1, "step": torch.tensor(3.0), "kind": "z"}]}
    nd.compact_(net, EXAMPLE, optimizer=optimizer)
    last, rest = optimizer.state[net[0].weight]["history"]
    kept = [k for k in range(6) if k != 2]
    assert torch.equal(last, own[kept])
    assert torch.equal(rest["older"], own[kept] + 1)
    assert (rest["step"], rest["kind"]) == (3.0, "z")


def test_nested_inputs_must_lie_in_the_domain_too() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))

        def forward(self, pair: list[torch.Tensor]) -> torch.Tensor:
            return self.body(pair[0]) + self.body(pair[1])

    with pytest.raises(InputError, match=r"has values from 2 to 2, outside the default domain \[0, 1\]"):
        nd.analyze(Both(), ([torch.rand(2, 3), torch.full((2, 3), 2.0)],))
    assert nd.analyze(Both(), ([torch.rand(2, 3), torch.rand(2, 3)],)).units


def test_an_optimizer_with_state_of_other_shapes_is_refused() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))
    with pytest.raises(InputError, match="LBFGS keeps state"):
        nd.compact_(net, torch.rand(2, 3), optimizer=torch.optim.LBFGS(net.parameters()))


@pytest.mark.parametrize(
    ("example", "words"),
    [
        (torch.tensor([[-2.13, 0.0, 1.0, 2.41]]), ["from -2.13 to 2.41", "domain=(-2.2, 2.5) holds"]),
        (torch.tensor([[0.0, 1.0, 1.0, 180.0]]), ["domain=(0, 180) holds"]),
        (torch.tensor([[0.0, 0.0, 0.0, -0.00314]]), ["domain=(-0.0032, 0) holds"]),
    ],
)
def test_the_domain_that_an_example_needs_is_named(example: Tensor, words: list[str]) -> None:
    refused(small(), example, InputError, "outside the default domain [0, 1]", *words)
    refused(small(), torch.zeros(1, 4), InputError, "declared domain [1, 2]", "domain=(0, 0)", domain=(1, 2))


class Pixels(nn.Module):
    """Takes bytes as they are; unit 2 fires for bright pixels, not for numbers in [0, 1]."""

    def __init__(self) -> None:
        super().__init__()
        self.body = small()

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.body(x.float())
        return found


def test_whole_numbers_must_lie_in_their_domain_too() -> None:
    bright = torch.tensor([[0, 9, 180, 1]])
    refused(Pixels(), bright.byte(), InputError, "default domain [0, 1]", "domain=(0, 255) holds")
    refused(Pixels(), bright, InputError, "from 0 to 180", "declared domain [0, 99]", domain=[(0, 99)])
    assert nd.analyze(Pixels(), bright).count("removed") == 0  # indices have no domain, and anything can fire


@pytest.mark.parametrize("samples", [torch.rand(8, 5), (torch.rand(8, 4), torch.rand(8, 4)), [], torch.rand(0, 4)])
def test_samples_that_are_not_like_the_example_are_refused(samples: object) -> None:
    refused(small(), EXAMPLE, InputError, "[(2, 4)] with any number of rows", evidence="observed", samples=samples)


def test_a_misspelt_option_is_named_with_the_nearest() -> None:
    refused(small(), EXAMPLE, InputError, "'domian', did you mean domain=? there are domain, evid", domian=(0, 1))
    refused(small(), EXAMPLE, InputError, "'zzz'; there are domain, evidence", zzz=1)
