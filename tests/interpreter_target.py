"""What tests/test_gpu_kernels.py has Triton's interpreter do, which takes the place of the compiler in a whole process.

`TRITON_INTERPRET=1 python -m tests.interpreter_target FILE` writes all it computes, and what the check says of kernels
that are wrong in one place each.
"""

import math
import sys
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from tests.test_activations import HALVES, LAYOUTS, all_values, neighbours, zero_of
from tests.test_kernels import BETAS, sample
from torch import Tensor

from nodedrop.kernels import gpu, native


@cache
def arguments() -> dict[str, tuple[Tensor, float]]:
    """v and β by name: all exponents and signs, the neighbours of σ's zero, every number of 16 bits, layouts, sizes."""
    special = torch.tensor([math.nan, -math.inf, -1e30, -0.0, 0.0, 1e30, math.inf])
    cases = {}
    for beta in BETAS:
        positive = sample(1e-45, 3e38, 10_007)
        zero = neighbours(max(zero_of(beta), 1e-44), 2000, torch.float32)
        cases[f"float32 {beta:g}"] = (torch.cat([special, positive, -positive, zero]), beta)
    for beta in (2.0, 10.0, 90.0, 1000.0):
        for dtype in HALVES:
            cases[f"{dtype} {beta:g}"] = (torch.cat([special.to(dtype), all_values(dtype)]), beta)
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(4, 5, 8, 6, generator=draw) + 0.5
    for dtype in native.NARROW:
        for name, layout in LAYOUTS.items():
            cases[f"{dtype} {name}"] = (layout(x.to(dtype)), 10.0)
        for count in (1, 7, 1023, 1024, 1025, 3001):
            cases[f"{dtype} of {count}"] = (torch.linspace(-0.5, 2, count).to(dtype), 10.0)
    return cases


def gradients(y: Tensor) -> Tensor:
    """A gradient for every y, laid out in its own way, with NaN and infinity where `special` gives 0."""
    grad = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(y.dtype)
    if y.dim() == 1:
        grad[1:3] = torch.tensor([math.nan, math.inf])[: len(y) - 1]
    return grad.transpose(0, -1).contiguous().transpose(0, -1) if y.dim() > 1 else grad


def interpret(file: Path) -> None:
    found: dict[str, Any] = {}
    correct_interpreter()
    ours = gpu.Kernels()
    for name, (v, beta) in arguments().items():
        gpu.BLOCK = 1024 if v.numel() < 10_000 else 1 << 16
        y = ours.forward(v, beta)
        found[name] = (y, ours.backward(gradients(y), y, beta))
    gpu.BLOCK = 1024
    torch.save({"values": found, "verdicts": verdicts(file.parent)}, file)


def correct_interpreter() -> None:
    """Make it round as cards do: numbers among the arguments, fused multiply-adds, and bfloat16, which it cuts off."""
    import triton.language as tl
    from triton.runtime import interpreter

    handle, builder, convert = interpreter.TensorHandle, interpreter.InterpreterBuilder, interpreter._implicit_cvt
    cast = builder.cast_impl

    def argument(x: Any) -> Any:
        if isinstance(x, float):
            return tl.tensor(handle(np.array([x], dtype=np.float32), tl.float32), tl.float32)
        return convert(x)

    def fused(self: Any, x: Any, y: Any, z: Any) -> Any:
        with np.errstate(over="ignore", invalid="ignore"):
            return handle((x.data.astype(np.float64) * y.data + z.data).astype(np.float32), z.dtype.scalar)

    def rounded(self: Any, x: Any, kind: Any) -> Any:
        if (x.dtype.scalar, kind.scalar) == (tl.float32, tl.bfloat16):
            bits = torch.from_numpy(np.atleast_1d(x.data)).bfloat16().view(torch.int16).numpy()
            return handle(bits.view(np.uint16), kind.scalar)
        if (x.dtype.scalar, kind.scalar) == (tl.bfloat16, tl.float32):
            return handle((x.data.astype(np.uint32) << 16).view(np.float32), kind.scalar)
        return cast(self, x, kind)

    interpreter._implicit_cvt, builder.create_fma, builder.cast_impl = argument, fused, rounded


def verdicts(folder: Path) -> dict[str, str]:
    """The status of a card that computes with the source as it is, and with one flaw at a time."""
    from triton.runtime import interpreter

    from nodedrop.kernels import fused

    source = Path(str(fused.__file__)).read_text(encoding="utf-8")
    flaws = {
        "none": ("", ""),
        "a wrong constant": ("0.3333674", "0.3334674"),
        "a slope at 0": ("value <= 0", "value < 0"),
        "values above 1": ("_at_most(1.0, _at_least(0.0, value))", "(_at_least(0.0, value) * 1.0000005)"),
        "half precision cut off": ("value)).to(y.dtype.element_ty", "value)).to(y.dtype.element_ty, 'rtz'"),
    }
    said = {}
    for flaw, (right, wrong) in flaws.items():
        assert right in source
        said[flaw] = status_of(changed(folder / f"{flaw}.py", source.replace(right, wrong)))
    divide = interpreter.InterpreterBuilder.create_precise_divf

    def flushing(self: Any, x: Any, y: Any) -> Any:
        quotient = divide(self, x, y)
        quotient.data[np.abs(quotient.data) < np.finfo(np.float32).tiny] = 0
        return quotient

    interpreter.InterpreterBuilder.create_precise_divf = flushing
    said["subnormal numbers flushed"] = status_of(fused)
    return said


def changed(file: Path, source: str) -> ModuleType:
    file.write_text(source, encoding="utf-8")
    spec = spec_from_file_location("changed", file)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def status_of(source: ModuleType) -> str:
    ours = gpu.Kernels()
    ours._forward, ours._backward = source.forward, source.backward
    original, gpu.Kernels = gpu.Kernels, lambda: ours  # type: ignore[misc, assignment]
    try:
        return str(gpu._tried(torch.device("cpu"))[1])
    finally:
        gpu.Kernels = original  # type: ignore[misc]


if __name__ == "__main__":
    interpret(Path(sys.argv[1]))
