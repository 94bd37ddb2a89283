"""Which unit an element belongs to, from the weight that makes it on to where it is read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .calls import Call, axes_of, is_by_rows
from .interval import INF, Array, Value
from .pairs import ALONG, CURVES, EACH, PER_CHANNEL, PRODUCTS, REDUCTIONS, ZERO, Findings, Pair, Unit
from .program import Step


def tags_of(name: str, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """The units of a tensor along its first two axes, and the last of one that is the same for all samples."""
    last = len(shape) - 1
    axes = [*range(min(last + 1, 2)), *([last] if last > 1 and shape[0] == 1 < shape[last] else [])]
    lines = {d: [-1 if e == d else 1 for e in range(len(shape))] for d in axes}
    return tuple(((name, d, True), np.arange(shape[d]).reshape(line)) for d, line in lines.items())


def units_at(value: Value, axis: int, index: int) -> list[tuple[Unit, int]]:
    """The units that elements at an index of an axis belong to, one in each head, say."""
    found = []
    for key, tag in value.tags:
        if tag.shape[axis] > 1:
            found += [(key[:2], int(t)) for t in np.unique(tag.take(index, axis)) if t >= 0]
    return found


def units_gone(value: Value, axis: int, keep: Array) -> set[frozenset[tuple[Unit, int]]]:
    """For each index of a weight's axis that is gone, the units that all elements there belong to, and none elsewhere;
    of a weight that is made of several tensors, one of each."""
    found = set()
    for index in np.setdiff1d(np.arange(value.shape[axis]), keep).tolist():
        sole = [(key, tag) for key, tag in value.tags if tag.shape[axis] > 1 and np.ptp(tag.take(index, axis)) == 0]
        units = [(key[:2], int(tag.take(index, axis).flat[0]), tag.take(keep, axis)) for key, tag in sole]
        found.add(frozenset((key, unit) for key, unit, left in units if unit >= 0 and unit not in left))
    return found - {frozenset()}


def meet(findings: Findings, a: Step, pairs: Mapping[str, Pair]) -> None:
    """At an activation with a zero region: how large each unit's value can be there."""
    edge = ZERO[a.op](a.args) if a.op in ZERO else None
    if edge is None:
        return
    x = next(iter(pairs.values())).value.sure
    for (name, axis, fresh), tag in x.tags:
        if fresh:
            at, tops, sizes = (item.reshape(-1) for item in np.broadcast_arrays(tag, x.hi, x.size))
            for table, numbers in ((findings.bounds, tops), (findings.sizes, sizes)):
                most = np.full(int(at.max(initial=0)) + 1, -INF)
                np.maximum.at(most, at[at >= 0], numbers[at >= 0])
                row = table.setdefault((name, axis), {})
                for index in np.unique(at[at >= 0]).tolist():
                    row[index] = max(row.get(index, -INF), float(most[index]))


def tags_after(call: Call, a: Step, pairs: Mapping[str, Pair], value: Value) -> tuple[Any, ...]:
    """Which units the result's elements belong to."""
    rank, conv = len(value.shape), "conv" in a.op
    if a.op in PRODUCTS:
        rows, columns, _ = PRODUCTS[a.op]
        return _of_product(a, pairs[rows].value, pairs[columns].value, rank)
    if a.op == "embedding.default":
        table = pairs["weight"].value
        return tuple((key, tag.reshape((1,) * (rank - 1) + (-1,))) for key, tag in table.tags if tag.shape[0] == 1)
    if conv and "weight" in pairs:
        source = pairs["weight"].value
        turned = not is_by_rows(call, a.args, source.shape)
        shape = [-1 if d == 1 else 1 for d in range(rank)]
        times = int(a.args["groups"]) if turned else 1
        return tuple(
            (key, np.concatenate([tag.reshape(-1) + g * tag.size for g in range(times)]).reshape(shape))
            for key, tag in source.tags
            if tag.ndim > 1 and tag.size == tag.shape[int(turned)] > 0
        )
    name = a.op.split(".")[0]
    if a.op not in EACH and not PER_CHANNEL.fullmatch(name) and not ALONG.fullmatch(name):
        return ()
    done = a.op in CURVES or (a.op in ZERO and ZERO[a.op](a.args) is not None)
    found = []
    for word, pair in pairs.items():
        for (owner, axis, fresh), tag in pair.value.tags if a.op in EACH or word in ("input", "self") else ():
            if name in REDUCTIONS:
                tag = _reduced(tag, axes_of(a.args, tag.ndim), bool(a.args.get("keepdim")))
            shaped = tag.reshape((1,) * (rank - tag.ndim) + tag.shape)
            if all(shaped.shape[d] in (1, value.shape[d]) for d in range(rank)):
                found.append(((owner, axis, fresh and not done), shaped))
    return tuple(found)


def _of_product(a: Step, rows: Value, columns: Value, rank: int) -> tuple[Any, ...]:
    """The units of both sides that do not differ along the axis that is summed. Rows of what is no weight have met
    their activation, or never will as what they were."""
    found = []
    for (name, axis, fresh), tag in rows.tags:
        if 1 < tag.ndim <= rank and tag.shape[-1] == 1:
            key = (name, axis, fresh and rows.exact)
            found.append((key, tag.reshape((1,) * (rank - tag.ndim) + tag.shape)))
    for key, tag in columns.tags:
        matrix = tag.swapaxes(-1, -2) if a.op == "linear.default" and tag.ndim > 1 else tag
        if 1 < matrix.ndim <= rank and matrix.shape[-2] == 1:
            found.append((key, matrix.reshape((1,) * (rank - matrix.ndim) + matrix.shape)))
    return tuple(found)


def _reduced(tag: Array, axes: tuple[int, ...], keepdim: bool) -> Array:
    """The units of a sum or a maximum along axes, where all its elements belong to the same, or to none."""
    most, least = tag.max(axes, keepdims=True), np.where(tag < 0, tag.max() + 1, tag).min(axes, keepdims=True)
    tag = np.where(most == least, most, -1)
    return tag if keepdim else tag.reshape([n for d, n in enumerate(tag.shape) if d not in axes])
