"""A removed unit that reads the input itself, and an input of the domain for which it was not dead.

Of such a unit a cut has kept all that its value depends on, so the corner of the box that makes it largest can be found
and tried. Of units further back this is not known: what they read depends on weights that were kept as intervals, or
not at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .arrays import MOVES, refs
from .claims import Refuted
from .interval import Array, Value, gamma
from .pairs import ZERO, Assumptions, arithmetic
from .program import Program, Ref, Step
from .search import Counterexample

LAYERS = ("linear.", "conv1d.", "conv2d.", "conv3d.")
FAR = 1e6  # where the domain has no end


@dataclass(frozen=True)
class Alive(Counterexample):
    """An input for which a unit that was removed as dead is as large as `difference`."""

    unit: str = ""

    def __str__(self) -> str:
        shown = "; ".join(np.array2string(t.numpy(), precision=4, threshold=24, edgeitems=2) for t in self.inputs)
        return f"in {self.mode} mode {self.unit} is {self.difference:.6g} before its activation on the input {shown}"


class Lives(Refuted):
    """A unit that was removed is not dead."""

    def __init__(self, text: str, shown: Alive) -> None:
        super().__init__(text)
        self.shown = shown


def require_dead(units: Any, program: Program, given: Assumptions, mode: str) -> None:
    """No unit that reads the input itself, and states that it stays below its activation's edge, is above it for an
    input of the domain."""
    for unit in (unit for unit in units if unit["bound"] is not None and unit["axis"] == 0):
        for place, edge in _layers(program, unit["weight"]):
            found = _largest(program, place, given, unit["weight"], unit["index"])
            if found is not None and found[0] > edge >= unit["bound"]:
                who = f"unit {unit['index']} of '{unit['layer']}'"
                text = f"{who} went as dead with a bound of {unit['bound']}, and an input makes it {found[0]:.6g}"
                raise Lives(text, Alive(tuple(found[1].values()), mode, found[0], who))


def _layers(program: Program, weight: str) -> Iterator[tuple[int, float]]:
    """The places where a layer with this weight is computed, and the edges of the activations that read it."""
    for place, step in enumerate(program.steps):
        source = step.args.get("weight")
        if step.op.startswith(LAYERS) and isinstance(source, Ref):
            leaf = program.steps[source.place]
            if leaf.op == "tensor" and leaf.args["name"] == weight:
                edges = [ZERO[s.op](s.args) for s in program.steps if s.op in ZERO and refs(s.args)[:1] == [place]]
                yield from ((place, edge) for edge in edges if edge is not None)


def _largest(
    program: Program, place: int, given: Assumptions, weight: str, index: int
) -> tuple[float, dict[str, Tensor]] | None:
    """The least that a unit's value is for the input that makes it largest, rounding included; None if not known."""
    step = program.steps[place]
    row, bias = _row(given.known or {}, weight, index), step.args.get("bias")
    offset = 0.0 if bias is None else _number(given.known or {}, program.steps[bias.place], index)
    if row is None or offset is None:
        return None
    box = {name: _box(given.boxes[name], *kind) for name, kind in program.inputs.items()}
    kernel = torch.zeros(program.tensors[weight].shape, dtype=torch.float64)
    kernel[index] = row

    def value(inputs: Mapping[str, Tensor], kernel: Tensor, offset: float) -> Tensor:
        result = step.run(**{**step.args, "input": _moved(program, step.args["input"].place, inputs),
                             "weight": kernel, "bias": None})  # fmt: skip
        axis = 1 if "conv" in step.op else result.dim() - 1
        middle = result.select(axis, index)
        found: Tensor = middle[tuple(n // 2 for n in middle.shape)] + offset
        return found

    try:
        start = {name: ((lo + hi) / 2).requires_grad_() for name, (lo, hi, _) in box.items()}
        slopes = torch.autograd.grad(value(start, kernel, offset), list(start.values()), allow_unused=True)
        chosen = {name: _corner(*box[name], slope) for (name, _), slope in zip(start.items(), slopes, strict=True)}
        wide = {name: x.double() for name, x in chosen.items()}
        found = float(value(wide, kernel, offset))
        size = float(value({name: x.abs() for name, x in wide.items()}, kernel.abs(), abs(offset)))
    except (LookupError, RuntimeError, TypeError):  # it reads something else than the input
        return None
    sums = arithmetic(step.results[0][1], given.lowest)  # type: ignore[index]
    return found - size * gamma(row.numel() + 8, max(sums.u, 2.0**-53)) - sums.tiny, chosen


def _moved(program: Program, place: int, inputs: Mapping[str, Tensor]) -> Tensor:
    """The input as a layer reads it; LookupError if anything but movement lies between."""
    step = program.steps[place]
    if step.op == "input":
        return inputs[step.args["name"]]
    if step.op not in MOVES:
        raise LookupError(step.op)

    def filled(value: Any) -> Any:
        if isinstance(value, Ref):
            return _moved(program, value.place, inputs)
        return [filled(item) for item in value] if isinstance(value, list) else value

    result: Tensor = step.run(**{name: filled(value) for name, value in step.args.items()})
    if not isinstance(result, Tensor):
        raise LookupError(step.op)
    return result


def _row(known: Mapping[str, Value], name: str, index: int) -> Tensor | None:
    """A unit's own weights, where they are known."""
    value = known.get(name)
    if value is None or (value.rows is not None and index not in value.rows):
        return None
    at = index if value.rows is None else int(np.flatnonzero(value.rows == index)[0])
    exact = np.array_equal(value.lo[at], value.hi[at]) and np.isfinite(value.lo[at]).all()
    return torch.from_numpy(np.array(value.lo[at])) if exact else None


def _number(known: Mapping[str, Value], leaf: Step, index: int) -> float | None:
    """A unit's own bias, where it is known."""
    row = _row(known, leaf.args["name"], index) if leaf.op == "tensor" else None
    return None if row is None or row.dim() else float(row)


def _box(ends: tuple[Array, Array], shape: tuple[int, ...], dtype: torch.dtype) -> tuple[Tensor, Tensor, torch.dtype]:
    """The box of an input, written out."""
    low, high = (torch.from_numpy(np.clip(np.broadcast_to(end, shape), -FAR, FAR)).double() for end in ends)
    return low, high, dtype


def _corner(lo: Tensor, hi: Tensor, dtype: torch.dtype, slope: Tensor | None) -> Tensor:
    """The end of the box that a slope points to, as a number of the input's type that lies inside."""
    if not dtype.is_floating_point:
        raise TypeError(dtype)
    middle = (lo + hi) / 2
    corner = (middle if slope is None else torch.where(slope > 0, hi, torch.where(slope < 0, lo, middle))).to(dtype)
    inside = (corner.double() >= lo) & (corner.double() <= hi)
    corner = torch.where(inside, corner, torch.nextafter(corner, middle.to(dtype)))
    if not bool(((corner.double() >= lo) & (corner.double() <= hi)).all()):
        raise TypeError(dtype)
    return corner
