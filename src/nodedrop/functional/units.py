"""Weights seen unit by unit, and what is given per unit or per input beside them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..errors import InputError

PerInput = float | Sequence[float] | Tensor
"""One number for every input channel, or one per input channel."""


def split_units(weight: Tensor, groups: int, transposed: bool) -> Tensor:
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


def spread_inputs(values: PerInput, units: Tensor, name: str) -> Tensor:
    """Lay one value per input channel along the input axis of `split_units`; a scalar fills it."""
    inputs = units.shape[0] * units.shape[2]
    spread = torch.as_tensor(values, dtype=units.dtype, device=units.device)
    if spread.dim() > 1 or (spread.dim() == 1 and spread.shape[0] != inputs):
        raise InputError(
            f"{name} must be one number or one per input channel ({inputs}), got shape {tuple(spread.shape)}."
        )
    return spread.expand(inputs).reshape(units.shape[0], 1, units.shape[2], 1)


def unit_bias(bias: Tensor | None, units: Tensor) -> Tensor:
    """Return the bias per unit in the arithmetic of `units`; a missing one is zero."""
    count = units.shape[0] * units.shape[1]
    if bias is None:
        return units.new_zeros(count)
    if bias.shape != (count,):
        raise InputError(f"bias must hold one number per unit ({count}), got shape {tuple(bias.shape)}.")
    return bias.to(units.dtype)


def check_norm_sizes(gamma: Tensor, beta: Tensor, m: float) -> None:
    """Refuse what is no batch norm."""
    if gamma.dim() != 1 or gamma.shape != beta.shape:
        shapes = f"{tuple(gamma.shape)} and {tuple(beta.shape)}"
        raise InputError(f"gamma and beta must hold one number per unit, got shapes {shapes}.")
    check_count(m)


def check_count(m: float) -> None:
    """Refuse what no batch holds of a channel."""
    if not 1 <= m < math.inf:
        raise InputError(f"m must be the number of values per channel in a batch, at least 1, got {m}.")
