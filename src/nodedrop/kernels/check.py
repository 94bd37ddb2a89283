"""Whether compiled kernels compute what the torch operators do in float64; asked once, before they are used."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from . import eager

# The logarithm weighs most for the first. The zero of σ for β = 90 is subnormal, and one of the points lies below it.
_BETAS = (2.0, 10.0, 90.0)
_SPECIAL = [-math.inf, -1e30, -1e-30, -0.0, 0.0, 5e-42, 1e-30, 4e-6, 4.5e-6, 5e-6, 1e30, math.inf, math.nan]


class Kernels(Protocol):
    def forward(self, v: Tensor, beta: float) -> Tensor: ...

    def backward(self, grad: Tensor, y: Tensor, beta: float) -> Tensor: ...


def agree(kernels: Kernels, device: torch.device, dtypes: Sequence[torch.dtype] = (torch.float32,)) -> bool:
    """Whether both functions are right on a device, 0 exactly where σ is, and never above 1.

    A compiler told to be careless with floating-point numbers would fail here.
    """
    return all(_agree(kernels, device, dtype, beta) for dtype in dtypes for beta in _BETAS)


def _agree(kernels: Kernels, device: torch.device, dtype: torch.dtype, beta: float) -> bool:
    points = [*torch.linspace(-1, 3, 1001, device="cpu").tolist(), *_SPECIAL]
    v = torch.tensor(points, dtype=dtype, device="cpu")
    grad = torch.ones_like(v)
    computed = kernels.forward(v.to(device), beta)
    slope = kernels.backward(grad.to(device), computed, beta).cpu()
    y = computed.cpu()
    real = eager.backward(grad.double(), y.double(), beta)
    return _close(y, eager.forward(v.double(), beta)) and _close(slope, real)


def _close(ours: Tensor, real: Tensor) -> bool:
    """Within 1e-6 and one rounding to the dtype; 0 where the real value is, and at most 1."""
    info = torch.finfo(ours.dtype)
    rtol, atol = 1e-6 + info.eps / 2, info.smallest_normal * info.eps / 2
    near = torch.allclose(ours.double(), real, rtol=rtol, atol=atol, equal_nan=True)
    return near and not bool(((ours != 0) & (real == 0) | (ours > 1)).any())
