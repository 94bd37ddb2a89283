"""SoftClampedReLU and ClampedReLU: exact zeros, never above 1, accurate and ordered in every dtype."""

import copy
import math
from collections.abc import Callable
from decimal import Context, Decimal
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.autograd import forward_ad

from nodedrop.activations import (
    SOFT_CLAMPED_RELU_ULPS,
    ClampedReLU,
    SoftClampedReLU,
    clamped_relu,
    soft_clamped_relu,
)
from nodedrop.errors import InputError
from nodedrop.kernels import eager, native

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
HALVES = [torch.float16, torch.bfloat16]
BETAS = [0.001, 0.5, 1.0, 1.5, 3.0, 10.0, 60.0, 90.0, 1000.0, 1e6]
BITS = {torch.float16: torch.int16, torch.bfloat16: torch.int16, torch.float32: torch.int32}
OPERATOR = torch.ops.nodedrop.soft_clamped_relu.default


@pytest.fixture(autouse=True, params=["compiled", "torch"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Everything here holds for the compiled kernels and for the torch operators that stand in for them."""
    loaded, status = native.load()
    if request.param == "torch":
        monkeypatch.setattr(native, "load", lambda: (None, status))
    elif loaded is None:
        pytest.skip(str(status))
    torch.manual_seed(0)
    return str(request.param)


@cache
def real_value(v: float, beta: float) -> Decimal:
    """σ(v) with digits to spare, from e^{−βσ} = e^{−β} + e^{−βv}."""
    real = Context(prec=80 + int(min(beta, 800) / 2))
    minus_beta = Decimal(-beta)
    total = real.add(real.exp(minus_beta), real.exp(real.multiply(minus_beta, Decimal(v))))
    return max(Decimal(0), real.divide(real.ln(total), minus_beta))


def spacing(x: float, dtype: torch.dtype) -> Decimal:
    """One ulp of a positive number in a dtype."""
    info = torch.finfo(dtype)
    exponent = math.frexp(max(x, info.tiny))[1] - 1
    return Decimal(info.eps) * Decimal(2) ** exponent


def zero_of(beta: float) -> float:
    """Where σ leaves 0."""
    return -math.log1p(-math.exp(-beta)) / beta if beta < 700 else 0.0


def probes(beta: float, dtype: torch.dtype) -> Tensor:
    """Points all over the rise, dense around the zero, around 1 and towards 0."""
    draw = torch.Generator().manual_seed(0)
    zero = zero_of(beta)
    fraction = torch.rand(40, generator=draw, dtype=torch.float64)
    points = torch.cat(
        [
            3 * fraction,
            0.9 + 0.2 * fraction,
            zero * (1 + 10 ** (-16 * fraction)),
            zero * (1 - 10 ** (-16 * fraction)),
            zero + fraction * 30 / beta,
            10 ** (-30 * fraction),
        ]
    )
    return points.to(dtype)


def neighbours(centre: float, count: int, dtype: torch.dtype) -> Tensor:
    """Consecutive floats around a positive number."""
    bits = int(torch.tensor(centre, dtype=dtype).view(BITS[dtype]))
    return torch.arange(max(bits - count, 0), bits + count, dtype=torch.int32).to(BITS[dtype]).view(dtype)


def all_values(dtype: torch.dtype) -> Tensor:
    """Every number of a 16-bit dtype in order."""
    values = torch.arange(1 << 16).to(torch.int16).view(dtype)
    return values[~values.isnan()].double().sort().values.to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("beta", BETAS)
def test_is_exactly_zero_for_all_that_is_not_positive(beta: float, dtype: torch.dtype) -> None:
    tiny = torch.finfo(dtype).smallest_normal
    v = torch.tensor([0.0, -0.0, -tiny, -1e-30, -1e-9, -0.1, -1.0, -20.0, -1e4, -1e30, -math.inf]).to(dtype)
    assert soft_clamped_relu(v, beta).tolist() == [0.0] * len(v)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("beta", BETAS)
def test_stays_within_0_and_1_up_to_infinity(beta: float, dtype: torch.dtype) -> None:
    powers = 10 ** torch.linspace(-40, 38, 400, dtype=torch.float64)
    v = torch.cat([powers, probes(beta, torch.float64), torch.tensor([1e30, math.inf])]).to(dtype)
    y = soft_clamped_relu(v, beta)
    assert y.dtype == dtype
    assert bool(((y >= 0) & (y <= 1)).all())
    assert float(y[-1]) == pytest.approx(1, abs=4 * torch.finfo(dtype).eps)


def test_passes_nan_on() -> None:
    for beta in BETAS:
        assert bool(soft_clamped_relu(torch.tensor([math.nan]), beta).isnan().all())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("beta", BETAS)
def test_is_accurate_to_a_few_ulps_and_zero_where_the_real_value_is(beta: float, dtype: torch.dtype) -> None:
    v = probes(beta, dtype)
    limit = 2 if beta == 10.0 else SOFT_CLAMPED_RELU_ULPS
    for point, computed in zip(v.tolist(), soft_clamped_relu(v, beta).tolist(), strict=True):
        real = real_value(point, beta)
        if real == 0:
            assert computed == 0, f"σ({point!r}) is 0, computed {computed!r}"
        error = abs(Decimal(computed) - real) / spacing(float(real), dtype)
        assert error <= limit, f"σ({point!r}) is off by {float(error):.1f} ulps"


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("beta", BETAS)
def test_every_half_precision_number_is_rounded_right_and_in_order(beta: float, dtype: torch.dtype) -> None:
    v = all_values(dtype)
    y = soft_clamped_relu(v, beta)
    exact = soft_clamped_relu(v.double(), beta)
    assert bool((y.double().diff() >= 0).all())
    assert float((y == exact.to(dtype)).double().mean()) > 0.999
    torch.testing.assert_close(y.double(), exact, rtol=0.51 * torch.finfo(dtype).eps, atol=2**-24)


def fall_in_ulps(beta: float, kernel: str) -> int:
    """By how much a larger argument may give a smaller value; the compiled kernel is in order for the usual β."""
    if kernel == "compiled" and beta >= 2:
        return 0 if beta == 10 else 2
    return 0 if torch.backends.mkl.is_available() else 2 * SOFT_CLAMPED_RELU_ULPS


@pytest.mark.parametrize("beta", [1.0, 3.0, 10.0, 60.0])
@pytest.mark.parametrize("centre", [None, 1e-5, 1e-3, 0.05, 0.25, 0.5, 0.93, 1.0, 1.3, 2.0, 2.6])
def test_float32_hardly_falls_between_neighbours(beta: float, centre: float | None, kernel: str) -> None:
    v = neighbours(centre or zero_of(beta), 30_000, torch.float32)
    y = soft_clamped_relu(v, beta).double()
    fall = float((-y.diff()).max())
    assert fall <= fall_in_ulps(beta, kernel) * torch.finfo(torch.float32).eps * float(y.max())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("beta", BETAS)
def test_hardly_falls_over_a_dense_grid(beta: float, dtype: torch.dtype, kernel: str) -> None:
    zero = zero_of(beta)
    rise = torch.linspace(0, max(zero, 1) + 40 / beta, 200_000, dtype=torch.float64)
    powers = 10 ** torch.linspace(-40, 30, 50_000, dtype=torch.float64)
    y = soft_clamped_relu(torch.cat([rise, powers]).sort().values.to(dtype), beta)
    slack = fall_in_ulps(beta, kernel if dtype == torch.float32 else "torch")
    assert float((-y.diff()).max()) <= slack * torch.finfo(dtype).eps


@given(st.floats(width=32, allow_nan=False), st.floats(width=32, allow_nan=False), st.floats(1, 100))
def test_keeps_order_and_stays_below_clamped_relu(u: float, v: float, beta: float) -> None:
    low, high = soft_clamped_relu(torch.tensor([min(u, v), max(u, v)]), beta)
    slack = 1 + 2 * SOFT_CLAMPED_RELU_ULPS * torch.finfo(torch.float32).eps
    assert float(low) <= float(high) * slack
    assert float(high) <= float(clamped_relu(torch.tensor(max(u, v)))) * slack


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_value_does_not_depend_on_its_place(
    dtype: torch.dtype, kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eager, "BLOCK", 64)
    for shape in [(1000,), (3, 5, 7, 11), (17, 1, 9)]:
        v = torch.randn(shape).to(dtype)
        whole = soft_clamped_relu(v)
        alone = torch.stack([soft_clamped_relu(x) for x in v.flatten()[:80]])
        exact = torch.backends.mkl.is_available() or (kernel == "compiled" and dtype != torch.float64)
        slack = 0 if exact else SOFT_CLAMPED_RELU_ULPS
        torch.testing.assert_close(whole.flatten()[:80], alone, rtol=slack * torch.finfo(dtype).eps, atol=0)


LAYOUTS = {
    "contiguous": lambda x: x,
    "channels last": lambda x: x.to(memory_format=torch.channels_last),
    "transposed": lambda x: x.transpose(0, 3),
    "strided": lambda x: x[:, :, ::2],
    "expanded": lambda x: x[:, :1].expand(-1, 5, -1, -1),
    "empty": lambda x: x[:0],
    "scalar": lambda x: x[0, 0, 0, 0],
}


@pytest.mark.parametrize("block", [64, 1 << 17])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_memory_layout_gives_the_same_values_and_gradients(
    layout: str, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eager, "BLOCK", block)
    v = LAYOUTS[layout](torch.randn(4, 5, 8, 6, dtype=torch.float64)).requires_grad_()
    y = soft_clamped_relu(v)
    assert y.stride() == torch.empty_like(v).stride()
    outer = torch.randn(y.shape, dtype=torch.float64)
    (grad,) = torch.autograd.grad(y, v, outer)
    plain = v.detach().clone().contiguous().requires_grad_()
    expected = torch.relu(1 + nn.functional.logsigmoid(10 * (plain - 1)) / 10)
    torch.testing.assert_close(y, expected, rtol=0, atol=1e-14)
    torch.testing.assert_close(grad, torch.autograd.grad(expected, plain, outer)[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("layout", ["contiguous", "channels last", "transposed"])
def test_dense_tensors_are_computed_block_by_block(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def measured(v: Tensor, *rest: Any) -> Tensor:
        sizes.append(v.numel())
        return evaluate(v, *rest)

    evaluate = eager.forward
    monkeypatch.setattr(eager, "BLOCK", 16)
    monkeypatch.setattr(eager, "forward", measured)
    v = LAYOUTS[layout](torch.randn(4, 5, 8, 6, dtype=torch.float64))
    soft_clamped_relu(v)
    assert sum(sizes) == v.numel()
    assert max(sizes) <= 16 * torch.get_num_threads()


@pytest.mark.parametrize("beta", [0.5, 2.0, 10.0, 60.0])
def test_gradients_of_first_and_second_order(beta: float) -> None:
    zero = zero_of(beta)
    v = torch.linspace(-2, max(zero, 1) + 2, 41, dtype=torch.float64)
    v = v[(v - zero).abs() > 1e-3].requires_grad_()
    assert torch.autograd.gradcheck(lambda x: soft_clamped_relu(x, beta), v)
    assert torch.autograd.gradgradcheck(lambda x: soft_clamped_relu(x, beta), v)


@pytest.mark.parametrize("dtype", DTYPES)
def test_slope_follows_from_the_output(dtype: torch.dtype) -> None:
    v = torch.linspace(-1, 4, 301).to(dtype).requires_grad_()
    y = soft_clamped_relu(v)
    (slope,) = torch.autograd.grad(y.sum(), v)
    expected = torch.where(y > 0, -torch.expm1(-10 * (1 - y.double())), 0)
    assert slope.dtype == dtype
    torch.testing.assert_close(slope.double(), expected, rtol=0, atol=torch.finfo(dtype).eps)


def test_no_gradient_enters_where_the_output_is_zero() -> None:
    v = torch.tensor([-1.0, 0.0, 1e-6], requires_grad=True)
    outer = torch.tensor([math.inf, math.nan, 1.0])
    (grad,) = torch.autograd.grad(soft_clamped_relu(v), v, outer)
    assert grad.tolist() == [0.0, 0.0, 0.0]


def test_backward_keeps_the_output_alone() -> None:
    kept: list[Tensor] = []

    def pack(x: Tensor) -> Tensor:
        kept.append(x)
        return x

    v = torch.randn(50, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        y = soft_clamped_relu(v)
    assert [x.data_ptr() for x in kept] == [y.data_ptr()]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_operator_is_registered_as_torch_expects(layout: str) -> None:
    v = LAYOUTS[layout](torch.randn(4, 5, 8, 6)).detach().requires_grad_()
    torch.library.opcheck(OPERATOR, (v, 10.0))


def test_export_shows_one_node_each() -> None:
    model = nn.Sequential(nn.Linear(3, 4), SoftClampedReLU(5.0), nn.Linear(4, 2), ClampedReLU())
    program = torch.export.export(model, (torch.rand(2, 3),), strict=False).run_decompositions({})
    calls = [node for node in program.graph.nodes if node.op == "call_function"]
    linear = torch.ops.aten.linear.default
    assert [node.target for node in calls] == [linear, OPERATOR, linear, torch.ops.aten.hardtanh.default]
    assert calls[1].args[1] == 5.0
    x = torch.rand(7, 3)[:2]
    torch.testing.assert_close(program.module()(x), model(x), rtol=0, atol=0)


def test_compiled_model_gives_the_same_gradients() -> None:
    model = nn.Sequential(nn.Linear(3, 4), SoftClampedReLU(), nn.Linear(4, 2))
    twin = copy.deepcopy(model)
    x = torch.rand(5, 3)
    torch.compile(model, backend="aot_eager", fullgraph=True)(x).sum().backward()
    twin(x).sum().backward()
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


def test_vmap_maps_over_any_axis() -> None:
    v = torch.randn(3, 4, 5)
    for axis in range(3):
        mapped = torch.vmap(soft_clamped_relu, in_dims=axis, out_dims=axis)(v)
        torch.testing.assert_close(mapped, soft_clamped_relu(v), rtol=0, atol=0)
    backward = torch.ops.nodedrop.soft_clamped_relu_backward
    y, outer = soft_clamped_relu(v), torch.randn(3, 5)
    mapped = torch.vmap(lambda g, x: backward(g, x, 10.0), in_dims=(None, 1), out_dims=1)(outer, y)
    expected = backward(outer[:, None].expand(3, 4, 5), y, 10.0)
    torch.testing.assert_close(mapped, expected, rtol=0, atol=0)


def test_works_on_the_meta_device() -> None:
    assert SoftClampedReLU()(torch.empty(2, 3, device="meta")).shape == (2, 3)


@pytest.mark.parametrize("dtype", DTYPES)
def test_clamped_relu_clamps_with_no_slope_at_its_ends(dtype: torch.dtype) -> None:
    v = torch.tensor([-1e30, -1.0, 0.0, 0.25, 1.0, 3.0, 1e30, math.nan]).to(dtype).requires_grad_()
    y = clamped_relu(v)
    assert y.tolist()[:-1] == [0.0, 0.0, 0.0, 0.25, 1.0, 1.0, 1.0]
    assert math.isnan(y.tolist()[-1])
    (slope,) = torch.autograd.grad(y[:-1].sum(), v)
    assert slope.tolist()[:-1] == [0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0]


def test_modules_print_copy_and_own_no_parameters() -> None:
    model = nn.Sequential(SoftClampedReLU(), SoftClampedReLU(beta=2.5), ClampedReLU())
    assert [repr(layer) for layer in model] == [
        "SoftClampedReLU(beta=10)",
        "SoftClampedReLU(beta=2.5)",
        "ClampedReLU()",
    ]
    assert model.state_dict() == {}
    assert copy.deepcopy(model)[1].beta == 2.5


@pytest.mark.parametrize("beta", [0.0, -1.0, math.nan, math.inf, 1e7, 1e-4])
def test_beta_out_of_range_is_refused(beta: float) -> None:
    for attempt in (lambda: SoftClampedReLU(beta), lambda: soft_clamped_relu(torch.zeros(1), beta)):
        with pytest.raises(InputError, match=r"beta must lie between 0\.001 and 1000000"):
            attempt()


def test_integers_are_refused() -> None:
    with pytest.raises(InputError, match=r"floating-point tensor, got torch\.int64"):
        soft_clamped_relu(torch.arange(3))


def _tangent(f: Callable[[Tensor], Tensor], v: Tensor) -> Tensor:
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(f(forward_ad.make_dual(v, torch.ones_like(v)))).tangent


WAYS: dict[str, Callable[[Callable[[Tensor], Tensor], Tensor], Tensor]] = {
    "jvp": lambda f, v: torch.func.jvp(f, (v,), (torch.ones_like(v),))[1],
    "dual": _tangent,
    "dual that requires gradients": lambda f, v: _tangent(f, v.clone().requires_grad_()).detach(),
    "jacfwd": lambda f, v: torch.func.jacfwd(f)(v).sum(0),
    "jacrev": lambda f, v: torch.func.jacrev(f)(v).sum(0),
    "for each sample": lambda f, v: torch.vmap(torch.func.grad(f))(v),
    "hessian": lambda f, v: torch.func.hessian(lambda x: f(x).square().sum())(v).diag(),
    "backward": lambda f, v: torch.autograd.functional.jacobian(f, v).sum(0),
}


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # torch's own, of old rules
@pytest.mark.parametrize("way", WAYS)
def test_every_kind_of_derivative_is_that_of_the_formula(way: str) -> None:
    v = torch.tensor([-1.0, 0.2, 0.7, 1.0, 1.4, 3.0], dtype=torch.float64)
    formula = WAYS[way](lambda v: torch.relu(1 - nn.functional.softplus(1 - v, beta=10.0)), v)
    assert formula.abs().max() > 0.9
    torch.testing.assert_close(WAYS[way](soft_clamped_relu, v), formula, atol=1e-9, rtol=1e-6)
    torch.testing.assert_close(WAYS[way](soft_clamped_relu, v.float()), formula.float(), atol=1e-4, rtol=1e-4)
