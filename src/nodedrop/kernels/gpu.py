"""σ and its gradient on GPUs, compiled by Triton: float32 and half precision, β from 2 on.

What torch calls CUDA, so AMD's cards as well. Triton comes with torch's builds for GPUs on Linux; it is imported and
its compiler run on first use, and each card is tried once against the torch operators.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import check, eager, native
from .build import BuildError, wanted
from .native import Status

# Values per program: eight for each of 128 threads, in half precision one access of 16 bytes.
BLOCK = 1024
_OPTIONS = {"num_warps": 4, "enable_fp_fusion": False}

_loaded: dict[int, tuple[Kernels | None, Status]] = {}


class Kernels:
    """The functions of `fused`, one pass over memory in any of its dtypes."""

    def __init__(self) -> None:
        wanted()
        try:
            import triton

            from . import fused
        except ModuleNotFoundError as error:
            raise BuildError(f"{error}; pip install 'nodedrop[gpu]'") from error
        except Exception as error:
            raise BuildError(_reason(error)) from error
        self.version = str(triton.__version__)
        self._forward, self._backward = fused.forward, fused.backward

    def forward(self, v: Tensor, beta: float) -> Tensor:
        y = torch.empty_like(v)
        _launch(self._forward, [*eager.alike(y, v), y], native.constants(beta)[:10])
        return y

    def backward(self, grad: Tensor, y: Tensor, beta: float) -> Tensor:
        out = torch.empty_like(y)
        _launch(self._backward, [*eager.alike(out, grad, y), out], [native.constants(beta)[4]])
        return out


def _launch(kernel: Any, tensors: list[Tensor], constants: list[float]) -> None:
    """Triton compiles for the current device, so that must be the tensors'."""
    count = tensors[0].numel()
    if count == 0:
        return
    try:
        with torch.cuda.device_of(tensors[0]):
            kernel[(-(-count // BLOCK),)](*tensors, count, *constants, BLOCK=BLOCK, **_OPTIONS)
    except Exception as error:  # whatever a compiler, an assembler, a linker or a driver may lack
        raise BuildError(_reason(error)) from error


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".strip().partition("\n")[0]


def load(index: int) -> tuple[Kernels | None, Status]:
    """Compile the kernels for a card and compare them there, once in a process."""
    if index not in _loaded:
        _loaded[index] = _tried(torch.device("cuda", index))
    return _loaded[index]


def _tried(device: torch.device) -> tuple[Kernels | None, Status]:
    try:
        kernels = Kernels()
        right = check.agree(kernels, device, native.NARROW)
    except BuildError as error:
        return None, Status(False, False, str(error))
    if not right:
        return None, Status(False, False, f"Triton {kernels.version} does not compute what torch does")
    return kernels, Status(True, True, f"Triton {kernels.version}")


def serving(x: Tensor, beta: float) -> Kernels | None:
    """The kernels if they take the values of x; a matter of dtype and β, as on the CPU.

    While a CUDA graph is recorded nothing can be compared, so a card not tried yet leaves it to torch.
    """
    if not x.is_cuda or x.dtype not in native.NARROW or beta < 2:
        return None
    index = x.get_device()
    if index not in _loaded and torch.cuda.is_current_stream_capturing():
        return None
    return load(index)[0]


def attempt(name: str, beta: float, *inputs: Tensor) -> Tensor | None:
    """The function of that name where it serves; a launch that fails later than the first is the last one."""
    kernels = serving(inputs[-1], beta)
    if kernels is None:
        return None
    try:
        result: Tensor = getattr(kernels, name)(*inputs, beta)
    except BuildError as error:
        _loaded[inputs[-1].get_device()] = (None, Status(False, False, str(error)))
        return None
    return result
