"""Elementwise operators keep labels; where two labelled values meet, their labels unite."""

from __future__ import annotations

import math
from collections.abc import Callable

from ...tracing.graph import Node, Ref
from ..labels import along, support, touching
from ..walk import Outcome, Walk, label_rule

# At 0 itself these have a slope: their zero region ends just below.
_BELOW = math.nextafter(0.0, -1.0)

_EDGES: dict[str, Callable[[Node], float | None]] = {
    "aten.relu.default": lambda n: 0.0,
    "aten.relu_.default": lambda n: 0.0,
    "aten.relu6.default": lambda n: 0.0,
    "aten.hardtanh.default": lambda n: 0.0 if n.arg(1, "min_val", -1) == 0 else None,
    "aten.clamp.default": lambda n: _BELOW if n.arg(1, "min") == 0 else None,
    "aten.clamp_min.default": lambda n: _BELOW if n.args[1] == 0 else None,
    "aten.threshold.default": lambda n: float(n.args[1]) if n.args[2] == 0 else None,
    "aten.threshold_.default": lambda n: float(n.args[1]) if n.args[2] == 0 else None,
    "aten.hardswish.default": lambda n: -3.0,
    "aten.hardsigmoid.default": lambda n: -3.0,
    "nodedrop.soft_clamped_relu.default": lambda n: 0.0,
}


def _if_known(edge: Callable[[Node], float | None]) -> Callable[[Node], float | None]:
    """A region that depends on what the forward computes has no place that is known beforehand."""

    def known(node: Node) -> float | None:
        computed = any(isinstance(value, Ref) for value in (*node.args[1:], *node.kwargs.values()))
        return None if computed else edge(node)

    return known


# Where the activation's output is exactly zero, and its slope, too: for inputs up to this number, given its arguments.
ZERO_REGION = {op: _if_known(edge) for op, edge in _EDGES.items()}

NO_ZERO_REGION = {
    "aten.gelu.default": "GELU", "aten.silu.default": "SiLU", "aten.leaky_relu.default": "LeakyReLU",
    "aten.elu.default": "ELU", "aten.selu.default": "SELU", "aten.celu.default": "CELU", "aten.mish.default": "Mish",
    "aten.tanh.default": "tanh", "aten.sigmoid.default": "sigmoid", "aten.softplus.default": "softplus",
    "aten.prelu.default": "PReLU", "aten._prelu_kernel.default": "PReLU", "aten.log_sigmoid.default": "logsigmoid",
}  # fmt: skip

_UNARY = [
    "aten.neg.default", "aten.abs.default", "aten.exp.default", "aten.expm1.default", "aten.log.default",
    "aten.log1p.default", "aten.sqrt.default", "aten.rsqrt.default", "aten.reciprocal.default", "aten.erf.default",
    "aten.atan.default", "aten.floor.default", "aten.ceil.default", "aten.round.default", "aten.trunc.default",
    "aten.sign.default", "aten.sin.default", "aten.cos.default", "aten.pow.Tensor_Scalar", "aten.square.default",
    "aten.clamp.default", "aten.clamp_max.default", "aten._to_copy.default", "aten.to.dtype",
    "aten.to.dtype_layout", "aten.to.device", "aten.to.other", "aten.type_as.default", "aten._cast_Float.default",
    "aten.full_like.default", "aten.zeros_like.default", "aten.ones_like.default", "aten.empty_like.default",
    "aten.rand_like.default", "aten.randn_like.default", "aten.bernoulli.default", "aten.bernoulli.p",
    "aten.dropout.default", "aten.native_dropout.default", "aten.feature_dropout.default", "aten.dropout_.default",
    "aten.fill.Scalar", "aten.fill.Tensor", "aten.zero.default", "aten.logical_not.default",
    "aten.bitwise_not.default", "aten.isnan.default", "aten.isinf.default",
]  # fmt: skip


