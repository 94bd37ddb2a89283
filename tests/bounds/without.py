"""A pair of models that are equal only if a unit is dead, put before the checker."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from nodedrop import verify


def proved_without(model: nn.Module, hidden: nn.Module, head: nn.Module, example: Any, **options: Any) -> bool:
    """Whether the checker, which has rules of its own, proves the model equal to one without unit 0."""
    before = copy.deepcopy(model)
    with torch.no_grad():
        for tensor, keep in ((hidden.weight, slice(1, None)), (hidden.bias, slice(1, None))):
            tensor.data = tensor[keep].clone()
        head.weight.data = head.weight[:, 1:].clone()
    return verify(before, model, example, tries=1, **options).status == "proved"
