"""The paper's activations: zero for every v ≤ 0, never above 1.

SoftClampedReLU is one operator, `nodedrop::soft_clamped_relu`, so that a traced graph shows a single node and
backward keeps the output alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from . import kernels
from .errors import InputError

SOFT_CLAMPED_RELU_ULPS = 8
"""The computed σ(v) lies within this many ulps of the real one however small, and is 0 wherever that is.

Subnormals aside. So the computed function never falls by more than twice as much where the real one rises.
Over all of float32 for β = 10 the compiled kernel is off by at most 1.52 ulps and never falls.
"""


class _Forward(torch.autograd.Function):
    """The operator below autograd, and its output kept for backward."""

    @staticmethod
    def forward(ctx: Any, v: Tensor, beta: float) -> Tensor:
        y = _below(torch.ops.nodedrop.soft_clamped_relu.default, v, beta)
        ctx.beta = beta
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (y,) = ctx.saved_tensors
        return torch.ops.nodedrop.soft_clamped_relu_backward.default(grad, y, ctx.beta), None


class _Backward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, grad: Tensor, y: Tensor, beta: float) -> Tensor:
        ctx.beta = beta
        ctx.save_for_backward(grad, y)
        return _below(torch.ops.nodedrop.soft_clamped_relu_backward.default, grad, y, beta)

    @staticmethod
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor, Tensor, None]:
        grad, y = ctx.saved_tensors
        by_grad = torch.ops.nodedrop.soft_clamped_relu_backward.default(outer, y, ctx.beta)
        by_y = outer * grad * torch.exp(ctx.beta * (y - 1)) * (y > 0) * -ctx.beta
        return by_grad, by_y, None


def _below(operator: Any, *args: Any) -> Tensor:
    with torch._C._AutoDispatchBelowAutograd():
        result: Tensor = operator(*args)
    return result


def _batch(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Tensor, int]:
    """vmap of an elementwise operator: bring the batch axis to the front of every tensor."""
    tensors = [
        x.expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0)
        for x, dim in zip(args[:-1], in_dims[:-1], strict=True)
    ]
    name = "soft_clamped_relu" if len(tensors) == 1 else "soft_clamped_relu_backward"
    return getattr(torch.ops.nodedrop, name)(*tensors, args[-1]), 0


_LIBRARY = torch.library.Library("nodedrop", "FRAGMENT")


def _by_operators(v: Tensor, beta: float) -> Tensor:
    return torch.relu(1 - nn.functional.softplus(1 - v, beta))


def _backward_by_operators(grad: Tensor, y: Tensor, beta: float) -> Tensor:
    return grad * -torch.expm1(-beta * (1 - y)) * (y > 0)


def _differentiable(
    name: str, function: type[torch.autograd.Function], by_operators: Callable[..., Tensor]
) -> Callable[..., Tensor]:
    """The operator as autograd sees it. In forward mode and under `torch.func` an `autograd.Function` cannot be called
    from here; torch's operators have derivatives of every kind, within rounding of these."""
    operator = getattr(torch.ops.nodedrop, name).default

    def run(*args: Any) -> Any:
        reverse = torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in args)
        if forward_ad._current_level >= 0 or (reverse and torch._C._are_functorch_transforms_active()):
            return by_operators(*args)
        return function.apply(*args) if reverse else _below(operator, *args)

    return run


def _register() -> None:
    """Define both operators; a second import of this file finds them in place.

    `torch.library.register_autograd` would do the same, but its calls cost more.
    """
    if hasattr(torch.ops.nodedrop, "soft_clamped_relu"):
        return
    for name, signature, kernel, function, by_operators in (
        ("soft_clamped_relu", "(Tensor v, float beta) -> Tensor", kernels.soft_clamped_relu, _Forward, _by_operators),
        (
            "soft_clamped_relu_backward",
            "(Tensor grad, Tensor y, float beta) -> Tensor",
            kernels.soft_clamped_relu_backward,
            _Backward,
            _backward_by_operators,
        ),
    ):
        _LIBRARY.define(name + signature)
        _LIBRARY.impl(name, kernel, "CompositeExplicitAutograd")
        _LIBRARY.impl(name, _differentiable(name, function, by_operators), "Autograd")
        torch.library.register_fake(f"nodedrop::{name}", lambda *args: torch.empty_like(args[-2]), lib=_LIBRARY)
        torch.library.register_vmap(f"nodedrop::{name}", _batch, lib=_LIBRARY)


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
