"""What the checker proves, refutes, and leaves open; and that it stands by itself."""

from __future__ import annotations

import ast
import copy
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import nodedrop as nd
from nodedrop.verify import verify
from nodedrop.verify.program import read

from ..test_regressions import ReadsStatistics
from ..test_writes import Uses, dropout_that_is_no_copy

PACKAGE = Path(nd.__file__).parent / "verify"


def test_it_imports_nothing_of_what_makes_certificates() -> None:
    allowed = {"numpy", "torch", "safetensors", *sys.stdlib_module_names}
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                assert {alias.name.split(".")[0] for alias in node.names} <= allowed, file.name
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 1 or (node.level == 0 and str(node.module).split(".")[0] in allowed), file.name


def without(model: nn.Sequential, layer: int, reader: int, unit: int, repeat: int = 1) -> nn.Sequential:
    """A copy of a model with one unit taken out by hand, as any other tool would."""
    small = copy.deepcopy(model)
    maker, reading = small[layer], small[reader]
    rows = [k for k in range(len(maker.weight)) if k != unit]
    columns = [k * repeat + j for k in rows for j in range(repeat)]
    maker.weight, reading.weight = nn.Parameter(maker.weight[rows]), nn.Parameter(reading.weight[:, columns])
    maker.bias = nn.Parameter(maker.bias[rows])
    for norm in small[layer + 1 : reader]:
        if isinstance(norm, nn.BatchNorm2d):
            for name, tensor in [*norm.named_parameters(), *norm.named_buffers()]:
                if tensor.dim():
                    getattr(norm, name).data = tensor.data[rows]
            norm.num_features = len(rows)
    for module in (maker, reading):
        if isinstance(module, nn.Linear):
            module.out_features, module.in_features = module.weight.shape
        else:
            module.out_channels, module.in_channels = module.weight.shape[:2]
    return small


@pytest.fixture
def net() -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 3),
        nn.Hardtanh(0.0, 1.0), nn.Linear(3, 2),
    )  # fmt: skip
    with torch.no_grad():
        model[1].bias[1] = -99.0
        model[1].running_var.uniform_(0.5, 2.0)
        model[5].bias[2] = -999.0
    return model


@pytest.mark.parametrize("reads", [False, True])
def test_statistics_that_something_else_reads_are_not_those_of_the_file(reads: bool) -> None:
    program = read(ReadsStatistics(reads), torch.rand(4, 3), "train")
    assert ("changing" in [step.op for step in program.steps]) == reads


def test_a_write_shows_in_what_an_idle_dropout_returned() -> None:
    program = read(Uses(dropout_that_is_no_copy), torch.rand(3, 4), "eval")
    assert [program.steps[place].op for place in program.outputs] == ["relu.default"]


def test_a_pair_of_any_origin_is_proved(net: nn.Sequential) -> None:
    inputs = torch.rand(2, 2, 4, 4)
    small = without(without(net, 0, 5, 1, repeat=4), 5, 7, 2)
    verdict = verify(net, small, inputs, batch_size=16)
    assert (verdict.status, verdict.code) == ("proved", 0), verdict


def test_a_live_unit_is_refuted_with_an_input_that_shows_it(net: nn.Sequential) -> None:
    inputs = torch.rand(2, 2, 4, 4)
    small = without(net, 0, 5, 2, repeat=4)
    verdict = verify(net, small, inputs, batch_size=16)
    assert (verdict.status, verdict.code) == ("refuted", 1)
    assert "unit 2 of '0.weight'" in verdict.reason
    found = verdict.counterexample
    assert found is not None
    with torch.no_grad():
        before, after = (m.train(found.mode == "train")(found.inputs[0].float()) for m in (net, small))
    assert not torch.allclose(before, after, rtol=1e-3)


def test_what_no_bound_and_no_input_decides_is_left_open() -> None:
    """x₁ − x₁ is 0, and intervals do not know it."""
    net = nn.Sequential(nn.Linear(1, 2), nn.Identity(), nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1)).double()
    with torch.no_grad():
        net[0].weight.fill_(1.0)
        net[0].bias.zero_()
        net[2].weight.copy_(torch.tensor([[1.0, -1.0], [1.0, 1.0]]))
        net[2].bias.zero_()
    verdict = verify(net, without(net, 2, 4, 0), torch.rand(2, 1))
    assert (verdict.status, verdict.code) == ("not proved", 3), verdict
    assert "may be as large as 1" in verdict.reason


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_a_small_difference_is_one_in_any_type(dtype: torch.dtype) -> None:
    """A unit that adds a thousandth to the output, which is less than half precision resolves there, and is found."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)).to(dtype)
    with torch.no_grad():
        net[0].bias.fill_(1.0)
        net[2].weight.copy_(torch.tensor([[0.001, 1.0, 1.0]]))
    verdict = verify(net, without(net, 0, 2, 0), torch.rand(2, 2).to(dtype))
    assert verdict.status == "refuted", verdict
    assert verdict.counterexample is not None
    assert verdict.counterexample.difference < 1e-2


def test_rounding_alone_is_no_difference() -> None:
    """Sums that cancel, to nothing but their rounding: other units of the same network show as much."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(1, 64), nn.Identity(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    with torch.no_grad():
        net[0].weight.fill_(1.0)
        net[0].bias.zero_()
        net[2].weight[:, 1::2] = -net[2].weight[:, ::2]
        net[2].bias.zero_()
    assert verify(net, without(net, 2, 4, 0), torch.rand(2, 1)).status == "not proved"


