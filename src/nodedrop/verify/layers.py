"""Layers, where elements may vanish: each term that a sum misses must be 0, be read by no weight that is left, or be a
constant that the bias after the cut contains."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from .arrays import dense, refs
from .calls import is_by_rows, is_padded, is_transposed
from .interval import INF, Array, Value
from .pairs import INNER, PRODUCTS, Keep, NotProved, Pair, Pairs, Unit, matched_units
from .program import Step
from .tags import units_at, units_gone
from .ties import note_meeting

if TYPE_CHECKING:
    from .relation import Walk


def product(walk: Walk, a: Step, b: Step, pairs: Pairs) -> tuple[Pairs, Keep]:
    """x @ y + b, or x @ yᵀ + b for a linear layer."""
    walk.same(a, b)
    names = PRODUCTS[a.op]
    x, y, bias = pairs[names[0]], pairs[names[1]], pairs.get(names[2])
    rank = len(y.value.shape)
    inner, outer = (1, 0) if a.op == "linear.default" else (rank - 2, rank - 1)
    scaled = a.op == "addmm.default" and (a.args["alpha"] != 1 or a.args["beta"] != 1)
    if scaled or len(x.value.shape) < max(2, rank) or rank < 2 or (bias is not None and len(bias.value.shape) != 1):
        return walk.untouched(a, b, pairs)
    x = walk.settled(x, {len(x.value.shape) - 1: y.keep[inner]} if y.leaf is None else None)
    lead = len(x.keep) - rank
    batch = {d: x.keep[d + lead] for d in range(rank - 2) if y.value.shape[d] > 1}
    y = walk.settled(y, {inner: x.keep[-1], **batch}, bias, signed=False)
    known = [pair.value.exact or pair.leaf is not None for pair in (pairs[names[0]], pairs[names[1]])]
    mass = None
    if y.value.exact and y.value.rows is None and rank == 2 and bias is not None and bias.leaf is not None:
        mass = np.take(y.value.full(0, 1).lo, y.keep[outer], outer)
        mass = mass if outer == 0 else mass.T
    found, last = {names[0]: x, names[1]: y}, len(x.keep) - 1
    if known == [True, False]:  # weights on the left
        settled = _absorb(walk, y, inner, _idle(x, last, last - 1), None, bias, y.keep[outer])
    else:
        settled = _absorb(walk, x, last, _idle(y, inner, outer), mass, bias, y.keep[outer])
    if bias is not None:
        found[names[2]] = settled
    if any(known):
        maker, axis = (y, outer) if known[1] else (x, last - 1)
        walk.findings.gone.update(units_gone(maker.value, axis, maker.keep[axis]))
    for d in batch:
        _note_lost(walk, x, d + lead)
        _note_lost(walk, y, d)
    return found, (*x.keep[:-1], y.keep[outer])


def _idle(weights: Pair, inner: int, outer: int) -> Array:
    """Which inputs no weight that is left reads."""
    if weights.value.rows is not None:
        return np.zeros(weights.value.shape[inner], bool)
    zero = np.take(np.broadcast_to(weights.value.zero, weights.value.shape), weights.keep[outer], outer)
    return np.asarray(np.moveaxis(zero, inner, 0).reshape(weights.value.shape[inner], -1).all(1))


def lost(pair: Pair, axis: int) -> list[int]:
    """Indices along an axis that are gone."""
    every = np.arange(pair.value.shape[axis])
    return [int(k) for k in np.setdiff1d(every, pair.keep[axis])]


def _note_lost(walk: Walk, pair: Pair, axis: int) -> None:
    """Of whole products that are gone, the heads of an attention, say: nothing that is left reads their units."""
    if not pair.value.exact:
        zero = _zero_along(pair.value.sure, axis)
        for index in lost(pair, axis):
            walk.findings.note(units_at(pair.value, axis, index), (bool(zero[index]), False, True))


def _zero_along(value: Value, axis: int) -> Array:
    """At which indices of an axis all elements are 0."""
    others = tuple(d for d in range(len(value.shape)) if d != axis)
    return np.broadcast_to(value.zero.all(others), value.shape[axis])


def recurrent(walk: Walk, a: Step, b: Step, pairs: Pairs) -> tuple[Pairs, Keep]:
    """An LSTM or GRU may have lost inputs, of which its first layer's weights must know; all else is whole."""
    walk.same(a, b)
    x, params = walk.settled(pairs["input"]), refs(a.args["params"])
    rank, each = len(x.keep), 4 if a.args["has_biases"] else 2
    directions = 2 if a.args["bidirectional"] else 1
    if len(params) != each * directions * int(a.args["num_layers"]):
        return walk.untouched(a, b, pairs)
    readers = [params[k * each] for k in range(directions)]
    idle: Array = np.ones(x.value.shape[-1], bool)
    sides = [(x, rank - 1)]
    for place in refs(a.args):
        if place in readers:
            w = walk.settled(walk.values[place][0], {1: x.keep[-1]})
            walk.require(w, [0])
            sides.append((w, 1))
            idle &= w.value.rows is None and np.broadcast_to(w.value.zero, w.value.shape).all(0)
        elif place != a.args["input"].place:
            walk.require(walk.settled(walk.values[place][0]))
    walk.require(x, range(rank - 1))
    note_meeting(walk.findings, sides, lost(x, rank - 1))
    _absorb(walk, x, rank - 1, idle, None, None, np.zeros(0, int))
    return {**pairs, "input": x}, tuple(np.arange(n) for n in a.results[0][0])  # type: ignore[index]


