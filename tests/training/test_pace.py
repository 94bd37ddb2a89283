"""When a run looks for dead units."""

from collections.abc import Callable

import pytest

from nodedrop.errors import InputError
from nodedrop.training import Pace


def looks(pace: Pace, steps: int, removed: Callable[[int], float]) -> list[int]:
    """The steps at which it was time; `removed` says what share goes if so many steps have passed since the last."""
    found = [0]
    for step in range(1, steps + 1):
        if pace.due():
            pace.saw(removed(step - found[-1]))
            found.append(step)
    return found[1:]


@pytest.mark.parametrize(("rate", "cost"), [(1e-3, 1.0), (1e-4, 1.0), (1e-4, 3.0)])
def test_the_wait_settles_where_cuts_and_dead_units_cost_least(rate: float, cost: float) -> None:
    found = looks(Pace(1, 10**6, cost), 20_000, lambda waited: rate * waited)
    wait = found[-1] - found[-2]

    def loss(every: float) -> float:
        return cost / every + rate * every / 2

    best = min(loss(every) for every in range(1, 5_000))
    assert loss(wait) <= 1.01 * best


def test_it_looks_ever_more_seldom_when_nothing_dies() -> None:
    found = looks(Pace(10, 80), 500, lambda waited: 0.0)
    assert found == [10, 30, 70, 150, 230, 310, 390, 470]


def test_a_large_cut_brings_it_back_at_once() -> None:
    pace = Pace(10, 1000)
    for _ in range(5):
        pace.saw(0.0)
    waited = pace.state_dict()["wait"]
    pace.saw(0.5)
    assert pace.state_dict()["wait"] < waited / 4


def test_the_wait_stays_within_its_bounds() -> None:
    pace = Pace(10, 40)
    for share in (1.0, 1e-9, 0.0, 0.0, 0.9):
        pace.saw(share)
        assert 10 <= pace.state_dict()["wait"] <= 40


def test_it_goes_on_from_its_state() -> None:
    first, second = Pace(10, 80), Pace(10, 80)
    for _ in range(15):
        if first.due():
            first.saw(0.01)
    second.load_state_dict(first.state_dict())
    assert looks(first, 100, lambda waited: 0.0) == looks(second, 100, lambda waited: 0.0)


@pytest.mark.parametrize(("arguments", "message"), [((0, 5), "1 ≤ least"), ((6, 5), "least"), ((1, 5, 0.0), "cost")])
def test_impossible_paces_are_refused(arguments: tuple[float, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Pace(*arguments)  # type: ignore[arg-type]
