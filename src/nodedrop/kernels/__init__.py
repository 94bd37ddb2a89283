"""σ and its gradient on whole tensors: one pass of compiled C where that serves, chains of torch operators elsewhere.

The C source is compiled on first use with the system's compiler; `status` says whether that worked. The environment
variable NODEDROP_NATIVE=0 leaves everything to torch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import eager, native
from .native import Status

__all__ = ["Status", "soft_clamped_relu", "soft_clamped_relu_backward", "status"]


def status() -> Status:
    """Build and load the compiled kernels if that has not been done, and say how it went."""
    return native.load()[1]


def soft_clamped_relu(v: Tensor, beta: float) -> Tensor:
    compiled = native.serving(v, beta)
    if compiled is not None and v.dtype == torch.float32:
        return compiled.forward(v, beta)
    return eager.blockwise(eager.forward if compiled is None else compiled.forward, beta, v)


def soft_clamped_relu_backward(grad: Tensor, y: Tensor, beta: float) -> Tensor:
    compiled = native.serving(y, beta)
    if compiled is not None and y.dtype == torch.float32:
        return compiled.backward(grad, y, beta)
    return eager.blockwise(eager.backward if compiled is None else compiled.backward, beta, grad, y)
