"""Rules of the checker that few networks use, against values that the networks really have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nodedrop.verify import verify
from nodedrop.verify.interval import Value, known
from nodedrop.verify.pairs import INNER, Assumptions, NotProved
from nodedrop.verify.program import read
from nodedrop.verify.relation import Walk, relate


class Computes(nn.Module):
    def __init__(self, function: Callable[..., Tensor], **parts: nn.Module) -> None:
        super().__init__()
        self.function, self.parts = function, nn.ModuleDict(parts)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, **self.parts)


def overwritten(x: Tensor) -> Tensor:
    y = x * 2.0
    y[:, 0] = 3.5
    return y


def started(x: Tensor, gru: nn.GRU) -> Tensor:
    out: Tensor = gru(x, torch.full((1, x.shape[0], 5), 2.5))[0]
    return out


CASES: dict[str, Callable[[], nn.Module]] = {
    "abs": lambda: Computes(lambda x: x.abs()),
    "pad": lambda: Computes(lambda x: F.pad(x, (1, 2))),
    "pad with a number": lambda: Computes(lambda x: F.pad(x, (1, 0, 0, 2), value=-7.0)),
    "pad by reflection": lambda: Computes(lambda x: F.pad(x, (1, 2), mode="reflect")),
    "overwrite": lambda: Computes(overwritten),
    "picked by numbers": lambda: Computes(lambda x: x[:, (x[0, :, 0] > 2).long()] * 2.0),
    "gathered": lambda: Computes(lambda x: x.gather(1, (x > 0.5).long())),
    "full": lambda: Computes(lambda x: x + torch.full((4,), -3.0)),
    "instance norm": lambda: nn.InstanceNorm1d(3, affine=True),
    "lstm": lambda: Computes(lambda x, lstm: lstm(x)[0], lstm=nn.LSTM(4, 5, 2, bidirectional=True, batch_first=True)),
    "lstm with a projection": lambda: Computes(lambda x, lstm: lstm(x)[0] * 9, lstm=nn.LSTM(4, 5, proj_size=2)),
    "gru from another state": lambda: Computes(started, gru=nn.GRU(4, 5, batch_first=True)),
}


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("name", CASES)
def test_values_lie_in_their_intervals(name: str) -> None:
    torch.manual_seed(0)
    model = CASES[name]().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 8  # states near their limits
    ends = (np.full((1, 1, 1), -2.0), np.full((1, 1, 1), 1.5))
    program = read(model, torch.rand(2, 3, 4), "eval")
    walk = Walk(program, program, Assumptions(dict.fromkeys(program.inputs, ends), 1.0), {})
    for place in range(len(program.steps)):
        walk.values.append(walk.step(place))
    found = walk.values[program.outputs[0]][0].value
    low, high = torch.full(found.shape, torch.inf), torch.full(found.shape, -torch.inf)
    for k in range(60):
        x = torch.rand(2, 3, 4) * 3.5 - 2.0
        x = x.round().clamp(-2.0, 1.5) if k % 2 else x
        with torch.no_grad():
            y = model(x)
        low, high = torch.minimum(low, y), torch.maximum(high, y)
    assert bool((low.double().numpy() >= found.lo).all())
    assert bool((high.double().numpy() <= found.hi).all())


def recurrent(kind: type[nn.RNNBase], live: bool) -> tuple[nn.Module, nn.Module]:
    """A layer of six units in front of a recurrent one, and both without the second unit."""
    torch.manual_seed(0)

    def made(width: int) -> nn.Module:
        parts = {"first": nn.Linear(3, width), "cell": kind(width, 4, batch_first=True, bidirectional=True)}
        return Computes(lambda x, first, cell: cell(first(x).relu())[0][:, -1], **parts)

    before, after = made(6), made(5)
    with torch.no_grad():
        before.parts["first"].bias[1] = 9.0 if live else -9.0
    rest, tensors = [0, 2, 3, 4, 5], dict(before.named_parameters())
    cut = {"parts.first.weight": 0, "parts.first.bias": 0, "parts.cell.weight_ih_l0": 1}
    cut["parts.cell.weight_ih_l0_reverse"] = 1
    with torch.no_grad():
        for name, tensor in after.named_parameters():
            old = tensors[name]
            tensor.copy_(old.index_select(cut[name], torch.tensor(rest)) if name in cut else old)
    return before, after


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_inputs_of_a_recurrent_layer_may_go_where_they_are_dead(kind: Any) -> None:
    inputs = torch.rand(2, 3, 3)
    assert verify(*recurrent(kind, live=False), inputs).status == "proved"
    assert verify(*recurrent(kind, live=True), inputs).status == "refuted"


def test_other_weights_of_a_recurrent_layer_are_not_the_same() -> None:
    before, after = recurrent(nn.LSTM, live=False)
    with torch.no_grad():
        after.parts["cell"].weight_hh_l0[0, 0] += 1e-7
    assert verify(before, after, torch.rand(2, 3, 3), tries=2).status != "proved"


class ReadsGroups(nn.Module):
    """A convolution in three groups, whose weight may be read by something else as well."""

    def __init__(self, *, twice: bool) -> None:
        super().__init__()
        self.first, self.second, self.twice = nn.Conv2d(3, 12, 1), nn.Conv2d(12, 9, 1, groups=3), twice

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.second(self.first(x).relu())
        return y + self.second.weight.abs().mean() if self.twice else y


def relates(columns: list[int], *, twice: bool = False, bias: float = -1.0, second: Value | None = None) -> None:
    """The first layer, dead as long as its bias is not positive, loses units 1, 6 and 11; the second these columns."""
    program = read(ReadsGroups(twice=twice), torch.rand(2, 3, 4, 4), "eval")
    facts = {"first.weight": known(np.zeros((12, 3, 1, 1))), "first.bias": known(np.full(12, bias))}
    facts |= {} if second is None else {"second.weight": second}
    rows, inner = (np.setdiff1d(np.arange(12), gone) for gone in ([1, 6, 11], columns))
    hints = {"first.weight": {0: rows}, "first.bias": {0: rows}, "second.weight": {INNER: inner}}
    box = {"x": (np.zeros((1, 1, 1, 1)), np.ones((1, 1, 1, 1)))}
    relate(program, program, Assumptions(box, 1.0, known=facts), hints)


def test_columns_of_groups_go_with_the_units_that_they_read() -> None:
    relates([1, 6, 11])
    with pytest.raises(NotProved, match="lost different elements"):
        relates([1, 6, 10])
    with pytest.raises(NotProved, match="of whose groups different parts were removed"):
        relates([1, 6, 11], twice=True)
    with pytest.raises(NotProved, match="was removed and may be as large as 1"):
        relates([1, 6, 11], bias=1.0)


def test_units_of_groups_that_nothing_reads_may_be_alive() -> None:
    weights = np.ones((9, 4, 1, 1))
    for group, index in ((0, 1), (1, 2), (2, 3)):
        weights[group * 3 : group * 3 + 3, index] = 0.0
    relates([1, 6, 11], bias=1.0, second=known(weights))
    weights[8, 3] = 1e-9
    with pytest.raises(NotProved, match="was removed and may be as large as 1"):
        relates([1, 6, 11], bias=1.0, second=known(weights))


def test_a_row_of_a_group_reads_the_inputs_of_its_group() -> None:
    program = read(ReadsGroups(twice=False), torch.rand(2, 3, 4, 4), "eval")
    row, bias = np.full((1, 4, 1, 1), 0.5), np.where(np.arange(12) < 8, -1.0, 3.0)
    facts = {"first.weight": known(np.zeros((12, 3, 1, 1))), "first.bias": known(bias)}
    facts |= {"second.weight": Value(row, row, (9, 4, 1, 1), rows=np.array([7])), "second.bias": known(np.zeros(9))}
    box = {"x": (np.zeros((1, 1, 1, 1)), np.ones((1, 1, 1, 1)))}
    walk = Walk(program, program, Assumptions(box, 1.0, known=facts), {})
    for place in range(len(program.steps)):
        walk.values.append(walk.step(place))
    found = walk.values[program.outputs[0]][0].value.hi.reshape(-1)
    assert found[7] == pytest.approx(6.0, rel=1e-5)
    assert np.isinf(np.delete(found, 7)).all()
