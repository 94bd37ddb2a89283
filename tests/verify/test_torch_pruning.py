"""Networks that another tool made smaller: the checker knows nothing of who did it."""

from __future__ import annotations

import copy

import pytest
import torch
import torch_pruning as tp
from torch import Tensor, nn

from nodedrop.verify import verify


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(2, 6, 3, padding=1), nn.BatchNorm2d(6)
        self.inner, self.outer = nn.Conv2d(6, 5, 3, padding=1), nn.Conv2d(5, 6, 1)
        self.fc1, self.fc2 = nn.Linear(6 * 4, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.stem(x)).relu()
        x = (x + self.outer(self.inner(x).relu())).relu()
        x = nn.functional.max_pool2d(x, 2).flatten(1)
        return self.fc2(self.fc1(x).relu())


DEAD = {"inner": (1, 3), "fc1": (0, 5, 6)}
LIVE = {"inner": (0,), "fc1": (2,)}


def network() -> Residual:
    torch.manual_seed(0)
    net = Residual()
    with torch.no_grad():
        for layer, units in DEAD.items():
            bias = net.get_submodule(layer).bias
            bias.fill_(0.5)
            bias[list(units)] = -500.0
    return net


def pruned(net: nn.Module, units: dict[str, tuple[int, ...]]) -> nn.Module:
    """A copy without some units, taken out by Torch-Pruning with all that depends on them."""
    small = copy.deepcopy(net)
    graph = tp.DependencyGraph().build_dependency(small, example_inputs=torch.rand(2, 2, 4, 4))
    for name, gone in units.items():
        layer = small.get_submodule(name)
        cut = tp.prune_conv_out_channels if isinstance(layer, nn.Conv2d) else tp.prune_linear_out_channels
        graph.get_pruning_group(layer, cut, idxs=list(gone)).prune()
    return small


@pytest.mark.filterwarnings("ignore")
def test_units_that_were_dead_are_proved() -> None:
    net, x = network(), torch.rand(2, 2, 4, 4)
    verdict = verify(net, pruned(net, DEAD), x, batch_size=16)
    assert (verdict.status, verdict.units) == ("proved", 5), verdict


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("layer", LIVE)
def test_units_that_fire_are_refuted_with_an_input(layer: str) -> None:
    net, x = network(), torch.rand(2, 2, 4, 4)
    small = pruned(net, {layer: LIVE[layer]})
    verdict = verify(net, small, x, batch_size=16)
    assert verdict.status == "refuted", verdict
    assert f"unit {LIVE[layer][0]} of '{layer}.weight'" in verdict.reason
    found = verdict.counterexample
    assert found is not None
    with torch.no_grad():
        pair = [module.train(found.mode == "train")(found.inputs[0].float()) for module in (net, small)]
    assert not torch.allclose(*pair, rtol=1e-3)
