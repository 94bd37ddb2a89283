"""The kernels for GPUs, without one: run by an interpreter, compiled for cards elsewhere, dispatched to as fakes."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock
from tests.interpreter_target import arguments, gradients
from tests.test_kernels import in_ulps
from torch import Tensor

from nodedrop import kernels
from nodedrop.activations import SOFT_CLAMPED_RELU_ULPS, soft_clamped_relu
from nodedrop.kernels import check, eager, gpu, native
from nodedrop.kernels.build import BuildError

ROOT = Path(__file__).parents[1]
CPU = torch.device("cpu")
# Where the processor has fused multiply-adds, the C source computes with the same operations in the same order.
SAME_BITS = native.load()[0] is not None and torch.backends.cpu.get_cpu_capability() != "DEFAULT"
needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="no Triton")
needs_card = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the interpreter computes, once for all workers."""
    base = tmp_path_factory.getbasetemp()
    top = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "interpreted"
    file = top / "found.pt"
    with FileLock(f"{top}.lock"):
        if not file.exists():
            top.mkdir(exist_ok=True)
            run = subprocess.run(
                [sys.executable, "-m", "tests.interpreter_target", str(file)],
                cwd=ROOT, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True, check=False,
            )  # fmt: skip
            assert run.returncode == 0, run.stderr
    found: dict[str, Any] = torch.load(file)
    return found


@needs_triton
@pytest.mark.parametrize("name", arguments())
def test_interpreted_it_is_accurate_and_zero_where_the_real_value_is(name: str, interpreted: dict[str, Any]) -> None:
    v, beta = arguments()[name]
    y, _ = interpreted["values"][name]
    real = eager.forward(v.double(), beta)
    assert (y.dtype, y.shape, y.stride()) == (v.dtype, v.shape, torch.empty_like(v).stride())
    assert torch.equal(y.isnan(), v.isnan())
    assert not y[real == 0].any()
    assert not y[v <= 0].any()
    there = ~v.isnan()
    assert bool(((y >= 0) & (y <= 1))[there].all())
    if v.dtype == torch.float32:
        error = in_ulps((y.double() - real).abs(), real)[there & (real > torch.finfo(v.dtype).tiny)]
        assert error.numel() == 0 or float(error.max()) <= 4 <= SOFT_CLAMPED_RELU_ULPS
    else:
        info = torch.finfo(v.dtype)
        torch.testing.assert_close(y.double(), real, rtol=0.51 * info.eps, atol=info.tiny * info.eps, equal_nan=True)


@needs_triton
@pytest.mark.parametrize("name", arguments())
def test_interpreted_the_slope_is_accurate(name: str, interpreted: dict[str, Any]) -> None:
    _, beta = arguments()[name]
    y, slope = interpreted["values"][name]
    grad = gradients(y).double()
    real = torch.where(y <= 0, 0, -torch.expm1(beta * (y.double() - 1)) * grad)
    info = torch.finfo(y.dtype)
    rtol = 4 * info.eps if y.dtype == torch.float32 else 0.51 * info.eps
    assert (slope.dtype, slope.stride()) == (y.dtype, y.stride())
    torch.testing.assert_close(slope.double(), real, rtol=rtol, atol=info.tiny * info.eps, equal_nan=True)
    assert not slope[y == 0].any()


@needs_triton
@pytest.mark.skipif(not SAME_BITS, reason="no C kernels with fused multiply-adds")
@pytest.mark.parametrize("name", arguments())
def test_interpreted_it_gives_the_bits_of_the_c_source(name: str, interpreted: dict[str, Any]) -> None:
    v, beta = arguments()[name]
    y, slope = interpreted["values"][name]
    theirs = kernels.soft_clamped_relu(v, beta)
    torch.testing.assert_close(y, theirs, rtol=0, atol=0, equal_nan=True)
    theirs = kernels.soft_clamped_relu_backward(gradients(y), y, beta)
    torch.testing.assert_close(slope, theirs, rtol=0, atol=0, equal_nan=True)


