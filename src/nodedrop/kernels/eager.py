"""σ and its gradient as chains of torch operators: every device, every floating-point dtype, every β."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Context
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

# Values per thread and block: few enough to stay in cache between passes, enough to hide the calls.
BLOCK = 1 << 17


class Constants(NamedTuple):
    """σ at its zero v₀ = −log(1−a)/β, a = e^{−β}: v₀ is `zero` of the dtype plus `rest`.

    `shift` stands for the rest inside the logarithm.
    """

    a: float
    one_less_a: float
    zero: float
    rest: float
    shift: float


@lru_cache(maxsize=64)
def constants(beta: float, dtype: torch.dtype) -> Constants:
    real = Context(prec=50 + int(beta / 2))  # 1 − a needs log₁₀(e)·β digits before the first that counts
    exact_beta = real.create_decimal_from_float(beta)
    a = real.exp(real.minus(exact_beta))
    one_less_a = real.subtract(1, a)
    v0 = real.divide(real.minus(real.ln(one_less_a)), exact_beta)
    zero = float(torch.tensor(float(v0), dtype=dtype, device="cpu"))
    rest = real.subtract(v0, real.create_decimal_from_float(zero))
    shift = real.multiply(real.multiply(exact_beta, rest), one_less_a)
    return Constants(float(a), float(one_less_a), zero, float(rest), float(shift))


def underflows(beta: float, dtype: torch.dtype) -> bool:
    """Whether e^{−β} is too small for the dtype, so that v₀ = 0 to this precision."""
    return beta > math.log(torch.finfo(dtype).max) - 4


def forward(v: Tensor, beta: float, out: Tensor | None = None) -> Tensor:
    """σ(v) to a few ulps, by the distance u = v − v₀ from its zero, so that nothing cancels at either end.

    e^{−βv₀} = 1 − a turns `v − log(1+e^{β(v−1)})/β` into `u − log(1 + a·(e^{βu}−1))/β`. Above v = 1 the
    term in u is 1 − v₀ and the exponent that of the mirror point 2 − v. For small β, where a is not small,
    the same is `−log(1 + (1−a)·(e^{−βu}−1))/β`, without a difference to take.
    """
    if underflows(beta, v.dtype):
        soft = torch.minimum(2 - v, v).mul_(beta).sub_(beta).exp_().log1p_()
        return torch.clamp(v.clamp(max=1).sub_(soft, alpha=1 / beta), 0, 1, out=out)
    a, one_less_a, zero, _, shift = constants(beta, v.dtype)
    u = v - zero
    if beta <= 1:
        inner = u.mul_(-beta).expm1_().mul_(one_less_a).add_(shift)
        return torch.clamp(inner.log1p_().mul_(-1 / beta), 0, 1, out=out)
    soft = torch.rsub(u, 2 - 2 * zero)
    soft = torch.minimum(soft, u, out=soft).mul_(beta).expm1_().mul_(a).add_(shift).log1p_()
    return torch.clamp(u.clamp_(max=1 - zero).sub_(soft, alpha=1 / beta), 0, 1, out=out)


def backward(grad: Tensor, y: Tensor, beta: float, out: Tensor | None = None) -> Tensor:
    """grad·σ'(v) from y = σ(v) alone: σ' = 1 − e^{−β(1−y)} where y > 0, else 0."""
    rest = y.sub(1).mul_(beta).exp_()
    product = torch.addcmul(grad, grad, rest, value=-1, out=rest)
    if out is None:
        out = torch.empty_like(product)
    torch.ops.aten.threshold_backward.grad_input(product, y, 0, grad_input=out)
    return out


def alike(out: Tensor, *inputs: Tensor) -> list[Tensor]:
    """The inputs laid out in memory as `out` is; it is dense and has their shape."""
    kind = (out.shape, out.stride(), out.dtype, out.device)
    return [x if (x.shape, x.stride(), x.dtype, x.device) == kind else torch.empty_like(out).copy_(x) for x in inputs]


def blockwise(function: Callable[..., Tensor], beta: float, *inputs: Tensor) -> Tensor:
    """Apply an elementwise function of many passes to one block after another; half precision in float32."""
    dtype, count = inputs[0].dtype, inputs[0].numel()
    wide = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
    block = BLOCK * torch.get_num_threads()
    out = torch.empty_like(inputs[-1])
    dense = alike(out, *inputs)
    if not out.is_cpu or count <= block:
        return function(*(x.to(wide) for x in dense), beta).to(dtype)
    *flat, target = (x.as_strided((count,), (1,)) for x in (*dense, out))
    for start in range(0, count, block):
        pieces = [x[start : start + block].to(wide) for x in flat]
        if wide == dtype:
            function(*pieces, beta, target[start : start + block])
        else:
            target[start : start + block] = function(*pieces, beta)
    return out
