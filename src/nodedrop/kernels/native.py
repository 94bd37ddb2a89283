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

from . import build, check, eager

SOURCE = Path(__file__).with_name("soft_clamped_relu.c")

_POINTER = ctypes.c_void_p
NARROW = (torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Status:
    """Whether the compiled kernels are in use, on more than one thread, and from where; or why not.

    `gpus` says the same of each card, in torch's order.
    """

    native: bool
    threads: bool
    detail: str
    gpus: tuple[Status, ...] = ()

    def __str__(self) -> str:
        kind = "torch operators only"
        if self.native:
            kind = "compiled kernels" if self.threads else "compiled kernels, on one thread"
        return "; ".join([f"{kind}: {self.detail}", *(f"cuda:{k} {card}" for k, card in enumerate(self.gpus))])


@lru_cache(maxsize=64)
def constants(beta: float) -> ctypes.Array[ctypes.c_float]:
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
        self._forward(v.data_ptr(), y.data_ptr(), v.numel(), constants(beta), torch.get_num_threads())
        return y

    def backward(self, grad: Tensor, y: Tensor, beta: float) -> Tensor:
        out = torch.empty_like(y)
        grad, y = eager.alike(out, grad, y)
        pointers = (grad.data_ptr(), y.data_ptr(), out.data_ptr())
        self._backward(*pointers, y.numel(), constants(beta), torch.get_num_threads())
        return out


@cache
def load() -> tuple[Kernels | None, Status]:
    """Build and load the library, once in a process."""
    try:
        library, path = build.load(SOURCE)
    except (build.BuildError, OSError) as error:
        return None, Status(False, False, str(error))
    kernels = Kernels(library)
    if not check.agree(kernels, torch.device("cpu")):
        return None, Status(False, False, f"{path} does not compute what torch does; its compiler is not to be trusted")
    return kernels, Status(True, kernels.threads, str(path))


def serving(x: Tensor, beta: float) -> Kernels | None:
    """The kernels if they take the values of x, widened to float32 if need be.

    Never a matter of size or layout, so that a value is computed alike wherever it stands.
    """
    return load()[0] if x.dtype in NARROW and x.is_cpu and beta >= 2 else None
