"""The paper's activations: zero for every v ≤ 0, never above 1.

SoftClampedReLU is one operator, `nodedrop::soft_clamped_relu`, so that a traced graph shows a single node and
backward keeps the output alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Context
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .errors import InputError

SOFT_CLAMPED_RELU_ULPS = 8
"""The computed σ(v) lies within this many ulps of the real one however small, and is 0 wherever that is.

Subnormals aside. So the computed function never falls by more than twice as much where the real one rises.
With MKL on x86 it was not seen to fall at all: over all values of float16 and bfloat16, and over all of
float32 for β = 10, where the error is at most 1.5 ulps.
"""

# Values per thread and block: few enough to stay in cache between passes, enough to hide the calls.
_BLOCK = 1 << 17


class _Constants(NamedTuple):
    """σ at its zero v₀ = −log(1−a)/β, a = e^{−β}: v₀ rounded is `zero`, `shift` stands for the remainder."""

    a: float
    one_less_a: float
    zero: float
    shift: float


@lru_cache(maxsize=64)
def _constants(beta: float, dtype: torch.dtype) -> _Constants:
    real = Context(prec=50 + int(beta / 2))  # 1 − a needs log₁₀(e)·β digits before the first that counts
    exact_beta = real.create_decimal_from_float(beta)
    a = real.exp(real.minus(exact_beta))
    one_less_a = real.subtract(1, a)
    v0 = real.divide(real.minus(real.ln(one_less_a)), exact_beta)
    zero = float(torch.tensor(float(v0), dtype=dtype))
    rest = real.subtract(v0, real.create_decimal_from_float(zero))
    shift = real.multiply(real.multiply(exact_beta, rest), one_less_a)
    return _Constants(float(a), float(one_less_a), zero, float(shift))


def _evaluate(v: Tensor, beta: float, out: Tensor | None = None) -> Tensor:
    """σ(v) to a few ulps, by the distance u = v − v₀ from its zero, so that nothing cancels at either end.

    e^{−βv₀} = 1 − a turns `v − log(1+e^{β(v−1)})/β` into `u − log(1 + a·(e^{βu}−1))/β`. Above v = 1 the
    term in u is 1 − v₀ and the exponent that of the mirror point 2 − v. For small β, where a is not small,
    the same is `−log(1 + (1−a)·(e^{−βu}−1))/β`, without a difference to take.
    """
    if beta > math.log(torch.finfo(v.dtype).max) - 4:  # a underflows: v₀ = 0 to this precision
        soft = torch.minimum(2 - v, v).mul_(beta).sub_(beta).exp_().log1p_()
        return torch.clamp(v.clamp(max=1).sub_(soft, alpha=1 / beta), 0, 1, out=out)
    a, one_less_a, zero, shift = _constants(beta, v.dtype)
    u = v - zero
    if beta <= 1:
        inner = u.mul_(-beta).expm1_().mul_(one_less_a).add_(shift)
        return torch.clamp(inner.log1p_().mul_(-1 / beta), 0, 1, out=out)
    soft = torch.rsub(u, 2 - 2 * zero)
    soft = torch.minimum(soft, u, out=soft).mul_(beta).expm1_().mul_(a).add_(shift).log1p_()
    return torch.clamp(u.clamp_(max=1 - zero).sub_(soft, alpha=1 / beta), 0, 1, out=out)


def _propagate(grad: Tensor, y: Tensor, beta: float, out: Tensor | None = None) -> Tensor:
    """grad·σ'(v) from y = σ(v) alone: σ' = 1 − e^{−β(1−y)} where y > 0, else 0."""
    rest = y.sub(1).mul_(beta).exp_()
    product = torch.addcmul(grad, grad, rest, value=-1, out=rest)
    if out is None:
        out = torch.empty_like(product)
    torch.ops.aten.threshold_backward.grad_input(product, y, 0, grad_input=out)
    return out


def _flat(x: Tensor) -> Tensor | None:
    """The values of a dense tensor in memory order, None for one with gaps or overlaps."""
    ordered = x.permute(sorted(range(x.dim()), key=x.stride, reverse=True))
    return ordered.view(-1) if ordered.is_contiguous() else None


def _blockwise(function: Callable[..., Tensor], beta: float, *inputs: Tensor) -> Tensor:
    """Apply an elementwise function of many passes to one block after another; half precision in float32.

    All inputs lie in memory alike.
    """
    dtype, count = inputs[0].dtype, inputs[0].numel()
    wide = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
    block = _BLOCK * torch.get_num_threads()
    parts = [_flat(x) for x in inputs] if inputs[0].is_cpu and count > block else [None]
    dense = [part for part in parts if part is not None]
    if len(dense) < len(inputs):
        return function(*(x.to(wide) for x in inputs), beta).to(dtype)
    out = torch.empty_like(inputs[0])
    target = _flat(out)
    assert target is not None
    for start in range(0, count, block):
        pieces = [part[start : start + block].to(wide) for part in dense]
        if wide == dtype:
            function(*pieces, beta, target[start : start + block])
        else:
            target[start : start + block] = function(*pieces, beta)
    return out


def _forward(v: Tensor, beta: float) -> Tensor:
    return _blockwise(_evaluate, beta, v)


def _backward(grad: Tensor, y: Tensor, beta: float) -> Tensor:
    if grad.stride() != y.stride():
        grad = torch.empty_like(y).copy_(grad)
    return _blockwise(_propagate, beta, grad, y)


def _keep_output(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:
    ctx.beta = inputs[1]
    ctx.save_for_backward(output)


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    (y,) = ctx.saved_tensors
    return torch.ops.nodedrop.soft_clamped_relu_backward.default(grad, y, ctx.beta), None


def _keep_inputs(ctx: Any, inputs: tuple[Tensor, Tensor, float], output: Tensor) -> None:
    ctx.beta = inputs[2]
    ctx.save_for_backward(*inputs[:2])


def _differentiate_backward(ctx: Any, outer: Tensor) -> tuple[Tensor, Tensor, None]:
    grad, y = ctx.saved_tensors
    by_grad = torch.ops.nodedrop.soft_clamped_relu_backward.default(outer, y, ctx.beta)
    by_y = outer * grad * torch.exp(ctx.beta * (y - 1)) * (y > 0) * -ctx.beta
    return by_grad, by_y, None


def _batch(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Tensor, int]:
    """vmap of an elementwise operator: bring the batch axis to the front of every tensor."""
    tensors = [
        x.expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0)
        for x, dim in zip(args[:-1], in_dims[:-1], strict=True)
    ]
    name = "soft_clamped_relu" if len(tensors) == 1 else "soft_clamped_relu_backward"
    return getattr(torch.ops.nodedrop, name)(*tensors, args[-1]), 0


def _register() -> None:
    """Define both operators; a second import of this file finds them in place."""
    if hasattr(torch.ops.nodedrop, "soft_clamped_relu"):
        return
    for name, signature, kernel, keep, differentiate in (
        ("soft_clamped_relu", "(Tensor v, float beta) -> Tensor", _forward, _keep_output, _differentiate),
        (
            "soft_clamped_relu_backward",
            "(Tensor grad, Tensor y, float beta) -> Tensor",
            _backward,
            _keep_inputs,
            _differentiate_backward,
        ),
    ):
        operator = f"nodedrop::{name}"
        torch.library.define(operator, signature)
        torch.library.impl(operator, "default", kernel)
        torch.library.register_fake(operator, lambda *args: torch.empty_like(args[-2]))
        torch.library.register_autograd(operator, differentiate, setup_context=keep)
        torch.library.register_vmap(operator, _batch)


_register()


def _check_beta(beta: float) -> None:
    if not 1e-3 <= beta <= 1e6:
        raise InputError(f"beta must lie between 0.001 and 1000000, got {beta}.")


def soft_clamped_relu(v: Tensor, beta: float = 10.0) -> Tensor:
    """σ(v) = max(0, 1 − log(1 + e^{β(1−v)})/β): zero for v ≤ 0, then rising to 1, never quite flat.

    The slope is taken from the output, `1 − e^{−β(1−y)}`, so training keeps no other tensor. In half
    precision it is as coarse as that output: where y rounds to 1 it is 0.

    >>> soft_clamped_relu(torch.tensor([-1e30, 0.0, 0.5, 1.0, 1e30]))
    tensor([0.0000, 0.0000, 0.4993, 0.9307, 1.0000])
    """
    _check_beta(beta)
    if not v.is_floating_point():
        raise InputError(f"soft_clamped_relu takes a floating-point tensor, got {v.dtype}.")
    result: Tensor = torch.ops.nodedrop.soft_clamped_relu.default(v, beta)
    return result


def clamped_relu(v: Tensor) -> Tensor:
    """min(1, max(0, v)).

    The slope at 0 and 1 is 0, as ReLU's at 0 and unlike `torch.clamp`'s: a unit at rest gets no gradient.

    >>> clamped_relu(torch.tensor([-2.0, 0.25, 3.0]))
    tensor([0.0000, 0.2500, 1.0000])
    """
    return nn.functional.hardtanh(v, 0.0, 1.0)


class SoftClampedReLU(nn.Module):
    """`soft_clamped_relu` as a module.

    >>> SoftClampedReLU()(torch.tensor([-1.0, 0.5]))
    tensor([0.0000, 0.4993])
    """

    def __init__(self, beta: float = 10.0) -> None:
        super().__init__()
        _check_beta(beta)
        self.beta = float(beta)

    def forward(self, v: Tensor) -> Tensor:
        return soft_clamped_relu(v, self.beta)

    def extra_repr(self) -> str:
        return f"beta={self.beta:g}"


class ClampedReLU(nn.Module):
    """`clamped_relu` as a module.

    >>> ClampedReLU()(torch.tensor([-1.0, 0.5, 2.0]))
    tensor([0.0000, 0.5000, 1.0000])
    """

    def forward(self, v: Tensor) -> Tensor:
        return clamped_relu(v)