@needs_triton
def test_the_check_accepts_the_source_and_nothing_that_differs(interpreted: dict[str, Any]) -> None:
    said = dict(interpreted["verdicts"])
    assert said.pop("none").startswith("compiled kernels: Triton ")
    for flaw, words in said.items():
        assert words.startswith("torch operators only: "), flaw
        assert words.endswith("does not compute what torch does"), flaw


TARGETS = {"Ampere": ("cuda", 80, 32), "Hopper": ("cuda", 90, 32)}
KINDS = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
ROUNDED = ("add", "sub", "mul", "fma", "div")
FMAS = {"forward": 11, "backward": 6}  # of each value, as in the C source


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., dict[str, Any]]]:
    """Compiles a function for a card that need not be there, and gives all stages."""
    triton = pytest.importorskip("triton")
    from triton.backends.compiler import GPUTarget

    from nodedrop.kernels import fused

    def compile_for(name: str, kind: str, target: tuple[str, Any, int]) -> dict[str, Any]:
        function = getattr(fused, name)
        *rest, block = function.arg_names
        pointers = [x for x in rest if x in ("v", "y", "grad", "out")]
        signature = {x: f"*{kind}" if x in pointers else "i64" if x == "count" else "fp32" for x in rest}
        source = triton.compiler.ASTSource(function, {**signature, block: "constexpr"}, {block: gpu.BLOCK})
        stages: dict[str, Any] = triton.compile(source, target=GPUTarget(*target), options=gpu._OPTIONS).asm
        return stages

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
        yield compile_for


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FMAS)
def test_compiled_every_operation_is_the_exact_one(
    name: str, kind: str, target: str, compiled: Callable[..., dict[str, Any]]
) -> None:
    stages = compiled(name, kind, TARGETS[target])
    assert stages["cubin"]
    operations = re.findall(r"^\s*(?:@%p\d+ )?(\w+)\.([\w.]*f32)\b", stages["ptx"], re.MULTILINE)
    each = gpu.BLOCK // 128
    assert operations.count(("fma", "rn.f32")) == FMAS[name] * each
    assert operations.count(("div", "rn.f32")) == (each if name == "forward" else 0)
    # With its rounding spelt out, an addition or a product is not fused with another.
    assert {how for what, how in operations if what in ROUNDED} == {"rn.f32"}
    assert {how for what, how in operations if what in ("min", "max")} == {"NaN.f32"}
    assert {what for what, _ in operations} <= {*ROUNDED, "min", "max", "neg", "setp", "selp", "cvt"}
    assert not re.search(r"ftz|approx|\.full", stages["ptx"])


def test_compiled_for_amd_cards_it_divides_exactly_and_keeps_subnormals(
    compiled: Callable[..., dict[str, Any]],
) -> None:
    for name in FMAS:
        assembly = compiled(name, "fp32", ("hip", "gfx942", 64))["amdgcn"]
        assert (name == "forward") == ("v_div_fixup_f32" in assembly)
        assert ".amdhsa_float_denorm_mode_32 3" in assembly


@pytest.mark.parametrize("name", FMAS)
def test_compiled_places_are_counted_beyond_2_to_the_31(name: str, compiled: Callable[..., dict[str, Any]]) -> None:
    text = compiled(name, "fp16", TARGETS["Ampere"])["ttir"]
    assert re.findall(r"arith\.muli .*: (\w+) ", text) == ["i64"]
    assert set(re.findall(r"tt\.addptr .*, tensor<1024x(\w+)>", text)) == {"i64"}


class Card(Tensor):
    """A tensor on the CPU that says it lies on a GPU."""

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return True

    @property
    def is_cpu(self) -> bool:  # type: ignore[override]
        return False

    def get_device(self) -> int:
        return 0


def on_card(x: Tensor) -> Tensor:
    return x.as_subclass(Card)


