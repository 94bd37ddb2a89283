"""The compiled kernels: right for every exponent, the same at every place, and dispensable."""

import math
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

import nodedrop
from nodedrop import kernels
from nodedrop.activations import SOFT_CLAMPED_RELU_ULPS, soft_clamped_relu
from nodedrop.kernels import build, eager, native

BETAS = [2.0, 2.7, 5.0, 10.0, 19.9, 20.0, 60.0, 84.7, 84.9, 90.0, 1000.0, 1e6]
COMPILED = native.load()[0]
needs_compiler = pytest.mark.skipif(COMPILED is None, reason=str(kernels.status()))


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache, and a process that has not loaded anything yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("NODEDROP_NATIVE", raising=False)
    native.load.cache_clear()
    yield tmp_path / "nodedrop"
    native.load.cache_clear()


def compiled() -> native.Kernels:
    assert COMPILED is not None
    return COMPILED


def sample(lowest: float, highest: float, step: int = 1009) -> Tensor:
    """Every `step`-th float32 between two positive numbers."""
    ends = torch.tensor([lowest, highest]).view(torch.int32).tolist()
    return torch.arange(ends[0], ends[1], step, dtype=torch.int32).view(torch.float32)


def in_ulps(error: Tensor, real: Tensor) -> Tensor:
    exponent = torch.frexp(real.clamp(min=torch.finfo(torch.float32).tiny)).exponent
    return error / torch.ldexp(torch.ones_like(real), exponent - 24)


@needs_compiler
@pytest.mark.parametrize("beta", BETAS)
def test_every_exponent_is_accurate_and_nearly_in_order(beta: float) -> None:
    v = sample(1e-45, 3e38)
    y, real = compiled().forward(v, beta), eager.forward(v.double(), beta)
    assert bool((y[real == 0] == 0).all())
    assert bool(((y >= 0) & (y <= 1)).all())
    error = float(in_ulps((y.double() - real).abs(), real).max())
    assert error <= (2 if beta == 10 else 4) <= SOFT_CLAMPED_RELU_ULPS
    falls = in_ulps(-y.double().diff(), real[1:])
    assert float(falls.max()) <= (0 if beta == 10 else 2)
    assert not compiled().forward(-v, beta).any()


@needs_compiler
@pytest.mark.parametrize("beta", BETAS)
def test_slope_is_accurate_however_small(beta: float) -> None:
    y = sample(1e-45, 1.0)
    slope = compiled().backward(torch.ones_like(y), y, beta)
    real = -torch.expm1(beta * (y.double() - 1))
    assert float(in_ulps((slope.double() - real).abs(), real).max()) <= 4
    assert bool(((slope >= 0) & (slope <= 1)).all())


@needs_compiler
@pytest.mark.parametrize("beta", BETAS)
def test_special_values(beta: float) -> None:
    inf, nan = math.inf, math.nan
    v = torch.tensor([nan, -inf, -1e30, -0.0, 0.0, 1e30, inf])
    assert compiled().forward(v, beta).nan_to_num(nan=-1).tolist() == pytest.approx([-1, 0, 0, 0, 0, 1, 1], abs=1e-7)
    y, grad = torch.tensor([0.0, 0.0, 1.0, nan, 0.5]), torch.tensor([nan, inf, 5.0, 1.0, nan])
    assert compiled().backward(grad, y, beta).nan_to_num(nan=-1).tolist() == [0, 0, 0, -1, -1]


@needs_compiler
@pytest.mark.parametrize("beta", [2.5, 10.0, 1000.0])
def test_a_value_depends_on_neither_its_place_nor_the_threads(beta: float) -> None:
    v, grad = torch.randn(70_000) + 0.5, torch.randn(70_000)
    y = compiled().forward(v, beta)
    slope = compiled().backward(grad, y, beta)
    for start, size in [(0, 1), (1, 7), (3, 8), (5, 9), (11, 100), (2, 383), (7, 385), (1, 16_385), (13, 40_001)]:
        part = slice(start, start + size)
        assert torch.equal(compiled().forward(v[part], beta), y[part])
        assert torch.equal(compiled().backward(grad[part], y[part], beta), slope[part])
    threads = torch.get_num_threads()
    try:
        for count in (2, 3):
            torch.set_num_threads(count)
            assert torch.equal(compiled().forward(v, beta), y)
            assert torch.equal(compiled().backward(grad, y, beta), slope)
    finally:
        torch.set_num_threads(threads)


@needs_compiler
def test_a_gradient_laid_out_or_typed_otherwise_is_copied_and_one_of_another_shape_refused() -> None:
    y = torch.rand(4, 3, 5, 6).to(memory_format=torch.channels_last)
    for grad in (torch.randn(4, 3, 5, 6), torch.randn(4, 1, 1, 1).expand(4, 3, 5, 6), torch.randn(4, 3, 5, 6).double()):
        same = torch.empty_like(y).copy_(grad)
        assert torch.equal(compiled().backward(grad, y, 10.0), compiled().backward(same, y, 10.0))
    with pytest.raises(RuntimeError):
        compiled().backward(torch.randn(7), torch.rand(5), 10.0)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_step_allocates_as_much_as_with_relu(layout: torch.memory_format) -> None:
    def allocated(function: object) -> int:
        v = torch.randn(8, 16, 32, 32).to(memory_format=layout).requires_grad_()
        grad = torch.randn(8, 16, 32, 32).to(memory_format=layout)
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
            torch.autograd.grad(function(v), v, grad)  # type: ignore[operator]
        return sum(max(event.self_cpu_memory_usage, 0) for event in record.events())

    soft_clamped_relu(torch.zeros(1))
    if COMPILED is not None:
        assert allocated(soft_clamped_relu) == allocated(torch.relu) == 2 * 8 * 16 * 32 * 32 * 4


