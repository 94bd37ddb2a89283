"""What a pass runs, told without sizes: passes before and after a cut are alike unless code asks for a width."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import nodedrop as nd
from nodedrop import session
from nodedrop.surgery import outputs, ran


class Wide(nn.Module):
    """Two layers, and what `read` makes of the first one's units."""

    def __init__(self, width: int, read: Callable[[Wide, Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.last, self.read = nn.Conv2d(3, width, 1), nn.Linear(4 * width, 2), read
        self.pair = nn.ParameterList([nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))])

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.last(self.read(self, self.first(x).relu()).flatten(1))
        return found


ALIKE: dict[str, Callable[[Wide, Tensor], Tensor]] = {
    "nothing": lambda m, h: h,
    "sizes": lambda m, h: h.view(len(h), h.shape[1], -1) + h.new_zeros(1, h.shape[1], 1),
    "dropout": lambda m, h: nn.functional.dropout(h, 0.5, m.training),
}
OTHERS: dict[str, Callable[[Wide, Tensor], Tensor]] = {
    "another operator": lambda m, h: h.tanh() if h.shape[1] < 6 else h.sigmoid(),
    "another number": lambda m, h: h.clamp(max=100.0 * h.shape[1]),
    "another parameter": lambda m, h: h * m.pair[h.shape[1] // 6],
    "a value that fills": lambda m, h: torch.maximum(h, torch.full((), -float(h.shape[1]))),
}


def alike(read: Callable[[Wide, Tensor], Tensor]) -> bool:
    passes = [outputs(Wide(width, read), [torch.rand(2, 3, 2, 2)])[0] for width in (8, 5)]
    return ran(passes[:1]) == ran(passes[1:])


@pytest.mark.parametrize("how", ALIKE)
def test_sizes_and_dropout_make_no_difference(how: str) -> None:
    assert alike(ALIKE[how])


@pytest.mark.parametrize("how", OTHERS)
def test_what_depends_on_a_width_does(how: str) -> None:
    assert not alike(OTHERS[how])


def test_later_cuts_of_an_axis_are_traced_if_passes_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    traced, trace = list[int](), session.trace
    monkeypatch.setattr(session, "trace", lambda *given: traced.append(1) or trace(*given))
    for read, times in ((ALIKE["nothing"], [1, 2, 2]), (lambda m, h: h + 0 if h.shape[1] == 6 else h, [1, 2, 3])):
        model = Wide(8, read)
        traced.clear()
        drop = nd.NodeDrop(model, None, torch.rand(2, 3, 2, 2))
        counts = [len(traced)]
        nn.init.constant_(model.first.bias, 9.0)
        for _ in range(2):
            nn.init.constant_(model.first.bias[:1], -9.0)
            if counts[-1] == 2 and times[-1] == 3:
                with pytest.warns(UserWarning, match="dead units stay"):
                    drop.drop()
            else:
                drop.drop()
            counts.append(len(traced))
        assert counts == times
