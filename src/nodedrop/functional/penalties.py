"""Penalties that drive units into the dead region; times λ they are added to the loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeVar

import torch
from torch import Tensor

from ..errors import InputError
from .spared import sum_units
from .units import PerInput, check_norm_sizes, split_units, spread_inputs, unit_bias

_Form = TypeVar("_Form")


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


def _rectified(weight: Tensor) -> Tensor:
    """max(w, 0), for whose gradient autograd keeps the weight itself; relu keeps a copy."""
    return torch.threshold(weight, 0.0, 0.0)


PENALTY_FORMS: Mapping[str, PenaltyForm] = MappingProxyType(
    {
        "paper": PenaltyForm(
            "‖max(w,0)‖₁ + |b+C|",
            "the paper's choice (eq. 4): L1 on what can raise the unit, the bias drawn to −C",
            _rectified,
            lambda mass, b, C: mass + (b + C).abs(),
        ),
        "one-sided": PenaltyForm(
            "‖max(w,0)‖₁ + max(b+C, 0)",
            "the authors' published code: a bias already below −C is left alone",
            _rectified,
            lambda mass, b, C: mass + torch.relu(b + C),
        ),
        "distance": PenaltyForm(
            "|‖max(w,0)‖₁ + b|",
            "rejected in the paper: rests on the very edge of the dead region",
            _rectified,
            lambda mass, b, C: (mass + b).abs(),
        ),
        "unbounded": PenaltyForm(
            "‖max(w,0)‖₁ + b",
            "rejected in the paper: the bias runs off to minus infinity",
            _rectified,
            lambda mass, b, C: mass + b,
        ),
        "shifted": PenaltyForm(
            "|‖max(w,0)‖₁ + b + C|",
            "the paper's step before eq. 4: the distance to −C, inside the dead region",
            _rectified,
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
    lo: PerInput = 0.0,
    hi: PerInput = 1.0,
    groups: int = 1,
    transposed: bool = False,
    spare: float = 0.0,
    multiple: int = 1,
) -> Tensor:
    """Sum a penalty over a layer's units; times λ it is added to the loss.

    `form` names one of `PENALTY_FORMS`; a missing bias counts as 0. `lo` and `hi`, one number or one per input
    channel, are what inputs lie between: a weight is scaled by the largest value of its input, and measured once
    more, scaled by the least, if that is below 0, where negative weights raise the unit. Half-precision weights are
    summed in float32.

    `spare` is the share of the units, those with the largest penalties, that is left out of the sum: the others are
    driven out, and these learn undisturbed. Of any share above 0, at least one unit is spared. A number above 1 is that
    of these units, rounded up, whatever the layer's width. With `multiple`, it is rounded up to a multiple, or down
    where that would be all: a layer comes to rest at such a width only, with `spare=1` at the next one below. Whole
    blocks are what hardware computes, so the others, if they do not fill theirs, count for as many as would: one unit
    beyond 24, with `multiple=8`, counts eightfold.

    >>> weight = torch.tensor([[0.5, -2.0], [0.25, 0.25]])
    >>> bias = torch.tensor([0.0, -3.0])
    >>> penalty(weight, bias).item()  # (0.5 + |0 + 1|) + (0.5 + |-3 + 1|)
    4.0
    >>> penalty(weight, bias, form="one-sided").item()  # the second bias is already below -1
    2.0
    >>> penalty(weight, bias, hi=[1.0, 4.0]).item()
    4.75
    >>> penalty(weight, bias, lo=-1.0).item()
    6.0
    >>> penalty(weight, bias, spare=0.5).item()  # the smaller of 1.5 and 2.5
    1.5
    >>> penalty(weight, bias, spare=0.5, multiple=2).item()  # two units are a multiple of two, and none has to go
    0.0
    """
    each = unit_penalties(weight, bias, C=C, form=form, lo=lo, hi=hi, groups=groups, transposed=transposed)
    return sum_units(each, spare, multiple)


def unit_penalties(
    weight: Tensor,
    bias: Tensor | None,
    *,
    C: float,
    form: str,
    lo: PerInput,
    hi: PerInput,
    groups: int,
    transposed: bool,
) -> Tensor:
    """What `penalty` sums."""
    chosen = _choose(PENALTY_FORMS, form)
    check_constant(C)
    units = _widen(split_units(weight, groups, transposed))
    scaled = _scaled(units, lo, hi)
    mass = sum((chosen.measure(part).sum(dim=(2, 3)).flatten() for part in scaled), units.new_zeros(()))
    return chosen.join(mass, unit_bias(bias, units), C)


def penalty_bn(
    gamma: Tensor,
    beta: Tensor,
    m: float,
    *,
    C: float = 1.0,
    form: str = "paper",
    spare: float = 0.0,
    multiple: int = 1,
) -> Tensor:
    """Sum the batch-norm penalty over units; `m` is the number of values per channel in one batch.

    "paper" is `|γ|√m + |β+C|`, "one-sided" is `max(|γ|√m + β + C, 0)`; `spare` and `multiple` are those of
    `penalty`.

    >>> gamma, beta = torch.tensor([0.5, -0.25]), torch.tensor([0.0, -3.0])
    >>> penalty_bn(gamma, beta, m=16).item()  # (2 + 1) + (1 + 2)
    6.0
    >>> penalty_bn(gamma, beta, m=16, form="one-sided").item()
    3.0
    """
    return sum_units(unit_penalties_bn(gamma, beta, m, C=C, form=form), spare, multiple)


def unit_penalties_bn(gamma: Tensor, beta: Tensor, m: float, *, C: float, form: str) -> Tensor:
    """What `penalty_bn` sums."""
    chosen = _choose(NORM_PENALTY_FORMS, form)
    check_constant(C)
    check_norm_sizes(gamma, beta, m)
    return chosen.join(_widen(gamma).abs() * math.sqrt(m), _widen(beta), C)


def penalty_ln(
    weight: Tensor,
    bias: Tensor | None,
    ln_weight: Tensor | None,
    ln_bias: Tensor | None,
    *,
    C: float = 1.0,
    form: str = "paper",
    rms: bool = False,
    spare: float = 0.0,
    multiple: int = 1,
) -> Tensor:
    """Sum the penalty over dense units that read a layer norm, or with `rms` an RMS norm.

    A normalised vector has `‖x̂‖₂ ≤ √d` and, for layer norm, zero mean. So `z = w·(g∘x̂ + β) + b` stays within
    `√d·‖P(w∘g)‖₂` of `w·β + b`, where `P` removes the mean (RMS norm: no `P`), whatever the norm reads.
    "paper" is `√d·‖P(w∘g)‖₂ + |w·β + b + C|`, "one-sided" is `max(√d·‖P(w∘g)‖₂ + w·β + b + C, 0)`; `spare`
    and `multiple` are those of `penalty`.

    >>> weight, bias = torch.tensor([[3.0, 3.0, 3.0, 3.0]]), torch.tensor([-1.0])
    >>> penalty_ln(weight, bias, None, None).item()  # equal weights see only the mean, which is zero
    0.0
    >>> penalty_ln(weight, bias, None, None, rms=True).item()
    12.0
    """
    return sum_units(unit_penalties_ln(weight, bias, ln_weight, ln_bias, C=C, form=form, rms=rms), spare, multiple)


def unit_penalties_ln(
    weight: Tensor,
    bias: Tensor | None,
    ln_weight: Tensor | None,
    ln_bias: Tensor | None,
    *,
    C: float,
    form: str,
    rms: bool,
) -> Tensor:
    """What `penalty_ln` sums."""
    chosen = _choose(NORM_PENALTY_FORMS, form)
    check_constant(C)
    if weight.dim() != 2:
        raise InputError(f"weight must be dense [units, inputs], got shape {tuple(weight.shape)}.")
    dense = _widen(weight)
    width = dense.shape[1]
    for name, tensor in (("ln_weight", ln_weight), ("ln_bias", ln_bias)):
        if tensor is not None and tensor.numel() != width:
            raise InputError(f"{name} must hold one number per input ({width}), got {tensor.numel()}.")
    centre = unit_bias(bias, split_units(dense, 1, False))
    if ln_bias is not None:
        centre = centre + dense @ ln_bias.flatten().to(dense.dtype)
    scaled = dense if ln_weight is None else dense * ln_weight.flatten().to(dense.dtype)
    if not rms:
        scaled = scaled - scaled.mean(dim=1, keepdim=True)
    radius = math.sqrt(width) * torch.linalg.vector_norm(scaled, dim=1)
    return chosen.join(radius, centre, C)


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
    spare: float = 0.0,
    multiple: int = 1,
) -> Tensor:
    """Sum the penalty over units that read a group norm over `count` values, or an instance norm.

    Each value lies within `r = |γ|√(count−1)` of β, so `z = w·x + b` stays within `|w|·r` of `w·β + b`. With
    `rectified`, an activation lies in between and x in `[0, max(r + β, 0)]`: the radius is `max(w,0)·max(r + β, 0)`,
    the centre b. The forms, `spare` and `multiple` are those of `penalty_ln`.

    >>> weight, gamma, beta = torch.tensor([[0.5, -0.5]]), torch.tensor([1.0, 1.0]), torch.tensor([0.5, 0.5])
    >>> penalty_gn(weight, None, gamma, beta, count=10).item()  # 3 + |0 + 1|
    4.0
    >>> penalty_gn(weight, None, gamma, beta, count=10, rectified=True).item()  # 0.5 · 3.5 + |0 + 1|
    2.75
    """
    norm = (gn_weight, gn_bias, count)
    each = unit_penalties_gn(weight, bias, *norm, C=C, form=form, rectified=rectified, groups=groups)
    return sum_units(each, spare, multiple)


def unit_penalties_gn(
    weight: Tensor,
    bias: Tensor | None,
    gn_weight: Tensor | None,
    gn_bias: Tensor | None,
    count: int,
    *,
    C: float,
    form: str,
    rectified: bool,
    groups: int,
) -> Tensor:
    """What `penalty_gn` sums."""
    chosen = _choose(NORM_PENALTY_FORMS, form)
    check_constant(C)
    units = _widen(split_units(weight, groups, False))
    one = torch.ones((), dtype=units.dtype, device=units.device)
    radius = math.sqrt(max(count - 1, 0)) * (one if gn_weight is None else gn_weight.to(units.dtype).abs())
    shift = 0 * one if gn_bias is None else gn_bias.to(units.dtype)
    centre = unit_bias(bias, units)
    if rectified:
        most = spread_inputs(torch.relu(radius + shift), units, "the scale of the norm")
        return chosen.join((torch.relu(units) * most).sum(dim=(2, 3)).flatten(), centre, C)
    reach = (units.abs() * spread_inputs(radius, units, "the scale of the norm")).sum(dim=(2, 3)).flatten()
    middle = (units * spread_inputs(shift, units, "the shift of the norm")).sum(dim=(2, 3)).flatten()
    return chosen.join(reach, centre + middle, C)


def _scaled(units: Tensor, lo: PerInput, hi: PerInput) -> list[Tensor]:
    """The weights times the largest value of their inputs and, where that is below 0, times the least."""
    found = []
    for end, plain, sign, name in ((hi, 1.0, 1, "hi"), (lo, 0.0, -1, "lo")):
        if isinstance(end, int | float) and end == plain:
            found += [units] if sign > 0 else []
            continue
        scale = sign * spread_inputs(end, units, name)
        finite = math.isfinite(end) if isinstance(end, int | float) else bool(scale.isfinite().all())
        if not finite:  # a number is asked as one, so that no device has to be waited for
            raise InputError(f"{name} must be finite: it scales the weight of each input.")
        found.append(units * (sign * scale.clamp(min=0)))
    return found


def _choose(table: Mapping[str, _Form], name: str) -> _Form:
    if name not in table:
        raise InputError(f"form must be one of {', '.join(table)}, got {name!r}.")
    return table[name]


def check_constant(C: float) -> None:
    """Refuse what no bias can be drawn to."""
    if not 0 < C < math.inf:
        raise InputError(f"C must be above 0 and finite, got {C}.")


def _widen(values: Tensor) -> Tensor:
    """Leave half precision before summing: float16 overflows at 65504."""
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values