@label_rule(*ZERO_REGION, *NO_ZERO_REGION, *_UNARY)
def _unary(walk: Walk, node: Node) -> Outcome:
    factors = walk(node.args[0])
    if "prelu" in node.op:
        slope = node.args[1]
        shape = walk.shape(slope)
        if len(shape) == 1 and shape[0] > 1:
            rank = len(node.shape)
            lifted = tuple(f.reshape([-1 if d == 1 else 1 for d in range(rank)]) for f in walk(slope))
            sizes = tuple(shape[0] if d == 1 else 1 for d in range(rank))
            return walk.align(node, [(factors, node.shape), (lifted, sizes)], node.shape)
    return [factors] * len(node.shapes) if len(node.shapes) > 1 else factors


@label_rule(
    "aten.add.Tensor", "aten.add.Scalar", "aten.add_.Tensor", "aten.sub.Tensor", "aten.sub.Scalar",
    "aten.rsub.Scalar", "aten.mul.Tensor", "aten.mul.Scalar", "aten.mul_.Tensor", "aten.div.Tensor",
    "aten.div.Scalar", "aten.div_.Tensor", "aten.true_divide.Tensor", "aten.maximum.default", "aten.minimum.default",
    "aten.where.self", "aten.where.ScalarSelf", "aten.where.ScalarOther", "aten.masked_fill.Scalar",
    "aten.masked_fill.Tensor", "aten.eq.Scalar", "aten.eq.Tensor", "aten.ne.Scalar", "aten.ne.Tensor",
    "aten.lt.Scalar", "aten.lt.Tensor", "aten.le.Scalar", "aten.le.Tensor", "aten.gt.Scalar", "aten.gt.Tensor",
    "aten.ge.Scalar", "aten.ge.Tensor", "aten.logical_and.default", "aten.logical_or.default",
    "aten.bitwise_and.Tensor", "aten.bitwise_or.Tensor", "aten.clamp.Tensor", "aten.pow.Tensor_Tensor",
    "aten.atan2.default", "aten.lerp.Tensor", "aten.addcmul.default", "aten.copy.default",
)  # fmt: skip
def _meeting(walk: Walk, node: Node) -> Outcome:
    operands = [(walk(arg), walk.shape(arg)) for arg in node.args if isinstance(arg, Ref)]
    return walk.align(node, operands, node.shape)


@label_rule("aten.glu.default")
def _glu(walk: Walk, node: Node) -> Outcome:
    factors, shape = walk(node.args[0]), walk.shape(node.args[0])
    axis = int(node.arg(1, "dim", -1)) % len(shape)
    kept = tuple(f for f in factors if axis not in support(f))
    labelled = along(factors, axis)
    if labelled is None:
        walk.pin(node, touching(factors, (axis,)), "units lie along several axes")
        return kept
    first, second = labelled.chunk(2, axis)
    walk.labels.unite(first, second)
    return (*kept, first.contiguous()) if support(first) else kept


@label_rule(
    "aten.arange.default", "aten.arange.start", "aten.arange.start_step", "aten.scalar_tensor.default",
    "aten.rand.default", "aten.randn.default", "aten.randint.low",
)  # fmt: skip
def _made(walk: Walk, node: Node) -> Outcome:
    return ()


@label_rule(
    "aten.full.default", "aten.zeros.default", "aten.ones.default", "aten.empty.memory_format",
    "aten.new_zeros.default", "aten.new_ones.default", "aten.new_full.default", "aten.new_empty.default",
)  # fmt: skip
def _filled(walk: Walk, node: Node) -> Outcome:
    """One number everywhere: its elements go with what they meet, and stay if they meet nothing that goes.

    Should the model fix the size after all, the check will tell.
    """
    factors = []
    for axis, n in enumerate(node.shape):
        if n > 1:
            made = walk.labels.fresh(n)
            factors.append(made.reshape([n if d == axis else 1 for d in range(len(node.shape))]))
    return tuple(factors)