class Fake:
    """Kernels that tell when they are called; wrong, or failing on a launch, if asked."""

    version = "0"

    def __init__(self, *, error: Exception | None = None, factor: float = 1.0) -> None:
        self.calls: list[str] = []
        self.error, self.factor = error, factor

    def _computed(self, name: str, *inputs: Tensor, beta: float) -> Tensor:
        self.calls.append(name)
        if self.error is not None:
            raise self.error
        wide = (x.as_subclass(Tensor).double() for x in inputs)
        y: Tensor = getattr(eager, name)(*wide, beta)
        return (y * self.factor).to(inputs[-1].dtype)

    def forward(self, v: Tensor, beta: float) -> Tensor:
        return self._computed("forward", v, beta=beta)

    def backward(self, grad: Tensor, y: Tensor, beta: float) -> Tensor:
        return self._computed("backward", grad, y, beta=beta)


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """No card tried yet, the CPU in the place of all of them, and no CUDA graph being recorded."""
    tried = gpu._tried
    monkeypatch.setattr(gpu, "_tried", lambda device: tried(CPU))
    monkeypatch.setattr(gpu, "_loaded", {})
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.delenv("NODEDROP_NATIVE", raising=False)
    return monkeypatch


def both(v: Tensor, beta: float = 10.0) -> tuple[Tensor, Tensor]:
    """Forward and backward as a card's tensors take them."""
    y = kernels.soft_clamped_relu(on_card(v), beta)
    slope = kernels.soft_clamped_relu_backward(on_card(torch.ones_like(v)), on_card(y), beta)
    return y.as_subclass(Tensor), slope.as_subclass(Tensor)


def expected(v: Tensor, beta: float = 10.0) -> tuple[Tensor, Tensor]:
    y = eager.blockwise(eager.forward, beta, v)
    return y, eager.blockwise(eager.backward, beta, torch.ones_like(v), y)


def test_a_card_is_compared_once_and_then_serves(fresh: pytest.MonkeyPatch) -> None:
    fake = Fake()
    fresh.setattr(gpu, "Kernels", lambda: fake)
    both(torch.rand(5))
    compared = len(fake.calls) - 2
    assert compared == 2 * len(native.NARROW) * len(check._BETAS)
    both(torch.rand(5))
    assert fake.calls[compared:] == ["forward", "backward"] * 2
    assert gpu.load(0)[1] == native.Status(True, True, "Triton 0")


@pytest.mark.parametrize(
    ("dtype", "beta", "served"),
    [
        (torch.float32, 10.0, True),
        (torch.float16, 2.0, True),
        (torch.bfloat16, 1e6, True),
        (torch.float64, 10.0, False),
        (torch.float32, 1.99, False),
    ],
)
def test_dtype_and_beta_decide(dtype: torch.dtype, beta: float, served: bool, fresh: pytest.MonkeyPatch) -> None:
    fake = Fake()
    fresh.setattr(gpu, "Kernels", lambda: fake)
    v = torch.linspace(-1, 3, 50).to(dtype)
    for ours, theirs in zip(both(v, beta), expected(v, beta), strict=True):
        torch.testing.assert_close(ours, theirs)
    assert bool(fake.calls) is served


@pytest.mark.parametrize(
    ("fake", "reason"),
    [
        (Fake(factor=1 + 1e-5), "Triton 0 does not compute what torch does"),
        (Fake(error=BuildError("RuntimeError: no assembler")), "RuntimeError: no assembler"),
    ],
    ids=["wrong", "failing"],
)
def test_a_card_that_is_wrong_or_fails_leaves_it_to_torch(
    fake: Fake, reason: str, fresh: pytest.MonkeyPatch
) -> None:
    fresh.setattr(gpu, "Kernels", lambda: fake)
    v = torch.linspace(-1, 3, 50)
    for _ in range(2):
        for ours, theirs in zip(both(v), expected(v), strict=True):
            assert torch.equal(ours, theirs)
    assert gpu.load(0) == (None, native.Status(False, False, reason))


def test_a_launch_that_fails_later_is_the_last(fresh: pytest.MonkeyPatch) -> None:
    fake = Fake()
    fresh.setattr(gpu, "Kernels", lambda: fake)
    both(torch.rand(5))
    fake.error = BuildError("PermissionError: ptxas")
    v = torch.linspace(-1, 3, 50)
    for ours, theirs in zip(both(v), expected(v), strict=True):
        assert torch.equal(ours, theirs)
    assert fake.calls[-1] == "forward"
    assert gpu.load(0) == (None, native.Status(False, False, "PermissionError: ptxas"))


