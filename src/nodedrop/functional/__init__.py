"""The method as plain functions of tensors: activations, the NodeDrop condition, penalties.

A weight is dense [O, I], a convolution's [O, I/groups, *k] of any rank or, with `transposed`, that of a
transposed convolution, [I, O/groups, *k]. A unit owns all its kernel positions.
"""

from ..activations import clamped_relu, soft_clamped_relu
from .conditions import condition, condition_bn, upper_bound
from .penalties import (
    NORM_PENALTY_FORMS,
    PENALTY_FORMS,
    NormPenaltyForm,
    PenaltyForm,
    penalty,
    penalty_bn,
    penalty_gn,
    penalty_ln,
)

__all__ = [
    "NORM_PENALTY_FORMS",
    "PENALTY_FORMS",
    "NormPenaltyForm",
    "PenaltyForm",
    "clamped_relu",
    "condition",
    "condition_bn",
    "penalty",
    "penalty_bn",
    "penalty_gn",
    "penalty_ln",
    "soft_clamped_relu",
    "upper_bound",
]