class Unknown(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cos(x) - 2.0


def test_an_operator_without_a_rule_proves_nothing() -> None:
    """cos(x) − 2 < 0, so the units behind it are dead; but nobody here knows what a cosine is."""
    net = nn.Sequential(nn.Linear(3, 4), Unknown(), nn.ReLU(), nn.Linear(4, 1))
    small = without(net, 0, 3, 1)
    verdict = verify(net, small, torch.rand(2, 3))
    assert verdict.status == "not proved"
    assert "cos" in verdict.reason


def test_modules_of_other_structure_are_not_proved(net: nn.Sequential) -> None:
    other = copy.deepcopy(net)
    other[2] = nn.ReLU6()
    verdict = verify(net, other, torch.rand(2, 2, 4, 4))
    assert verdict.status != "proved"


def summed(u: float, dtype: torch.dtype) -> nn.Sequential:
    """A unit that is not positive in real numbers, and positive in floating point, one term after the other.

    Each of eight terms, a bit more than half of 1's last place, is rounded up when it is added to the first.
    """
    net = nn.Sequential(nn.Linear(9, 2), nn.ReLU(), nn.Linear(2, 1))
    with torch.no_grad():
        net[0].weight[0] = torch.tensor([1.0] + [u * (1 + 2.0**-4)] * 8)
        net[0].bias[0] = -(1 + 8 * u + 2 * u)
        net[0].bias[1] = 1.0
    return net.to(dtype)


@pytest.mark.parametrize(("dtype", "u"), [(torch.float32, 2.0**-24), (torch.bfloat16, 2.0**-8)])
def test_rounding_is_part_of_the_proof(dtype: torch.dtype, u: float) -> None:
    net = summed(u, dtype)
    weight, bias = net[0].weight[0].detach().double(), net[0].bias[0].detach().double()
    assert float(weight.sum() + bias) < 0
    total = torch.zeros((), dtype=dtype)
    for term in net[0].weight[0].detach():
        total = total + term
    assert float(total + net[0].bias[0].detach()) > 0
    assert nd.analyze(net, torch.rand(2, 9).to(dtype)).removable == ()
    assert verify(net, without(net, 0, 2, 0), torch.rand(2, 9).to(dtype)).status != "proved"
    with torch.no_grad():
        net[0].bias[0] -= 64 * u
    assert len(nd.analyze(net, torch.rand(2, 9).to(dtype)).removable) == 1
    assert verify(net, without(net, 0, 2, 0), torch.rand(2, 9).to(dtype)).status == "proved"


def test_a_lower_precision_needs_a_larger_margin() -> None:
    net = summed(2.0**-24, torch.float32)
    with torch.no_grad():
        net[0].bias[0] -= 64 * 2.0**-24
    small, inputs = without(net, 0, 2, 0), torch.rand(2, 9)
    assert verify(net, small, inputs).status == "proved"
    assert verify(net, small, inputs, dtype=torch.bfloat16).status != "proved"


def test_a_domain_may_be_a_box_per_channel() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1))
    with torch.no_grad():
        net[0].weight[0] = torch.tensor([1.0, -1.0])
        net[0].bias[0] = 0.0
        net[0].bias[1] = 9.0
    small = without(net, 0, 2, 0)
    box = nd.Box(torch.tensor([0.0, 2.0]), torch.tensor([1.0, 3.0]))
    assert verify(net, small, torch.tensor([[0.5, 2.5]]), box).status == "proved"
    assert verify(net, small, torch.tensor([[0.5, 0.5]])).status == "refuted"


def test_units_behind_a_layer_norm(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
    with torch.no_grad():
        net[2].bias[[1, 5]] = -float(np.sqrt(6)) * net[2].weight[[1, 5]].norm(dim=1) - 0.1
    before = copy.deepcopy(net)
    assert len(nd.compact_(net, torch.rand(3, 4), ledger=tmp_path / "ledger.jsonl").removed) == 2
    verdict = verify(before, net, torch.rand(3, 4), ledger=tmp_path / "ledger.jsonl")
    assert verdict.status == "proved", verdict


class Gated(nn.Module):
    """Half of the units scale the other half; what a depthwise convolution reads goes with its channel."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.both, self.deep, self.out = nn.Conv2d(2, 8, 1), nn.Conv2d(4, 4, 1, groups=4), nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        value, gate = self.both(x).chunk(2, 1)
        return self.out(self.deep(value * gate.relu()).relu())


def test_what_goes_together_has_one_kind(tmp_path: Path) -> None:
    net, path = Gated(), tmp_path / "ledger.jsonl"
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.uniform_(0.5, 1.0)
        net.both.bias[5] = -9.0  # the gate of unit 1, of which a bias is left
        net.deep.weight[3], net.deep.bias[3] = 0.0, -1.0  # its input fires
    before = copy.deepcopy(net)
    removed = nd.compact_(net, torch.rand(3, 2, 4, 4), ledger=path).removed
    held = {(c.layer, c.index): c.kind for c in removed}
    assert held == {
        ("both", 1): "constant", ("both", 5): "constant", ("deep", 1): "constant",
        ("both", 3): "dead", ("both", 7): "dead", ("deep", 3): "dead",
    }  # fmt: skip
    verdict = verify(before, net, torch.rand(3, 2, 4, 4), ledger=path)
    assert verdict.status == "proved", verdict
