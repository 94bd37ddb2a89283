"""The NodeDrop condition: an upper bound of every unit, and where it shows that the unit is dead."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..errors import InputError
from .units import PerInput, check_norm_sizes, split_units, spread_inputs, unit_bias


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
    units = split_units(weight, groups, transposed).double()
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
        units = split_units(weight, groups, transposed).double()
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
    check_norm_sizes(gamma, beta, m)
    with torch.no_grad():
        radius = gamma.double().abs() * math.sqrt(m if weak else m - 1)
        return radius + beta.double() <= 0


def _read_box(lo: PerInput, hi: PerInput, units: Tensor, *, reads_zero: bool) -> tuple[Tensor, Tensor]:
    low, high = spread_inputs(lo, units, "lo"), spread_inputs(hi, units, "hi")
    if not bool((low <= high).all()):
        raise InputError("lo must not exceed hi, and neither may be NaN.")
    return (low.clamp(max=0), high.clamp(min=0)) if reads_zero else (low, high)


def _box_maximum(units: Tensor, bias: Tensor | None, low: Tensor, high: Tensor, *, weak: bool) -> Tensor:
    if weak:
        low, high = torch.minimum(low, -high), torch.maximum(high, -low)
    rising, falling = torch.relu(units), torch.relu(-units)
    # A zero weight shuts out even an unbounded input.
    reach = rising * high.where(rising > 0, 0.0) - falling * low.where(falling > 0, 0.0)
    return reach.sum(dim=(2, 3)).flatten() + unit_bias(bias, units)