def convolution(walk: Walk, a: Step, b: Step, pairs: Pairs) -> tuple[Pairs, Keep]:
    """As a linear layer over channels, with the kernels of all groups written into one."""
    call = walk.call(a)
    x, w, bias = walk.settled(pairs["input"]), pairs["weight"], pairs.get("bias")
    rank = len(x.value.shape)
    if w.leaf is None or not (w.value.exact or w.leaf.stated) or len(w.value.shape) != rank or rank < 3:
        return walk.untouched(a, b, pairs)
    walk.same(a, b, but="groups")
    walk.require(x, [d for d in range(rank) if d != 1])
    if w.leaf.before.shape[2:] != w.leaf.after.shape[2:] or set(walk.hints.get(w.leaf.name, {})) - {0, 1, INNER}:
        raise NotProved(f"{walk.place} has other kernels in the second module")
    turned, left = is_transposed(call, a.args), x.keep[1]
    own = (w.leaf.name, 0 if is_by_rows(call, a.args, w.value.shape) else 1)
    if w.leaf.stated:
        return _stated(walk, a, x, w, bias, turned, own)
    old, new = (dense(t, s.args["groups"], turned) for t, s in ((w.leaf.before, a), (w.leaf.after, b)))
    given = walk.hints.get(w.leaf.name, {})
    rows = given.get(INNER, given.get(1)) if turned else given.get(0)
    if turned and rows is not None and INNER not in given:  # the same units of every group
        rows = (np.arange(a.args["groups"])[:, None] * w.leaf.before.shape[1] + rows).reshape(-1)
        rows = rows if a.args["groups"] == b.args["groups"] else None
    rows = matched_units(old[:, left], new, None if bias is None else bias.leaf) if rows is None else rows
    if not np.array_equal(old[np.ix_(rows, left)], new):
        raise NotProved(f"{walk.place}: '{w.leaf.name}' of the second module is not the first's without some units")
    walk.findings.note_kept(w, _of_kernel(a, w, rows, left, turned))
    mass = None if is_padded(call, a.args) or bias is None or bias.leaf is None else old[rows].sum(-1)
    settled = _absorb(walk, x, 1, (old[rows] == 0).all((0, 2)), mass, bias, rows)
    walk.findings.gone.update(frozenset([(own, int(k))]) for k in np.setdiff1d(np.arange(len(old)), rows))
    found = {"input": x, "weight": w, **({} if bias is None else {"bias": settled})}
    return found, (x.keep[0], rows, *(np.arange(n) for n in a.results[0][0][2:]))  # type: ignore[index]


