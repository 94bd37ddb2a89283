"""Units that are always on, and which of them could be merged."""

from __future__ import annotations

import torch
from torch import nn

from nodedrop.benchmarks.active import _merged
from nodedrop.tracing import tensors_of, trace


def merged(net: nn.Sequential, x: torch.Tensor, on: torch.Tensor) -> int:
    (graph,) = trace(net.eval(), x).in_mode("eval")
    relu = next(node for node in graph.nodes if node.op == "aten.relu.default")
    return _merged(graph, graph.by_name[relu.args[0].name], on, tensors_of(net))


def test_weights_decide_and_biases_do_not() -> None:
    """The third unit is the sum of the first two and a constant, the fourth a constant."""
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    with torch.no_grad():
        net[0].weight.copy_(torch.tensor([[1.0, 0.0, 2.0], [0.0, 1.0, 1.0], [1.0, 1.0, 3.0], [0.0, 0.0, 0.0]]))
        net[0].bias.copy_(torch.tensor([3.0, 5.0, 11.0, 1.0]))
    x, every = torch.rand(2, 3), torch.ones(4, dtype=torch.bool)
    assert merged(net, x, every) == 2
    assert merged(net, x, torch.tensor([True, False, True, False])) == 0
    assert merged(net, x, torch.tensor([False, False, False, True])) == 1
    assert merged(net, x, ~every) == 0


def test_a_norm_is_no_layer() -> None:
    net = nn.Sequential(nn.Conv2d(2, 4, 1), nn.BatchNorm2d(4), nn.ReLU())
    assert merged(net, torch.rand(2, 2, 3, 3), torch.ones(4, dtype=torch.bool)) == 0
