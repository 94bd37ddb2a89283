"""How far rounding can take the sums of units from the real ones, also where terms of 0 are counted.

A ledger may count more terms than the checker, and state bounds that lie above its own by no more than this.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from .calls import Call, is_transposed
from .interval import INF, Array, Value
from .pairs import PRODUCTS, Findings, Pair
from .program import Step
from .sums import units_first


def note_rounding(findings: Findings, call: Call, a: Step, pairs: Mapping[str, Pair], result: Value) -> None:
    """Of each unit of a layer whose weights are known."""
    values = {name: pair.value for name, pair in pairs.items()}
    conv = "conv" in a.op and "weight" in values
    if not conv and a.op not in PRODUCTS:
        return
    sizes, weights = _of_kernel(call, a, values) if conv else _of_matrix(a, values)
    if sizes is None or weights is None:
        return
    bias = values.get("bias" if conv else PRODUCTS[a.op][2])
    offset = np.abs(bias.full(0).lo) if bias is not None and bias.exact and len(bias.shape) == 1 else 0.0
    with np.errstate(all="ignore"):
        total = (np.abs(weights).sum(-1) * sizes).sum(-1).reshape(-1) + offset
        margin = 2 * call.arithmetic.margin(total, weights.shape[-1] * weights.shape[-2] + 1)
    _note(findings, result, np.where(np.isfinite(margin), margin, 0.0), 1 if conv else len(result.shape) - 1)


def _of_matrix(a: Step, values: Mapping[str, Value]) -> tuple[Array | None, Array | None]:
    """The sizes of inputs [1, inputs], and weights [units, inputs, 1]."""
    x, y = (values[name] for name in PRODUCTS[a.op][:2])
    if not y.exact or y.rows is not None or len(y.shape) != 2 or len(x.shape) < 2:
        return None, None
    last, matrix = len(x.shape) - 1, y.full(0, 1).lo
    sizes = x.sure.hull(tuple(range(last))).full(last).size.reshape(1, -1)
    return sizes, (matrix if a.op == "linear.default" else matrix.T)[..., None]


def _of_kernel(call: Call, a: Step, values: Mapping[str, Value]) -> tuple[Array | None, Array | None]:
    """The sizes of inputs [groups, 1, inputs], and weights [groups, units, inputs, positions]."""
    x, w, groups, rank = values["input"], values["weight"], int(a.args["groups"]), len(call.shape)
    if not w.exact or w.rows is not None or len(w.shape) != rank or len(x.shape) != rank:
        return None, None
    sizes = x.sure.hull((0, *range(2, rank))).full(1).size.reshape(groups, 1, -1)
    kernel = w.full(*range(rank)).lo
    kernel = units_first(kernel, groups) if is_transposed(call, a.args) else kernel
    return sizes, kernel.reshape(groups, kernel.shape[0] // groups, kernel.shape[1], -1)


def _note(findings: Findings, result: Value, margin: Array, axis: int) -> None:
    """By the units that a result's elements belong to."""
    line = margin.reshape([-1 if d == axis else 1 for d in range(len(result.shape))])
    for key, tag in result.tags:
        at, numbers = (item.reshape(-1) for item in np.broadcast_arrays(tag, line))
        row = findings.margins.setdefault(key[:2], {})
        for index, number in zip(at.tolist(), numbers.tolist(), strict=True):
            if index >= 0:
                row[index] = max(row.get(index, -INF), number)
