"""σ and its gradient in compiled C: float32 on the CPU, β from 2 on.

Below 2 the linear term and the logarithm nearly cancel, and the polynomials are not accurate enough for that.
"""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

import torch
from torch import Tensor

from . import build, eager

SOURCE = Path(__file__).with_name("soft_clamped_relu.c")

_POINTER = ctypes.c_void_p
_NARROW = (torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Status:
    """Whether the compiled kernels are in use, on more than one thread, and from where; or why not."""

    native: bool
    threads: bool
    detail: str

    def __str__(self) -> str:
        if not self.native:
            return f"torch operators only: {self.detail}"
        return f"compiled kernels{'' if self.threads else ', on one thread'}: {self.detail}"


@lru_cache(maxsize=64)
def _constants(beta: float) -> ctypes.Array[ctypes.c_float]:
    """The struct `Constants` of the C file."""
    steep = beta / math.log(2)
    values: tuple[float, ...]
    if eager.underflows(beta, torch.float32):  # w = e^{β(v−1)}, at the lowest exponent that of v = 0
        values = (0, 0, 1, 2, steep, -steep, -126, 1, max(2**-126 - math.exp(-beta), 0))
    else:
        a, _, zero, rest, _ = eager.constants(beta, torch.float32)
        v0 = zero + rest
        low = -30 if beta < 20 else 0  # where w is −a to float32, and where a is nothing beside 1
        values = (zero, rest, 1 - v0, 2 - 2 * v0, steep, 0, low, a, a)
    return (ctypes.c_float * 13)(*values, -2 / beta, -30, 0, 1)


class Kernels:
    """The functions of the library on float32 tensors."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.threads = bool(ctypes.c_int.in_dll(library, "soft_clamped_relu_threads").value)
        self._forward, self._backward = library.soft_clamped_relu, library.soft_clamped_relu_backward
        for function, tensors in ((self._forward, 2), (self._backward, 3)):
            function.argtypes = [*[_POINTER] * tensors, ctypes.c_int64, _POINTER, ctypes.c_int]
            function.restype = None

    def forward(self, v: Tensor, beta: float) -> Tensor:
        y = torch.empty_like(v)
        (v,) = eager.alike(y, v)
        self._forward(v.data_ptr(), y.data_ptr(), v.numel(), _constants(beta), torch.get_num_threads())
        return y

    def backward(self, grad: Tensor, y: Tensor, beta: float) -> Tensor:
        out = torch.empty_like(y)
        grad, y = eager.alike(out, grad, y)
        pointers = (grad.data_ptr(), y.data_ptr(), out.data_ptr())
        self._backward(*pointers, y.numel(), _constants(beta), torch.get_num_threads())
        return out

    def agree(self) -> bool:
        """Whether both give what the torch operators give in float64, and 0 exactly where those do.

        A compiler told to be careless with floating-point numbers would fail here.
        """
        special = [-math.inf, -1e30, -1e-30, -0.0, 0.0, 1e-30, 4e-6, 4.5e-6, 5e-6, 1e30, math.inf, math.nan]
        v = torch.cat([torch.linspace(-1, 3, 1001), torch.tensor(special)])
        y, grad = self.forward(v, 10.0), torch.ones_like(v)
        pairs = (
            (y, eager.forward(v.double(), 10.0)),
            (self.backward(grad, y, 10.0), eager.backward(grad.double(), y.double(), 10.0)),
        )
        return all(torch.allclose(ours.double(), real, rtol=1e-6, atol=0, equal_nan=True) for ours, real in pairs)


@cache
def load() -> tuple[Kernels | None, Status]:
    """Build and load the library, once in a process."""
    try:
        library, path = build.load(SOURCE)
    except (build.BuildError, OSError) as error:
        return None, Status(False, False, str(error))
    kernels = Kernels(library)
    if not kernels.agree():
        return None, Status(False, False, f"{path} does not compute what torch does; its compiler is not to be trusted")
    return kernels, Status(True, kernels.threads, str(path))


def serving(x: Tensor, beta: float) -> Kernels | None:
    """The kernels if they take the values of x, widened to float32 if need be.

    Never a matter of size or layout, so that a value is computed alike wherever it stands.
    """
    return load()[0] if x.dtype in _NARROW and x.is_cpu and beta >= 2 else None
