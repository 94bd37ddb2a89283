"""A node of autograd's graph that goes backward after all others."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def late(value: Tensor) -> Tensor:
    """The same value; the gradients behind it are made last.

    Autograd takes the nodes made last first, so a penalty's gradients, as large as the weights, would be there while
    all activations still are. Behind the lowest number they are made when those are gone.

    >>> weight = torch.tensor([2.0, -1.0], requires_grad=True)
    >>> late(weight.relu().sum()).backward()
    >>> weight.grad
    tensor([1., 0.])
    """
    if value.requires_grad:
        value = _Late.apply(value)  # type: ignore[no-untyped-call]
        number = getattr(value.grad_fn, "_set_sequence_nr", None)
        if number is not None:  # not in every torch; without it only the order differs
            number(0)
    return value


class _Late(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0]
