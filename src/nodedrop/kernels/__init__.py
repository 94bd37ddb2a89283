"""σ and its gradient on whole tensors: one pass of compiled code where that serves, torch operators elsewhere.

The CPU has a C source, compiled on first use with the system's compiler, GPUs one in Triton; `status` says whether that
worked. The environment variable NODEDROP_NATIVE=0 leaves everything to torch.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from . import eager, gpu, native
from .native import Status

__all__ = ["Status", "soft_clamped_relu", "soft_clamped_relu_backward", "status"]


def status() -> Status:
    """Build and load the compiled kernels, on every card as well, if that has not been done, and say how it went."""
    gpus = tuple(gpu.load(index)[1] for index in range(torch.cuda.device_count()))
    return replace(native.load()[1], gpus=gpus)


def soft_clamped_relu(v: Tensor, beta: float) -> Tensor:
    if v.is_cuda and (y := gpu.attempt("forward", beta, v)) is not None:
        return y
    compiled = native.serving(v, beta)
    if compiled is not None and v.dtype == torch.float32:
        return compiled.forward(v, beta)
    return eager.blockwise(eager.forward if compiled is None else compiled.forward, beta, v)


def soft_clamped_relu_backward(grad: Tensor, y: Tensor, beta: float) -> Tensor:
    if y.is_cuda and (slope := gpu.attempt("backward", beta, grad, y)) is not None:
        return slope
    compiled = native.serving(y, beta)
    if compiled is not None and y.dtype == torch.float32:
        return compiled.backward(grad, y, beta)
    return eager.blockwise(eager.backward if compiled is None else compiled.backward, beta, grad, y)
