"""A layer's penalty as a node of autograd's graph that keeps no copy of the weights, and goes backward last."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor


def late(compute: partial[Tensor]) -> Tensor:
    """What `compute` gives, differentiable by its positional arguments.

    Autograd takes the nodes made last first, so a penalty's gradients would be there while all activations still are.
    With the lowest number they are made when those are gone.

    >>> weight = torch.tensor([2.0, -1.0], requires_grad=True)
    >>> late(partial(lambda w: w.relu().sum(), weight)).backward()
    >>> weight.grad
    tensor([1., 0.])
    """
    inputs = [item for item in compute.args if isinstance(item, Tensor) and item.requires_grad]
    value: Tensor = _Late.apply(compute, *inputs)  # type: ignore[no-untyped-call]
    last = getattr(value.grad_fn, "_set_sequence_nr", None)
    if last is not None:  # not in every torch; without it only the order differs
        last(0)
    return value


class _Late(torch.autograd.Function):
    """Computed again for backward: a rectified copy of all weights would be as large as their gradients."""

    @staticmethod
    def forward(ctx: Any, compute: partial[Tensor], *inputs: Tensor) -> Tensor:
        ctx.compute = compute
        ctx.save_for_backward(*inputs)
        return compute()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        inputs, again = ctx.saved_tensors, torch.is_grad_enabled()
        with torch.enable_grad():
            found = torch.autograd.grad(ctx.compute(), inputs, gradients[0], create_graph=again)
        return None, *found
