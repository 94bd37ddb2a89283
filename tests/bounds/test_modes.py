"""What is so in one mode, or at this moment only."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nodedrop.bounds import Bounds, bound
from nodedrop.tracing import tensors_of, trace


class Written(nn.Module):
    """A convolution whose weights are written as it trains, two columns of which are 0 so far."""

    def __init__(self, writes: bool) -> None:
        super().__init__()
        self.writes, self.conv = writes, nn.Conv1d(4, 3, 1)
        with torch.no_grad():
            self.conv.weight[:, :2] = 0

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        if self.training and self.writes:
            with torch.no_grad():
                self.conv.weight.add_(x.mean())
        return y if self.training else y + 1


def of_both_modes(model: nn.Module, x: Tensor, **options: Any) -> dict[str, Bounds]:
    memo: dict[Any, Any] = {}
    graphs = trace(model, (x,)).graphs
    found = [bound(graph, tensors_of(model), memo=memo, **options) for graph in graphs]
    return {mode: bounds for bounds in found for mode in bounds.graph.modes}


@pytest.mark.parametrize("writes", [False, True])
def test_weights_that_are_written_are_read_for_all_that_is_known(writes: bool) -> None:
    model = Written(writes)
    found = of_both_modes(model, torch.rand(2, 4, 5))
    idle = {mode: bounds.idle for mode, bounds in found.items()}
    assert [int(zero.sum()) for zero in idle["eval"].values()] == [6]
    assert [int(zero.sum()) for zero in idle["train"].values()] == ([] if writes else [6])


@pytest.mark.parametrize("alike", [False, True])
def test_a_limit_on_training_batches_is_none_in_eval_mode(alike: bool) -> None:
    """Batch norm without running statistics reads the batch in both modes, and that in eval mode may be any."""
    norm = nn.BatchNorm1d(3, eps=1e-5, track_running_stats=False)
    model = nn.Sequential(norm, nn.Identity() if alike else nn.Dropout(0.5))
    found = of_both_modes(model, torch.rand(8, 3), batch_limit=8.0)
    assert len({id(bounds) for bounds in found.values()}) == (1 if alike else 2)
    ends = {
        mode: float(bounds[next(n.name for n in bounds.graph.nodes if "batch_norm" in n.op)].hi.max())
        for mode, bounds in found.items()
    }
    batch = torch.zeros(64, 3)
    batch[0] = 1.0
    assert float(model.eval()(batch).detach().max()) == pytest.approx(63**0.5, rel=1e-3)
    assert ends["eval"] >= 63**0.5
    if not alike:
        assert ends["train"] == pytest.approx(7**0.5, rel=1e-3)
