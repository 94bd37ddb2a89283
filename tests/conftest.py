"""Settings of all tests."""

import pytest

from nodedrop.bounds import propagate
from nodedrop.planning import walk

# What takes long to make, and serves several tests: these go to one worker.
SHARED = ("made", "server", "alone")


def pytest_collection_modifyitems(items: list[pytest.Function]) -> None:
    for item in items:
        for name in set(SHARED) & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.xdist_group(name))


@pytest.fixture(autouse=True)
def strict_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule that fails is a bug here; users get an operator without a rule instead."""
    monkeypatch.setattr(propagate, "STRICT", True)
    monkeypatch.setattr(walk, "STRICT", True)
