"""Nested data goes to JSON and back without losing a bit or a type."""

from __future__ import annotations

import copy
import json
from collections import Counter, OrderedDict

import numpy as np
import torch
from torch import Tensor

from nodedrop.training.packing import pack, unpack


def test_plain_data_comes_back_as_it_was() -> None:
    state = {
        "numbers": [0.1, 1e-320, -0.0, float("nan"), float("-inf"), 2**70, True, None, "ü\n"],
        "nested": ({"a": (1, (2,))}, {1: "one", (2, 3): [4]}, {"$": "tuple", "of": []}),
        "kinds": [Counter({3: 2}), OrderedDict(b=1, a=2), np.float32(0.1), np.float64(0.2), np.bool_(True)],
        "arrays": (np.arange(6, dtype=np.uint64).reshape(2, 3), np.zeros((0, 2), np.float32)),
        "tensors": {"x.y": torch.rand(2, dtype=torch.float64), "x": {"y": torch.tensor(3)}},
    }
    before = copy.deepcopy(state)
    tensors: dict[str, Tensor] = {"tensors.x": torch.zeros(1)}
    text = json.dumps(pack(state, tensors))
    assert repr(unpack(json.loads(text), tensors)) == repr(before)
    assert list(tensors) == ["tensors.x"]
