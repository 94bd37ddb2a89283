"""The paper's networks: its counts of nodes and parameters, and graphs that the analysis knows wholly."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn

import nodedrop as nd
from nodedrop.errors import InputError
from nodedrop.experiments.networks import ACTIVATIONS, NETWORKS, build

SMALL = {"mnist-dense160": 0.5, "vgg16": 0.125, "densenet40": 0.25, "densenet40-active": 0.25}
"""One network of each kind, with a width that is enough for tests."""


def parameters(net: nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())


def example(net: nn.Module, size: int = 32) -> torch.Tensor:
    channels = next(m.in_channels for m in net.modules() if isinstance(m, nn.Conv2d))
    return torch.rand(2, channels, 28 if channels == 1 else size, 28 if channels == 1 else size)


def nodes(net: nn.Module) -> int:
    """Units that meet an activation, as the analysis counts them."""
    analysis = nd.analyze(net, example(net))
    return sum(len(account.units) for account in analysis.accounts if account.activation)


@pytest.mark.parametrize(
    ("name", "options", "count"),
    [
        ("mnist-dense160", {}, 49_850),
        ("mnist-dense640", {}, 786_122),
        ("vgg16", {}, 14_982_474),
        ("vgg16", {"batch_norm": True, "classes": 100}, 15_038_116),
    ],
)
def test_parameters_are_those_of_the_paper(name: str, options: dict[str, Any], count: int) -> None:
    assert parameters(build(name, **options)) == count


@pytest.mark.parametrize("batch_norm", [False, True])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_pooling_before_the_activation_is_the_paper_s_network(activation: str, batch_norm: bool) -> None:
    """Activations that come first, as in the paper, give the same values and, but for ties, the same gradients."""
    torch.manual_seed(0)
    net = build("mnist-dense160", activation=activation, batch_norm=batch_norm, width=0.5)
    parts = dict(net.named_children())
    for before, after in pairwise(list(parts)):
        if before.startswith("pool"):
            parts[before], parts[after] = parts[after], parts[before]
    assert [type(part) for part in parts.values()] != [type(part) for part in net]
    images, found = torch.rand(8, 1, 28, 28), []
    for model in (net, nn.Sequential(*parts.values())):
        out = model(images)
        grads = torch.autograd.grad(nn.functional.cross_entropy(out, torch.arange(8)), list(net.parameters()))
        found.append((out, *grads))
    (ours, *our_grads), (theirs, *their_grads) = found
    assert torch.equal(ours, theirs)
    torch.testing.assert_close(our_grads, their_grads, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("batch_norm", [False, True])
def test_densenet_has_the_weights_of_the_paper_beside_norms_and_biases(batch_norm: bool) -> None:
    net = build("densenet40", batch_norm=batch_norm)
    weights = sum(p.numel() for p in net.parameters() if p.dim() > 1)
    assert weights + net.head.bias.numel() == 1_040_578


@pytest.mark.parametrize("name", [name for name in NETWORKS if name.startswith("mnist")])
def test_mnist_networks_are_named_by_their_nodes(name: str) -> None:
    assert nodes(build(name)) == int(name.removeprefix("mnist-dense"))


@pytest.mark.parametrize(
    ("name", "options", "count"),
    [
        ("vgg16", {}, 4736),
        ("vgg16", {"width": 0.25}, 1184),
        ("densenet40", {}, 456),
        ("densenet40-active", {}, 456 + 168 + 312),
    ],
)
def test_nodes_are_those_of_the_paper(name: str, options: dict[str, Any], count: int) -> None:
    assert nodes(build(name, **options)) == count


@pytest.mark.parametrize("batch_norm", [False, True])
@pytest.mark.parametrize("name", SMALL)
def test_the_analysis_knows_every_operator(name: str, batch_norm: bool) -> None:
    net = build(name, width=SMALL[name], batch_norm=batch_norm)
    analysis = nd.analyze(net, example(net))
    reasons = {reason for account in analysis.accounts for reason in account.reasons}
    linear = {"no activation with a zero region follows"} if name == "densenet40" else set()
    assert reasons == {"network output"} | linear


@pytest.mark.parametrize("name", SMALL)
def test_dead_units_go_without_a_trace(name: str) -> None:
    net = build(name, width=SMALL[name])
    layers = [(path, m) for path, m in net.named_modules() if isinstance(m, nn.Conv2d | nn.Linear)][:2]
    with torch.no_grad():
        for _, layer in layers:
            layer.bias[0] = -layer.weight[0].clamp(min=0).sum() - 0.1
    x = example(net)
    before = net(x)
    ledger = nd.compact_(net, x)
    assert {(path, 0) for path, _ in layers} <= {(gone.layer, gone.index) for gone in ledger.removed}
    assert torch.allclose(net(x), before, rtol=1e-5, atol=1e-6)


def test_without_batch_norm_the_activation_is_the_papers_and_with_it_relu() -> None:
    assert isinstance(build("vgg16", width=0.1).conv1_act, nd.SoftClampedReLU)
    assert isinstance(build("vgg16", width=0.1, batch_norm=True).conv1_act, nn.ReLU)
    assert isinstance(build("densenet40", width=0.1).block1_1.new.conv_act, nd.SoftClampedReLU)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("name", ["mnist-dense160", "vgg16", "densenet40"])
def test_every_activation_can_be_had(name: str, activation: str) -> None:
    net = build(name, activation=activation, width=0.1)
    kinds = {type(m) for m in net.modules()} & {nd.SoftClampedReLU, nd.ClampedReLU, nn.ReLU}
    assert kinds == {type(ACTIVATIONS[activation]())}
    assert net(example(net)).shape == (2, 10)


@pytest.mark.parametrize(("name", "size"), [("mnist-dense160", 32), ("vgg16", 64), ("densenet40", 20)])
def test_other_images_fit(name: str, size: int) -> None:
    net = build(name, in_channels=3, size=size, classes=7, width=0.1)
    assert net(torch.rand(2, 3, size, size)).shape == (2, 7)


@pytest.mark.parametrize("name", ["vgg16", "densenet40"])
def test_the_default_start_of_deep_networks_keeps_the_signal_alive(name: str) -> None:
    torch.manual_seed(0)
    x = torch.rand(16, 3, 8, 8).repeat_interleave(4, 2).repeat_interleave(4, 3)
    spread = {init: build(name, width=0.25, init=init)(x).std(0).mean().item() for init in ("kaiming", "torch")}
    assert spread["kaiming"] > 5e-3
    assert spread["kaiming"] > 10 * spread["torch"]


def test_the_same_seed_gives_the_same_network() -> None:
    nets = []
    for _ in range(2):
        torch.manual_seed(3)
        nets.append(build("mnist-dense160"))
    assert all(torch.equal(a, b) for a, b in zip(nets[0].parameters(), nets[1].parameters(), strict=True))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("vgg19", {}, "there is no network 'vgg19'; there are mnist-dense160, mnist-dense240"),
        ("vgg16", {"depth": 3}, "vgg16 has no option 'depth'; there are classes, batch_norm"),
        ("vgg16", {"activation": "gelu"}, "activation must be one of soft, clamped, relu, got 'gelu'"),
        ("vgg16", {"init": "zeros"}, "init must be one of xavier, kaiming, torch, got 'zeros'"),
        ("vgg16", {"width": 0.0}, "width must be a factor above 0 and up to 64, got 0.0"),
        ("vgg16", {"width": float("nan")}, "width must be a factor above 0 and up to 64, got nan"),
        ("vgg16", {"batch_norm": "no"}, "batch_norm must be True or False, got 'no'"),
        ("vgg16", {"classes": 0}, "classes must be a whole number above 0, got 0"),
        ("vgg16", {"size": 28}, "images of 28×28 are too small for the poolings of this network"),
        ("mnist-dense160", {"size": 12}, "images of 12×12 are too small for the poolings of this network"),
        ("densenet40", {"size": 3}, "images of 3×3 are too small for the poolings of this network"),
    ],
)
def test_a_mistake_gets_a_sentence(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        build(name, **options)
    assert str(caught.value).startswith(message)
