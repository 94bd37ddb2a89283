"""Settings of all tests."""

import gc

import pytest
from tests.records import made, results

from nodedrop.bounds import propagate
from nodedrop.planning import walk

__all__ = ["made", "results"]

# An export makes and drops hundreds of thousands of objects: looking through all of them so often takes a tenth of it.
gc.set_threshold(100_000, 20, 100)


@pytest.fixture(autouse=True)
def strict_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule that fails is a bug here; users get an operator without a rule instead."""
    monkeypatch.setattr(propagate, "STRICT", True)
    monkeypatch.setattr(walk, "STRICT", True)