def _stated(
    walk: Walk, a: Step, x: Pair, w: Pair, bias: Pair | None, turned: bool, own: Unit
) -> tuple[Pairs, Keep]:
    """A convolution of which only a part is known, at most."""
    groups, shape = int(a.args["groups"]), w.value.shape
    given = walk.hints.get(w.leaf.name, {})  # type: ignore[union-attr]
    outer = given.get(0, np.arange(shape[0]))
    inner = given.get(INNER if groups > 1 else 1, np.arange(groups * shape[1]))
    rows, read = (inner, outer) if turned else (outer, inner)
    if not np.array_equal(read, x.keep[1]):
        raise NotProved(f"{walk.place}: values that meet have lost different elements")
    walk.findings.note_kept(w, _of_kernel(a, w, rows, read, turned))
    used = np.ones(shape, bool) if w.value.rows is not None else ~np.broadcast_to(w.value.zero, shape)
    idle = np.asarray(~dense(used, groups, turned)[rows].any((0, 2)))
    settled = _absorb(walk, x, 1, idle, None, bias, rows)
    every = np.arange(a.results[0][0][1])  # type: ignore[index]
    walk.findings.gone.update(frozenset([(own, int(k))]) for k in np.setdiff1d(every, rows))
    found = {"input": x, "weight": w, **({} if bias is None else {"bias": settled})}
    return found, (x.keep[0], rows, *(np.arange(n) for n in a.results[0][0][2:]))  # type: ignore[index]


def _of_kernel(a: Step, w: Pair, rows: Array, read: Array, turned: bool) -> Keep | None:
    """What is left along the axes of a kernel; of several groups, these need not be indices along axes."""
    first = (read, rows) if turned else (rows, read)
    return None if a.args["groups"] > 1 else (*first, *(np.arange(n) for n in w.value.shape[2:]))


def _absorb(walk: Walk, x: Pair, axis: int, idle: Array, mass: Array | None, bias: Pair | None, rows: Array) -> Any:
    """Every input that is gone must not be missed. `idle` are those that nothing left reads, `mass` the weights
    left by which a constant can have moved into the bias, [units, inputs]."""
    x = replace(x, value=x.value.sure)
    size, left = x.value.shape[axis], x.keep[axis]
    if len(np.unique(left)) != len(left):
        raise NotProved(f"{walk.place}: an element is summed twice")
    others = tuple(d for d in range(len(x.value.shape)) if d != axis)
    dead = _zero_along(x.value, axis)
    lo, hi = (np.broadcast_to(end, size) for end in (x.value.lo.min(others), x.value.hi.max(others)))
    shift = scale = width = np.zeros(len(rows))
    for index in lost(x, axis):
        still = hi[index] - lo[index] <= 12 * x.u * max(abs(lo[index]), abs(hi[index])) < INF
        true = (bool(dead[index]), mass is not None and still, bool(idle[index]))
        units = units_at(x.value, axis, index)
        if not any(true):
            names = " or ".join([*dict.fromkeys(f"unit {at} of '{unit[0]}'" for unit, at in units)][:4])
            what = names or f"element {index} of axis {axis}"
            raise NotProved(f"{walk.place} reads {what}, which was removed and may be as large as {hi[index]:.4g}")
        walk.findings.note(units, true)
        if true[1] and not true[0] and bias is not None and bias.leaf is not None:
            walk.findings.folded.add(bias.leaf.name)
        if mass is not None and not (dead[index] or idle[index]):
            terms = mass[:, index] * (lo[index] + hi[index]) / 2
            shift, scale = shift + terms, scale + np.abs(terms)
            width = width + np.abs(mass[:, index]) * (hi[index] - lo[index])
    if bias is None or not scale.any():
        return None if bias is None else walk.settled(bias, {0: rows}, signed=False)
    leaf = bias.leaf
    if leaf is None or leaf.after.shape != rows.shape:
        raise NotProved(f"{walk.place}: the bias has another size than the units")
    # The sum is rounded once, to the bias's own type; the constants are as well known as their intervals are wide.
    wanted, kind = leaf.before[rows] + shift, torch.finfo(walk.before.tensors[leaf.name].dtype)
    noise = width + kind.eps * (np.abs(wanted) + kind.tiny) + 2.0**-40 * (np.abs(leaf.before[rows]) + scale)
    if not (np.abs(leaf.after - wanted) <= noise).all():
        raise NotProved(f"{walk.place}: '{leaf.name}' does not contain the constants that were removed")
    walk.findings.note_kept(bias, None)
    return replace(bias, keep=(rows,))
