"""Which elements go together: those that meet somewhere, so that one cannot be cut without the others.

Where an index is met by several units at once, by heads or groups of a convolution, say, they are told as going
together; where units can be followed no further, they are `open`, and may go together with anything.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from .calls import Call, is_transposed
from .interval import Array, Value
from .pairs import EACH, PER_CHANNEL, PRODUCTS, RECURRENT, Findings, Keep, Pair, Pairs, Unit
from .program import Step
from .tags import units_at

Sides = Iterable[tuple[Pair, int]]


def note_ties(findings: Findings, call: Call, a: Step, pairs: Pairs, result: Value, keep: Keep) -> None:
    """Note what meets in a call at indices that are gone. `pairs` are its operands, `keep` is left of its result."""
    _note_open(findings, a, pairs, result)
    if a.op in PRODUCTS:
        _product(findings, a, pairs)
    elif "conv" in a.op and "weight" in pairs:
        _convolution(findings, call, a, pairs, result, keep)
    elif a.op in EACH:
        shapes = [(pair, len(result.shape) - len(pair.value.shape)) for pair in pairs.values()]
        for axis in range(len(result.shape)):
            sides = [(p, axis - lead) for p, lead in shapes if axis >= lead and p.value.shape[axis - lead] > 1]
            note_meeting(findings, sides, _gone(keep[axis], result.shape[axis]))
    elif PER_CHANNEL.fullmatch(a.op.split(".")[0]):
        main = pairs[_main(pairs)]
        channels = [(p, 0) for p in pairs.values() if p is not main and p.value.shape == main.value.shape[1:2]]
        note_meeting(findings, [(main, 1), *channels], _gone(main.keep[1], main.value.shape[1]))


def _main(pairs: Pairs) -> str:
    return next(name for name in ("input", "self") if name in pairs)


def _note_open(findings: Findings, a: Step, pairs: Pairs, result: Value) -> None:
    """Units of operands that the result does not tell, and that are not summed away, can be followed no further."""
    told = {key[:2]: bool((tag < 0).any()) for key, tag in result.tags}
    ends = _ends(a, pairs)
    for name, pair in pairs.items():
        for key, tag in pair.value.tags:
            varies = {d for d, n in enumerate(tag.shape) if n > 1}
            blurred = told.get(key[:2], True) and not (key[:2] in told and (tag < 0).any())
            if blurred and not varies <= ends.get(name, set()):
                findings.open.add(key[:2])


def _ends(a: Step, pairs: Pairs) -> dict[str, set[int]]:
    """Axes of operands along which what meets in a call is noted, and need not be followed."""
    if a.op in PRODUCTS:
        x, y, bias = PRODUCTS[a.op]
        rank = len(pairs[y].value.shape)
        return {x: {len(pairs[x].value.shape) - 1}, y: {1 if a.op == "linear.default" else rank - 2}, bias: {0}}
    if "conv" in a.op or a.op in RECURRENT:
        last = len(pairs["input"].value.shape) - 1 if "input" in pairs else 0
        return {"input": {last if a.op in RECURRENT else 1}, "weight": {0, 1}, "bias": {0}}
    if PER_CHANNEL.fullmatch(a.op.split(".")[0]):
        return {name: {0} for name in pairs if name != _main(pairs)}
    return {}


def _product(findings: Findings, a: Step, pairs: Pairs) -> None:
    """Inputs with the weights that read them, units with their biases, and whole products with each other."""
    x, y, bias = (pairs.get(name) for name in PRODUCTS[a.op])
    if x is None or y is None or min(len(x.value.shape), len(y.value.shape)) < 2:
        return
    last, rank = len(x.value.shape) - 1, len(y.value.shape)
    inner, outer = (1, 0) if a.op == "linear.default" else (rank - 2, rank - 1)
    note_meeting(findings, [(x, last), (y, inner)], _gone(x.keep[last], x.value.shape[last]))
    beside = [] if bias is None else [(bias, 0)]
    note_meeting(findings, [(y, outer), *beside], _gone(y.keep[outer], y.value.shape[outer]))
    for d in range(rank - 2):
        note_meeting(findings, [(x, last + 1 - rank + d), (y, d)], _gone(y.keep[d], y.value.shape[d]))


def _convolution(findings: Findings, call: Call, a: Step, pairs: Pairs, result: Value, keep: Keep) -> None:
    """As a product; what goes of one group goes together."""
    x, weight, bias, groups = pairs["input"], pairs["weight"], pairs.get("bias"), int(a.args["groups"])
    read, made = _gone(x.keep[1], x.value.shape[1]), _gone(keep[1], result.shape[1])
    units = [_units(result, 1, index) + ([] if bias is None else _units(bias.value, 0, index)) for index in made]
    if groups == 1:
        note_meeting(findings, [(x, 1), (weight, 0 if is_transposed(call, a.args) else 1)], read)
        for group in units:
            findings.tie(group)
        return
    for number in range(groups):
        ins = [u for k in read if k * groups // x.value.shape[1] == number for u in _units(x.value, 1, k)]
        outs = [u for k, own in zip(made, units, strict=True) if k * groups // result.shape[1] == number for u in own]
        findings.tie(ins + outs)


def note_meeting(findings: Findings, sides: Sides, gone: Iterable[int]) -> None:
    """Elements of several values at the same index of an axis of each, where it is known whose they are."""
    listed = list(sides)
    for index in gone:
        met = [_units(pair.value, axis, index) for pair, axis in listed]
        if all(met):
            findings.tie([unit for units in met for unit in units])


def _units(value: Value, axis: int, index: int) -> list[tuple[Unit, int]]:
    return units_at(value, axis, index) if index < value.shape[axis] else []


def _gone(keep: Array, size: int) -> list[int]:
    return [int(k) for k in np.setdiff1d(np.arange(size), keep)]
