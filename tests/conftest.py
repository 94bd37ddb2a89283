"""Settings of all tests."""

import pytest
from tests.records import made, results

from nodedrop.bounds import propagate
from nodedrop.planning import walk

__all__ = ["made", "results"]


@pytest.fixture(autouse=True)
def strict_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule that fails is a bug here; users get an operator without a rule instead."""
    monkeypatch.setattr(propagate, "STRICT", True)
    monkeypatch.setattr(walk, "STRICT", True)
