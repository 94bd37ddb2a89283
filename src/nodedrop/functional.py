"""The method as plain functions of tensors: activations, the NodeDrop condition, penalties.

A weight is dense [O, I], a convolution's [O, I/groups, *k] of any rank or, with `transposed`, that of a
transposed convolution, [I, O/groups, *k]. A unit owns all its kernel positions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeVar

import torch
from torch import Tensor

from .activations import clamped_relu, soft_clamped_relu
from .errors import InputError

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

PerInput = float | Sequence[float] | Tensor
"""One number for every input channel, or one per input channel."""

_Form = TypeVar("_Form")


def upper_bound(
    weight: Tensor,
    bias: Tensor | None = None,
    lo: PerInput = 0.0,
    hi: PerInput = 1.0,
    *,
    groups: int = 1,
    transposed: bool = False,
    weak: bool = False,
    padded: bool = True,
) -> Tensor:
    """The largest pre-activation of each unit over the box lo ≤ x ≤ hi: `U = Σ max(wᵢ·loᵢ, wᵢ·hiᵢ) + b`.

    `lo` and `hi` are one number, or one per input channel. The weak form is `Σ |wᵢ|·max(|loᵢ|, |hiᵢ|) + b`.
    A padded convolution reads zeros at its border, and a transposed one leaves kernel positions out, so 0
    joins their boxes; `padded=False` says that a convolution has no padding. Summed in float64, returned in
    the dtype of the weight.

    >>> weight, bias = torch.tensor([[0.5, -0.5], [0.25, 0.25]]), torch.tensor([-0.5, -0.25])
    >>> upper_bound(weight, bias)  # eq. 1: max(w, 0) summed, plus the bias
    tensor([0.0000, 0.2500])
    >>> upper_bound(weight, bias, weak=True)
    tensor([0.5000, 0.2500])
    >>> upper_bound(weight, bias, lo=[0.0, 0.5], hi=[1.0, 0.5])
    tensor([-0.2500,  0.1250])
    """
    units = _split_units(weight, groups, transposed).double()
    box = _read_box(lo, hi, units, reads_zero=transposed or (padded and weight.dim() > 2))
    return _box_maximum(units, bias, *box, weak=weak).to(weight.dtype)


def condition(
    weight: Tensor,
    bias: Tensor | None = None,
    lo: PerInput = 0.0,
    hi: PerInput = 1.0,
    *,
    groups: int = 1,
    transposed: bool = False,
    weak: bool = False,
    padded: bool = True,
) -> Tensor:
    """True for each unit with `U ≤ 0` (eq. 1): zero for every input of the box, if σ(v) = 0 for all v ≤ 0.

    Arguments as for `upper_bound`. This is the condition on real numbers; a certificate from `analyze` also
    covers the rounding of the program that runs.

    >>> weight = torch.tensor([[0.5, -0.5], [0.25, 0.25]])
    >>> condition(weight, torch.tensor([-0.5, -0.25]))
    tensor([ True, False])
    """
    with torch.no_grad():
        units = _split_units(weight, groups, transposed).double()
        box = _read_box(lo, hi, units, reads_zero=transposed or (padded and weight.dim() > 2))
        return _box_maximum(units, bias, *box, weak=weak) <= 0


def condition_bn(gamma: Tensor, beta: Tensor, m: float, *, weak: bool = False) -> Tensor:
    """True for each batch-norm unit with `|γ|√(m−1) + β ≤ 0`: never positive in training mode.

    `m` is the number of values per channel in one batch (N·H·W for images); smaller batches are covered too.
    A normalised value is at most √(m−1) (Samuelson); the weak form is the paper's √m.

    >>> gamma, beta = torch.tensor([1.0, 1.0]), torch.tensor([-3.0, -2.9])
    >>> condition_bn(gamma, beta, m=10)
    tensor([ True, False])
    >>> condition_bn(gamma, beta, m=10, weak=True)
    tensor([False, False])
    """
    _check_norm_sizes(gamma, beta, m)
    with torch.no_grad():
        radius = gamma.double().abs() * math.sqrt(m if weak else m - 1)
        return radius + beta.double() <= 0


@dataclass(frozen=True)
class PenaltyForm:
    """One penalty per unit: a measure of each weight, summed, then joined with the bias and C."""

    formula: str
    reason: str
    measure: Callable[[Tensor], Tensor]
    join: Callable[[Tensor, Tensor, float], Tensor]


@dataclass(frozen=True)
class NormPenaltyForm:
    """One penalty per unit behind a norm: its value stays within `radius` of `centre` for every input."""

    formula: str
    reason: str
    join: Callable[[Tensor, Tensor, float], Tensor]


PENALTY_FORMS: Mapping[str, PenaltyForm] = MappingProxyType(
    {
        "paper": PenaltyForm(
            "‖max(w,0)‖₁ + |b+C|",
            "the paper's choice (eq. 4): L1 on what can raise the unit, the bias drawn to −C",
            torch.relu,
            lambda mass, b, C: mass + (b + C).abs(),
        ),
        "one-sided": PenaltyForm(
            "‖max(w,0)‖₁ + max(b+C, 0)",
            "the authors' published code: a bias already below −C is left alone",
            torch.relu,
            lambda mass, b, C: mass + torch.relu(b + C),
        ),
        "distance": PenaltyForm(
            "|‖max(w,0)‖₁ + b|",
            "rejected in the paper: rests on the very edge of the dead region",
            torch.relu,
            lambda mass, b, C: (mass + b).abs(),
        ),
        "unbounded": PenaltyForm(
            "‖max(w,0)‖₁ + b",
            "rejected in the paper: the bias runs off to minus infinity",
            torch.relu,
            lambda mass, b, C: mass + b,
        ),
        "shifted": PenaltyForm(
            "|‖max(w,0)‖₁ + b + C|",
            "the paper's step before eq. 4: the distance to −C, inside the dead region",
            torch.relu,
            lambda mass, b, C: (mass + b + C).abs(),
        ),
        "l2": PenaltyForm(
            "‖w‖₂² + b²",
            "rejected in the paper: many small weights replace one bias and keep their inputs alive",
            torch.square,
            lambda mass, b, C: mass + b.square(),
        ),
        "l2-shifted": PenaltyForm(
            "‖w‖₂² + (b+C)²",
            "rejected in the paper: as l2, and dearer still for a live unit, whose bias is far from −C",
            torch.square,
            lambda mass, b, C: mass + (b + C).square(),
        ),
    }
)
"""The forms of `penalty`, by name."""

NORM_PENALTY_FORMS: Mapping[str, NormPenaltyForm] = MappingProxyType(
    {
        "paper": NormPenaltyForm(
            "radius + |centre+C|",
            "the paper's batch-norm penalty, with radius |γ|√m and centre β",
            lambda radius, centre, C: radius + (centre + C).abs(),
        ),
        "one-sided": NormPenaltyForm(
            "max(radius + centre + C, 0)",
            "the authors' published code: a unit whose bound is already below −C is left alone",
            lambda radius, centre, C: torch.relu(radius + centre + C),
        ),
    }
)
"""The forms of `penalty_bn`, `penalty_gn` and `penalty_ln`, by name."""


def penalty(
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    C: float = 1.0,
    form: str = "paper",
    hi: PerInput | None = None,
    groups: int = 1,
    transposed: bool = False,
) -> Tensor:
    """Sum a penalty over a layer's units; times λ it is added to the loss.

    `form` names one of `PENALTY_FORMS`; a missing bias counts as 0. With `hi`, one number or one per input
    channel, each weight is scaled by the largest value its input takes: the form that matches
    `upper_bound(weight, bias, 0, hi)`. Half-precision weights are summed in float32.

    >>> weight = torch.tensor([[0.5, -2.0], [0.25, 0.25]])
    >>> bias = torch.tensor([0.0, -3.0])
    >>> penalty(weight, bias).item()  # (0.5 + |0 + 1|) + (0.5 + |-3 + 1|)
    4.0
    >>> penalty(weight, bias, form="one-sided").item()  # the second bias is already below -1
    2.0
    >>> penalty(weight, bias, hi=[1.0, 4.0]).item()
    4.75
    """
    chosen = _choose(PENALTY_FORMS, form)
    _check_constant(C)
    units = _widen(_split_units(weight, groups, transposed))
    if hi is not None:
        scale = _spread_inputs(hi, units, "hi")
        if not bool(((scale >= 0) & (scale < math.inf)).all()):
            raise InputError("hi must be finite and not negative: it scales the weight of each input.")
        units = units * scale
    mass = chosen.measure(units).sum(dim=(2, 3)).flatten()
    return chosen.join(mass, _unit_bias(bias, units), C).sum()


def penalty_bn(gamma: Tensor, beta: Tensor, m: float, *, C: float = 1.0, form: str = "paper") -> Tensor:
    """Sum the batch-norm penalty over units; `m` is the number of values per channel in one batch.

    "paper" is `|γ|√m + |β+C|`, "one-sided" is `max(|γ|√m + β + C, 0)`.

    >>> gamma, beta = torch.tensor([0.5, -0.25]), torch.tensor([0.0, -3.0])
    >>> penalty_bn(gamma, beta, m=16).item()  # (2 + 1) + (1 + 2)
    6.0
    >>> penalty_bn(gamma, beta, m=16, form="one-sided").item()
    3.0
    """
    chosen = _choose(NORM_PENALTY_FORMS, form)
    _check_constant(C)
    _check_norm_sizes(gamma, beta, m)
    return chosen.join(_widen(gamma).abs() * math.sqrt(m), _widen(beta), C).sum()


def penalty_ln(
    weight: Tensor,
    bias: Tensor | None,
    ln_weight: Tensor | None,
    ln_bias: Tensor | None,
    *,
    C: float = 1.0,
    form: str = "paper",
    rms: bool = False,
) -> Tensor:
    """Sum the penalty over dense units that read a layer norm, or with `rms` an RMS norm.

    A normalised vector has `‖x̂‖₂ ≤ √d` and, for layer norm, zero mean. So `z = w·(g∘x̂ + β) + b` stays within
    `√d·‖P(w∘g)‖₂` of `w·β + b`, where `P` removes the mean (RMS norm: no `P`), whatever the norm reads.
    "paper" is `√d·‖P(w∘g)‖₂ + |w·β + b + C|`, "one-sided" is `max(√d·‖P(w∘g)‖₂ + w·β + b + C, 0)`.

    >>> weight, bias = torch.tensor([[3.0, 3.0, 3.0, 3.0]]), torch.tensor([-1.0])
    >>> penalty_ln(weight, bias, None, None).item()  # equal weights see only the mean, which is zero
    0.0
    >>> penalty_ln(weight, bias, None, None, rms=True).item()
    12.0
    """
    chosen = _choose(NORM_PENALTY_FORMS, form)
    _check_constant(C)
    if weight.dim() != 2:
        raise InputError(f"weight must be dense [units, inputs], got shape {tuple(weight.shape)}.")
    dense = _widen(weight)
    width = dense.shape[1]
    for name, tensor in (("ln_weight", ln_weight), ("ln_bias", ln_bias)):
        if tensor is not None and tensor.numel() != width:
            raise InputError(f"{name} must hold one number per input ({width}), got {tensor.numel()}.")
    centre = _unit_bias(bias, _split_units(dense, 1, False))
    if ln_bias is not None:
        centre = centre + dense @ ln_bias.flatten().to(dense.dtype)
    scaled = dense if ln_weight is None else dense * ln_weight.flatten().to(dense.dtype)
    if not rms:
        scaled = scaled - scaled.mean(dim=1, keepdim=True)
    radius = math.sqrt(width) * torch.linalg.vector_norm(scaled, dim=1)
    return chosen.join(radius, centre, C).sum()


def penalty_gn(
    weight: Tensor,
    bias: Tensor | None,
    gn_weight: Tensor | None,
    gn_bias: Tensor | None,
    count: int,
    *,
    C: float = 1.0,
    form: str = "paper",
    rectified: bool = False,
    groups: int = 1,
) -> Tensor:
    """Sum the penalty over units that read a group norm over `count` values, or an instance norm.

    Each value lies within `r = |γ|√(count−1)` of β, so `z = w·x + b` stays within `|w|·r` of `w·β + b`. With
    `rectified`, an activation lies in between and x in `[0, max(r + β, 0)]`: the radius is `max(w,0)·max(r + β, 0)`,
    the centre b. The forms are those of `penalty_ln`.

    >>> weight, gamma, beta = torch.tensor([[0.5, -0.5]]), torch.tensor([1.0, 1.0]), torch.tensor([0.5, 0.5])
    >>> penalty_gn(weight, None, gamma, beta, count=10).item()  # 3 + |0 + 1|
    4.0
    >>> penalty_gn(weight, None, gamma, beta, count=10, rectified=True).item()  # 0.5 · 3.5 + |0 + 1|
    2.75
    """
    chosen = _choose(NORM_PENALTY_FORMS, form)
    _check_constant(C)
    units = _widen(_split_units(weight, groups, False))
    one = torch.ones((), dtype=units.dtype, device=units.device)
    radius = math.sqrt(max(count - 1, 0)) * (one if gn_weight is None else gn_weight.to(units.dtype).abs())
    shift = 0 * one if gn_bias is None else gn_bias.to(units.dtype)
    centre = _unit_bias(bias, units)
    if rectified:
        most = _spread_inputs(torch.relu(radius + shift), units, "the scale of the norm")
        return chosen.join((torch.relu(units) * most).sum(dim=(2, 3)).flatten(), centre, C).sum()
    reach = (units.abs() * _spread_inputs(radius, units, "the scale of the norm")).sum(dim=(2, 3)).flatten()
    middle = (units * _spread_inputs(shift, units, "the shift of the norm")).sum(dim=(2, 3)).flatten()
    return chosen.join(reach, centre + middle, C).sum()


def _split_units(weight: Tensor, groups: int, transposed: bool) -> Tensor:
    """View a dense or convolution weight as [groups, units per group, inputs per group, kernel positions]."""
    if weight.dim() < 2 or not weight.is_floating_point():
        raise InputError(
            f"weight must be a floating-point tensor with at least 2 axes, got {weight.dtype} "
            f"of shape {tuple(weight.shape)}."
        )
    rows, columns = weight.shape[:2]
    if groups < 1 or rows % groups:
        axis = "input" if transposed else "unit"
        raise InputError(f"groups={groups} does not divide the weight's {rows} {axis} rows.")
    kernel = math.prod(weight.shape[2:])
    split = weight.reshape(groups, rows // groups, columns, kernel)
    return split.transpose(1, 2) if transposed else split


def _spread_inputs(values: PerInput, units: Tensor, name: str) -> Tensor:
    """Lay one value per input channel along the input axis of `_split_units`; a scalar fills it."""
    inputs = units.shape[0] * units.shape[2]
    spread = torch.as_tensor(values, dtype=units.dtype, device=units.device)
    if spread.dim() > 1 or (spread.dim() == 1 and spread.shape[0] != inputs):
        raise InputError(
            f"{name} must be one number or one per input channel ({inputs}), got shape {tuple(spread.shape)}."
        )
    return spread.expand(inputs).reshape(units.shape[0], 1, units.shape[2], 1)


def _read_box(lo: PerInput, hi: PerInput, units: Tensor, *, reads_zero: bool) -> tuple[Tensor, Tensor]:
    low, high = _spread_inputs(lo, units, "lo"), _spread_inputs(hi, units, "hi")
    if not bool((low <= high).all()):
        raise InputError("lo must not exceed hi, and neither may be NaN.")
    return (low.clamp(max=0), high.clamp(min=0)) if reads_zero else (low, high)


def _box_maximum(units: Tensor, bias: Tensor | None, low: Tensor, high: Tensor, *, weak: bool) -> Tensor:
    if weak:
        low, high = torch.minimum(low, -high), torch.maximum(high, -low)
    rising, falling = torch.relu(units), torch.relu(-units)
    # A zero weight shuts out even an unbounded input.
    reach = rising * high.where(rising > 0, 0.0) - falling * low.where(falling > 0, 0.0)
    return reach.sum(dim=(2, 3)).flatten() + _unit_bias(bias, units)


def _unit_bias(bias: Tensor | None, units: Tensor) -> Tensor:
    """Return the bias per unit in the arithmetic of `units`; a missing one is zero."""
    count = units.shape[0] * units.shape[1]
    if bias is None:
        return units.new_zeros(count)
    if bias.shape != (count,):
        raise InputError(f"bias must hold one number per unit ({count}), got shape {tuple(bias.shape)}.")
    return bias.to(units.dtype)


def _check_norm_sizes(gamma: Tensor, beta: Tensor, m: float) -> None:
    if gamma.dim() != 1 or gamma.shape != beta.shape:
        shapes = f"{tuple(gamma.shape)} and {tuple(beta.shape)}"
        raise InputError(f"gamma and beta must hold one number per unit, got shapes {shapes}.")
    if not 1 <= m < math.inf:
        raise InputError(f"m must be the number of values per channel in a batch, at least 1, got {m}.")


def _choose(table: Mapping[str, _Form], name: str) -> _Form:
    if name not in table:
        raise InputError(f"form must be one of {', '.join(table)}, got {name!r}.")
    return table[name]


def _check_constant(C: float) -> None:
    if not 0 < C < math.inf:
        raise InputError(f"C must be positive and finite, got {C}.")


def _widen(values: Tensor) -> Tensor:
    """Leave half precision before summing: float16 overflows at 65504."""
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values