def test_a_gradient_of_another_shape_is_an_error_and_not_the_last_launch(fresh: pytest.MonkeyPatch) -> None:
    class Copying(Fake):
        def backward(self, grad: Tensor, y: Tensor, beta: float) -> Tensor:
            eager.alike(torch.empty_like(y), grad, y)
            return super().backward(grad, y, beta)

    fresh.setattr(gpu, "Kernels", Copying)
    with pytest.raises(RuntimeError):
        kernels.soft_clamped_relu_backward(on_card(torch.rand(7)), on_card(torch.rand(5)), 10.0)
    assert gpu.load(0)[0] is not None


def test_while_a_graph_is_recorded_a_card_is_not_tried(fresh: pytest.MonkeyPatch) -> None:
    fake = Fake()
    fresh.setattr(gpu, "Kernels", lambda: fake)
    fresh.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    both(torch.rand(5))
    assert (fake.calls, gpu._loaded) == ([], {})
    gpu.load(0)
    fake.calls.clear()
    both(torch.rand(5))
    assert fake.calls == ["forward", "backward"]


@pytest.mark.parametrize("cause", ["turned off", "no Triton", "no card"])
def test_torch_operators_take_over(cause: str, fresh: pytest.MonkeyPatch) -> None:
    if cause == "turned off":
        fresh.setenv("NODEDROP_NATIVE", "0")
        reason = "turned off by NODEDROP_NATIVE=0"
    elif cause == "no Triton":
        fresh.delitem(sys.modules, "nodedrop.kernels.fused", raising=False)
        fresh.delattr(kernels, "fused", raising=False)
        fresh.setitem(sys.modules, "triton", None)
        reason = "pip install 'nodedrop[gpu]'"
    else:
        pytest.importorskip("triton")
        reason = "Error: "  # the driver's, of which there is none
    v = torch.linspace(-1, 3, 50)
    for ours, theirs in zip(both(v), expected(v), strict=True):
        assert torch.equal(ours, theirs)
    status = gpu.load(0)[1]
    assert not status.native
    assert reason in status.detail


def test_status_tells_of_every_card(fresh: pytest.MonkeyPatch) -> None:
    assert kernels.status().gpus == tuple(gpu.load(k)[1] for k in range(torch.cuda.device_count()))
    fresh.setattr(torch.cuda, "device_count", lambda: 2)
    fresh.setattr(gpu, "_loaded", {0: (None, native.Status(True, True, "Triton 0"))})
    fresh.setattr(gpu, "Kernels", lambda: Fake(error=BuildError("RuntimeError: too old")))
    status = kernels.status()
    assert status.native == native.load()[1].native
    assert str(status) == (
        f"{native.load()[1]}; cuda:0 compiled kernels: Triton 0; cuda:1 torch operators only: RuntimeError: too old"
    )


def test_tensors_on_the_cpu_never_get_there(fresh: pytest.MonkeyPatch) -> None:
    fresh.setattr(gpu, "attempt", lambda *args: pytest.fail("asked for a GPU"))
    for dtype in (*native.NARROW, torch.float64):
        v = torch.rand(5, dtype=dtype, requires_grad=True)
        soft_clamped_relu(v).sum().backward()


def test_neither_import_nor_use_on_the_cpu_imports_triton() -> None:
    code = (
        "import json, sys, torch, nodedrop; from nodedrop.activations import soft_clamped_relu as f;"
        "f(torch.rand(3, requires_grad=True)).sum().backward(); print(json.dumps('triton' in sys.modules))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(run.stdout) is False


@needs_card
@needs_triton
def test_a_card_gives_what_the_torch_operators_give() -> None:
    ours, status = gpu.load(0)
    assert ours is not None, str(status)
    for v, beta in arguments().values():
        y, grad, info = ours.forward(v.cuda(), beta), gradients(v), torch.finfo(v.dtype)
        slope = ours.backward(grad.cuda(), y, beta).cpu().double()
        real = eager.forward(v.double(), beta)
        allowed = {"rtol": SOFT_CLAMPED_RELU_ULPS * info.eps, "atol": info.tiny, "equal_nan": True}
        torch.testing.assert_close(y.cpu().double(), real, **allowed)
        torch.testing.assert_close(slope, eager.backward(grad.double(), y.cpu().double(), beta), **allowed)
        assert not y.cpu()[real == 0].any()
