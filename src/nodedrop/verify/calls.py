"""A use of an operator, and the registry of rules: what each operator does to intervals."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from .interval import DOUBLE, INF, Arithmetic, Array, Ball, Value, between, gamma, known

Args = Mapping[str, Any]


@dataclass(frozen=True)
class Call:
    """One use of an operator: result shape, arithmetic, and how much larger a training batch may be; `types` are those
    that kernels may compute in; `last` tells that channels of what it reads lie last in memory."""

    op: str
    shape: tuple[int, ...]
    arithmetic: Arithmetic
    growth: float
    cast: bool
    epsilon: float
    types: tuple[torch.dtype, ...]
    last: bool = False

    def value(self, x: Any) -> Value:
        """A tensor, or a number in the program's text, which a kernel may round to its own precision."""
        if isinstance(x, Value):
            return x
        number = float(x)
        if np.isnan(number):
            return between(-INF, INF, ())
        found = [number, *(float(torch.tensor(number, dtype=dtype)) for dtype in self.types)]
        return known(np.array(number)) if min(found) == max(found) else between(min(found), max(found), ())

    def ends(self, lo: Array, hi: Array, ulps: float = 1.0) -> Value:
        """The result from its real ends."""
        return self.arithmetic.widened(lo, hi, self.shape, ulps)

    def rounded(self, ball: Ball, ulps: int = 1) -> Ball | None:
        """Normalised rows that are rounded here; None where an element may overflow, or is not known to be finite."""
        size, arithmetic = ball.size, self.arithmetic
        if not (size <= arithmetic.most).all():
            return None
        step = gamma(2 * ulps, arithmetic.u) + 8 * DOUBLE
        return replace(ball, error=ball.error + size * step + 2 * arithmetic.tiny)


Rule = Callable[[Call, Args], Value]
RULES: dict[str, Rule] = {}


def rule(*ops: str) -> Callable[[Rule], Rule]:
    """Register a rule for operators, `aten` ones without that word."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(ops, function))
        return function

    return register


def is_transposed(call: Call, a: Args) -> bool:
    """Whether a convolution is a transposed one."""
    return "transpose" in call.op or bool(a.get("transposed", False))


def is_by_rows(call: Call, a: Args, kernel: tuple[int, ...]) -> bool:
    """Whether each row of a convolution's kernels makes a unit of its own; of transposed ones, with a unit a group."""
    return not is_transposed(call, a) or (kernel[1] == 1 and kernel[0] == int(a["groups"]))


def is_padded(call: Call, a: Args) -> bool:
    """Whether some positions of a convolution see less than a whole window."""
    pads = a["padding"]
    return is_transposed(call, a) or (pads != "valid" if isinstance(pads, str) else any(np.atleast_1d(pads)))


def axes_of(a: Args, rank: int) -> tuple[int, ...]:
    """The axes that an operator works along, all if none are given; padding counts them from the last one."""
    if "pad" in a:
        return tuple(sorted({rank - 1 - k // 2 for k, n in enumerate(a["pad"]) if n}))
    given = a.get("dim")
    return tuple(range(rank)) if given is None or given == [] else tuple(int(d) % rank for d in np.atleast_1d(given))
