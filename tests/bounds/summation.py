"""Dot products evaluated one addition at a time, in a given precision and order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import torch
from tests.oracle import Tape, Violation
from torch import Tensor

from nodedrop.bounds import Bounds, bound


@dataclass(frozen=True)
class Unit:
    """A unit w·x + b at one point x, both known floats of one precision."""

    weight: Tensor
    bias: Tensor
    point: Tensor

    @property
    def exact(self) -> Fraction:
        """The real number."""
        terms = zip(self.weight.tolist(), self.point.tolist(), strict=True)
        return sum((Fraction(w) * Fraction(x) for w, x in terms), Fraction(float(self.bias)))

    def rounded(self, order: Tensor) -> float:
        """Every product and every partial sum rounded to the precision, terms taken in this order (bias last)."""
        terms = torch.cat([self.weight * self.point, self.bias.reshape(1)])[order]
        total = terms[0]
        for term in terms[1:]:
            total = total + term
        return float(total)


def rising(dtype: torch.dtype, count: int = 24) -> Unit:
    """Terms just over half a spacing: each is rounded up when added to 1, so the sum drifts above the real one."""
    u = torch.finfo(dtype).eps / 2
    weight = torch.full((count + 1,), u * 1.05, dtype=torch.float64)
    weight[0] = 1.0
    weight = weight.to(dtype)
    bias = (-weight.double().sum()).to(dtype)
    while weight.double().sum() + bias.double() > 0:
        bias = bias * (1 + torch.finfo(dtype).eps)
    return Unit(weight, bias, torch.ones(count + 1, dtype=dtype))


def cancelling(dtype: torch.dtype, seed: int, count: int = 40) -> Unit:
    """Large terms of both signs whose real sum is zero or just below, at the upper corner of [0, 1]."""
    random = torch.Generator().manual_seed(seed)
    size = 2.0 ** torch.randint(-6, 7, (count,), generator=random)
    weight = (torch.randn(count, generator=random, dtype=torch.float64) * size).to(dtype)
    point = (weight > 0).to(dtype)
    top = (weight.double() * point.double()).sum()
    bias = (-top).to(dtype)
    while top + bias.double() > 0:
        bias = bias * (1 + torch.finfo(dtype).eps)
    return Unit(weight, bias, point)


def orders(unit: Unit, count: int = 60) -> Iterator[Tensor]:
    """As written, by size both ways, and at random."""
    size = torch.cat([unit.weight, unit.bias.reshape(1)]).abs().double()
    yield torch.arange(len(size))
    yield size.argsort()
    yield size.argsort(descending=True)
    random = torch.Generator().manual_seed(0)
    for _ in range(count):
        yield torch.randperm(len(size), generator=random)


def written(unit: Unit, tape: Tape, form: str) -> None:
    """The unit as one of the operators that compute it; its inputs lie in [0, 1]."""
    n = len(unit.weight)
    kernel, bias = unit.weight, tape.parameter(unit.bias.reshape(1))
    if form == "linear":
        tape("aten.linear.default", tape.input(1, n, lo=0.0, hi=1.0), tape.parameter(kernel.reshape(1, n)), bias)
    elif form == "conv over inputs":
        tape("aten.conv1d.default", tape.input(1, n, 1, lo=0.0, hi=1.0), tape.parameter(kernel.reshape(1, n, 1)), bias)
    elif form == "conv over positions":
        tape("aten.conv1d.default", tape.input(1, 1, n, lo=0.0, hi=1.0), tape.parameter(kernel.reshape(1, 1, n)), bias)
    elif form == "addmm":
        tape("aten.addmm.default", bias, tape.input(1, n, lo=0.0, hi=1.0), tape.parameter(kernel.reshape(n, 1)))
    else:
        product = tape("aten.matmul.default", tape.input(1, n, lo=0.0, hi=1.0), tape.parameter(kernel.reshape(n, 1)))
        tape("aten.add.Tensor", product, bias)


FORMS = ("linear", "conv over inputs", "conv over positions", "addmm", "matmul and add")


def bounds_of(unit: Unit, form: str = "linear", lowest: torch.dtype | None = None) -> Bounds:
    """Bounds of the unit over the unit box."""
    tape = Tape(unit.weight.dtype)
    written(unit, tape, form)
    return bound(tape.graph(), tape.tensors, tape.domain, dtype=lowest)


def check_orders(unit: Unit, form: str = "linear") -> None:
    """Raise `Violation` if some order of summation leaves the interval."""
    bounds = bounds_of(unit, form)
    interval = bounds[bounds.graph.nodes[-1].name]
    lo, hi = float(interval.lo), float(interval.hi)
    for order in orders(unit):
        result = unit.rounded(order)
        if not lo <= result <= hi:
            raise Violation(f"{form} in {unit.weight.dtype}: {result!r} is outside [{lo!r}, {hi!r}] in one order")
