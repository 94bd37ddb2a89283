"""Settings of all tests."""

import pytest

from nodedrop.bounds import propagate
from nodedrop.planning import walk

# Tests that share what takes long to make or to import go to one worker: by fixture, or by a word of their names.
FIXTURES = ("made", "server", "alone")
WORDS = {"test_huggingface": "transformers", "exact[transformers": "transformers", "lightning": "lightning",
         "onnx": "onnx", "test_export": "onnx"}  # fmt: skip


@pytest.hookimpl(tryfirst=True)  # xdist reads the groups when its turn comes
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        groups = [name for name in FIXTURES if name in getattr(item, "fixturenames", ())]
        groups += [group for word, group in WORDS.items() if word in item.nodeid]
        if groups:
            item.add_marker(pytest.mark.xdist_group(groups[0]))


@pytest.fixture(autouse=True)
def strict_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule that fails is a bug here; users get an operator without a rule instead."""
    monkeypatch.setattr(propagate, "STRICT", True)
    monkeypatch.setattr(walk, "STRICT", True)