@needs_compiler
def test_builds_once_and_leaves_nothing_else_behind(cache: Path) -> None:
    first = kernels.status()
    (library,) = cache.iterdir()
    assert (first.native, first.detail) == (True, str(library))
    assert str(first).startswith("compiled kernels")
    time = library.stat().st_mtime_ns
    native.load.cache_clear()
    assert kernels.status() == first
    assert library.stat().st_mtime_ns == time


@needs_compiler
def test_builders_at_the_same_time_end_with_one_library(cache: Path) -> None:
    with ThreadPoolExecutor(3) as pool:
        paths = {path for _, path in pool.map(build.load, [native.SOURCE] * 3)}
    assert paths == set(cache.iterdir())
    assert len(paths) == 1


def test_import_compiles_nothing(cache: Path) -> None:
    subprocess.run([sys.executable, "-c", "import nodedrop"], check=True)
    assert not cache.exists()


def test_other_options_give_other_libraries(cache: Path) -> None:
    if COMPILED is not None:
        compiler = build._compiler()
        plain = build._built(native.SOURCE, compiler, build._OPTIONS)
        assert plain != build._built(native.SOURCE, compiler, (*build._OPTIONS, "-fopenmp"))


@needs_compiler
def test_without_openmp_or_native_instructions_the_kernels_still_agree(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "_TARGETS", ((),))
    status = kernels.status()
    assert (status.native, status.threads) == (True, False)
    assert "on one thread" in str(status)
    v = torch.randn(10_000)
    torch.testing.assert_close(soft_clamped_relu(v), compiled().forward(v, 10.0), rtol=1e-6, atol=0)


@needs_compiler
@pytest.mark.parametrize("default", [torch.float64, torch.device("meta")], ids=["dtype", "device"])
def test_defaults_of_torch_make_no_difference(default: torch.dtype | torch.device, cache: Path) -> None:
    v = torch.rand(5)
    dtype, device = torch.get_default_dtype(), torch.get_default_device()
    eager.constants.cache_clear()
    native.constants.cache_clear()
    try:
        if isinstance(default, torch.dtype):
            torch.set_default_dtype(default)
        else:
            torch.set_default_device(default)
        assert torch.equal(soft_clamped_relu(v), compiled().forward(v, 10.0))
        assert kernels.status().native
    finally:
        torch.set_default_dtype(dtype)
        torch.set_default_device(None if device.type == "cpu" else device)


def failing_compiler(folder: Path) -> str:
    script = folder / "failing-cc"
    script.write_text("#!/bin/sh\necho 'this compiler is ill' >&2\nexit 1\n")
    script.chmod(0o755)
    return str(script)


@pytest.mark.parametrize("cause", ["turned off", "no compiler", "failing compiler", "no cache", "wrong results"])
def test_torch_operators_take_over(
    cause: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if cause == "turned off":
        monkeypatch.setenv("NODEDROP_NATIVE", "0")
        expected = "turned off by NODEDROP_NATIVE=0"
    elif cause == "no compiler":
        monkeypatch.setenv("CC", "no-such-compiler")
        expected = "no C compiler found (looked for no-such-compiler)"
    elif cause == "failing compiler":
        monkeypatch.setenv("CC", failing_compiler(tmp_path))
        expected = "this compiler is ill"
    elif COMPILED is None:
        pytest.skip(str(kernels.status()))
    elif cause == "no cache":
        cache.write_text("a file in the way")
        expected = "exists"
    else:
        changed = tmp_path / "changed.c"
        changed.write_text(native.SOURCE.read_text().replace("y[i] <= 0.0f", "y[i] < 0.0f"))
        monkeypatch.setattr(native, "SOURCE", changed)
        expected = "does not compute what torch does"
    v = torch.randn(100)
    assert torch.equal(soft_clamped_relu(v), eager.forward(v, 10.0))
    status = kernels.status()
    assert not status.native
    assert expected in status.detail
    assert str(status).startswith("torch operators only: ")


def test_what_the_kernels_do_not_serve() -> None:
    assert native.serving(torch.zeros(1), 1.99) is None
    assert native.serving(torch.zeros(1, dtype=torch.float64), 10.0) is None
    assert native.serving(torch.zeros(1, device="meta"), 10.0) is None
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        assert native.serving(torch.zeros(1, dtype=dtype), 10.0) is native.load()[0]


def test_source_is_part_of_the_package() -> None:
    assert native.SOURCE.is_file()
    assert native.SOURCE.parent == Path(os.path.dirname(nodedrop.__file__)) / "kernels"
