"""Settings of all tests."""

import gc
import random
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.records import made, results
from torch import nn

from nodedrop.bounds import propagate
from nodedrop.planning import walk

__all__ = ["made", "results"]

# An export makes and drops hundreds of thousands of objects: looking through all of them so often takes a tenth of it.
gc.set_threshold(100_000, 20, 100)


@pytest.fixture(autouse=True)
def same_numbers(request: pytest.FixtureRequest) -> None:
    """Every test draws the numbers of its own name, whatever ran before it and wherever."""
    seed = zlib.crc32(request.node.nodeid.encode())
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


@pytest.fixture(autouse=True)
def strict_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule that fails is a bug here; users get an operator without a rule instead."""
    monkeypatch.setattr(propagate, "STRICT", True)
    monkeypatch.setattr(walk, "STRICT", True)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both programs are read once, since ledgers change and modules do not."""
    from nodedrop.verify import check

    programs: dict[Any, Any] = {}
    true: Callable[..., Any] = check.read

    def remembered(module: nn.Module, inputs: Any, mode: str) -> Any:
        key = (id(module), mode)
        if key not in programs:
            programs[key] = true(module, inputs, mode)
        return programs[key]

    monkeypatch.setattr(check, "read", remembered)
