"""A use of an operator, and the registry of rules: what each operator does to intervals."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .interval import DOUBLE, INF, Arithmetic, Array, Value, between

Args = Mapping[str, Any]


@dataclass(frozen=True)
class Call:
    """One use of an operator: result shape, arithmetic, and how much larger a training batch may be."""

    op: str
    shape: tuple[int, ...]
    arithmetic: Arithmetic
    growth: float
    cast: bool
    epsilon: float

    def value(self, x: Any) -> Value:
        """A tensor, or a number in the program's text, which a kernel may round to its own precision."""
        if isinstance(x, Value):
            return x
        u, number = self.arithmetic.u, float(x)
        if np.isnan(number):
            return between(-INF, INF, ())
        with np.errstate(over="ignore"):
            single = u <= 2.0**-24 and number == float(np.float32(number))
        exact = single or u <= DOUBLE or number == 0 or np.isinf(number)
        slack = 0.0 if exact else abs(number) * u + 2 * u * self.arithmetic.tiny
        return between(number - slack, number + slack, ())

    def ends(self, lo: Array, hi: Array, ulps: float = 1.0) -> Value:
        """The result from its real ends."""
        return self.arithmetic.widened(lo, hi, self.shape, ulps)


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
