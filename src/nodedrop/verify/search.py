"""The search for an input on which two modules differ: random ones, corners of the domain, and uphill from there."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .arrays import MOVES, refs
from .interval import Array
from .program import Program, split


@dataclass(frozen=True)
class Counterexample:
    """An input on which the outputs differ by more than rounding, relative to the largest output."""

    inputs: tuple[Tensor, ...]
    mode: str
    difference: float

    def to_json(self) -> dict[str, Any]:
        """Plain data for a JSON file."""
        return {"mode": self.mode, "difference": self.difference, "inputs": [t.tolist() for t in self.inputs]}

    def __str__(self) -> str:
        shown = "; ".join(np.array2string(t.numpy(), precision=4, threshold=24, edgeitems=2) for t in self.inputs)
        return f"in {self.mode} mode outputs differ by {self.difference:.2e} (relative) on the input {shown}"


@dataclass(frozen=True)
class Range:
    """Where an input may lie."""

    lo: Array
    hi: Array

    def ends(self) -> tuple[Tensor, Tensor]:
        """As tensors, finite ones."""
        lo, hi = (np.nan_to_num(np.asarray(end, float), posinf=1e6, neginf=-1e6) for end in (self.lo, self.hi))
        return torch.from_numpy(lo), torch.from_numpy(hi)


def search(
    before: nn.Module, after: nn.Module, inputs: Any, boxes: Mapping[str, tuple[Array, Array]], modes: Sequence[str],
    tries: int, programs: Sequence[Program] = (),
) -> Counterexample | None:  # fmt: skip
    """Try some inputs in double precision, the worst of them improved by gradient ascent.

    Both modules compute in double precision with the weights they have, whatever the type of these. A difference
    counts if it is far above what the rounding of sums can make of it, which is measured: by small changes of all
    weights, larger ones of biases into which constants may have been folded, and rounded there.
    """
    ranges = _ranges(inputs, boxes, _tables(programs))
    tensors = [tensor for module in (before, after) for tensor in (*module.parameters(), *module.buffers())]
    if ranges is None or any(tensor.is_complex() for tensor in tensors):
        return None
    tolerance = max([1e-9, *(256 * torch.finfo(kind).eps / 2 for kind in _casts(programs))])
    generator = torch.Generator().manual_seed(0)
    shaken = _shaken(before, after, generator)
    for mode in modes:
        pair = [_quiet(copy.deepcopy(module).double(), mode) for module in (before, after)]
        like = [pair[1], _quiet(copy.deepcopy(shaken), mode)]
        worst: tuple[float, list[Tensor]] = (0.0, [])
        shown = False
        for k in range(tries):
            drawn = _drawn(inputs, ranges, generator, corner=k % 2 == 1)
            with torch.no_grad():
                gap = _gap(pair, inputs, drawn)
            if gap is None:
                break
            worst = max(worst, (float(gap), drawn), key=lambda item: item[0])
            if shown := worst[0] > tolerance and _counts(worst, like, inputs):
                break
        if not shown and worst[1]:
            worst = max(worst, _uphill(pair, inputs, ranges, worst[1]), key=lambda item: item[0])
            shown = worst[0] > tolerance and _counts(worst, like, inputs)
        if shown:
            return Counterexample(tuple(t.detach() for t in worst[1]), mode, worst[0])
    return None


def _tables(programs: Sequence[Program]) -> dict[str, int]:
    """How many rows the tables have that whole numbers of an input index."""
    found: dict[str, int] = {}
    for program in programs:
        for step in program.steps:
            if step.op == "embedding.default":
                place, rows = step.args["indices"].place, program.steps[step.args["weight"].place].results[0]
                while program.steps[place].op in MOVES and len(refs(program.steps[place].args)) == 1:
                    place = refs(program.steps[place].args)[0]
                source = program.steps[place]
                if source.op == "input" and rows is not None:
                    name = str(source.args["name"])
                    found[name] = min(rows[0][0], found.get(name, rows[0][0]))
    return found


def _casts(programs: Sequence[Program]) -> set[torch.dtype]:
    """Types that the code itself rounds to, also where weights are in double precision."""
    steps = [step for program in programs for step in program.steps if step.op.startswith(("to.", "_to_copy"))]
    kinds = {step.args.get("dtype") for step in steps}
    return {kind for kind in kinds if isinstance(kind, torch.dtype) and kind.is_floating_point}


def _shaken(before: nn.Module, after: nn.Module, generator: torch.Generator) -> nn.Module:
    """The second module in double precision with each weight moved by 2⁻⁴⁰ of it; biases that have numbers of their
    own by what rounding them once can cost."""
    moved, old = copy.deepcopy(after).double(), dict(before.named_parameters())
    kinds = {name: tensor.dtype for name, tensor in after.named_parameters()}
    with torch.no_grad():
        for name, tensor in moved.named_parameters():
            first = old[name].double() if name in old else tensor
            signs = torch.randint(0, 2, tensor.shape, generator=generator).double() * 2 - 1
            if tensor.dim() == 1 and not bool(torch.isin(tensor, first).all()):
                most = max(float(tensor.abs().max()), float(first.abs().max()) if first.numel() else 0.0)
                tensor.add_(signs * torch.finfo(kinds[name]).eps * most)
            else:
                tensor.mul_(1 + signs * 2.0**-40)
    return moved


def _counts(found: tuple[float, list[Tensor]], like: Sequence[nn.Module], inputs: Any) -> bool:
    """Whether a difference is more than such changes make of the second module."""
    with torch.no_grad():
        noise = _gap(like, inputs, found[1])
    return noise is not None and found[0] > 4 * float(noise)


def _quiet(module: nn.Module, mode: str) -> nn.Module:
    """A module in a mode, without what is random."""
    module.train(mode == "train")
    for child in module.modules():
        if "dropout" in type(child).__name__.lower():
            child.eval()
    return module


def _tensors(inputs: Any) -> list[Tensor]:
    args, kwargs = split(inputs)
    return [v for v in (*args, *kwargs.values()) if isinstance(v, Tensor)]


def _ranges(
    inputs: Any, boxes: Mapping[str, tuple[Array, Array]], tables: Mapping[str, int]
) -> list[Range] | None:
    """Where the inputs may lie, in their order; None if inputs are not told apart, being inside of others."""
    kwargs = split(inputs)[1]
    named = [k for k, v in kwargs.items() if isinstance(v, Tensor)]
    if len(boxes) != len(_tensors(inputs)) or not set(named) <= set(boxes):
        return None
    found = []
    for name in [*(name for name in boxes if name not in named), *named]:
        lo, hi = boxes[name]
        if name in tables:
            lo, hi = np.maximum(lo, 0), np.minimum(hi, tables[name] - 1)
        found.append(Range(lo, hi))
    return found


def _drawn(inputs: Any, ranges: Sequence[Range], generator: torch.Generator, corner: bool) -> list[Tensor]:
    found = []
    for tensor, each in zip(_tensors(inputs), ranges, strict=True):
        if tensor.dtype is torch.bool or not (np.isfinite(each.lo).all() and np.isfinite(each.hi).all()):
            found.append(tensor.detach())
            continue
        share = torch.rand(tensor.shape, generator=generator, dtype=torch.float64)
        low, high = each.ends()
        if tensor.is_floating_point():
            found.append(low + (share.round() if corner else share) * (high - low))
        else:
            whole = torch.minimum(low.ceil() + (share * (high.floor() - low.ceil() + 1)).floor(), high.floor())
            found.append(whole.to(tensor.dtype))
    return found


def _gap(pair: Sequence[nn.Module], inputs: Any, tensors: Sequence[Tensor]) -> Tensor | None:
    """The largest difference of an output, relative to the largest output; None if a module does not run."""
    supply = iter(tensors)
    args, kwargs = split(inputs)
    args = tuple(next(supply) if isinstance(v, Tensor) else v for v in args)
    kwargs = {k: next(supply) if isinstance(v, Tensor) else v for k, v in kwargs.items()}
    try:
        outputs = [[t for t in _found(module(*args, **kwargs)) if t.is_floating_point()] for module in pair]
    except Exception:
        return None
    gaps = [
        (a - b).abs().max() / b.detach().abs().max().clamp(min=1e-30)
        for a, b in zip(*outputs, strict=False)
        if a.shape == b.shape and a.numel() and bool(a.isfinite().all()) and bool(b.isfinite().all())
    ]
    return torch.stack(gaps).max() if gaps else None


def _uphill(
    pair: Sequence[nn.Module], inputs: Any, ranges: Sequence[Range], start: list[Tensor]
) -> tuple[float, list[Tensor]]:
    """Signed gradient ascent on the difference, inside the box."""
    here, best = [t.clone() for t in start], (0.0, start)
    for _ in range(24):
        moving = [t.requires_grad_() if t.is_floating_point() else t for t in here]
        gap = _gap(pair, inputs, moving)
        free = [t for t in moving if t.requires_grad]
        if gap is None or not gap.requires_grad or not free:
            break
        best = max(best, (float(gap.detach()), [t.detach().clone() for t in here]), key=lambda item: item[0])
        slopes = iter(torch.autograd.grad(gap, free, allow_unused=True))
        moved = []
        for tensor, each in zip(moving, ranges, strict=True):
            slope = next(slopes) if tensor.requires_grad else None
            tensor = tensor.detach()
            if slope is not None:
                low, high = each.ends()
                tensor = torch.clamp(tensor + 0.1 * (high - low) * slope.sign(), low, high)
            moved.append(tensor)
        here = moved
    return best


def _found(result: Any) -> Iterator[Tensor]:
    """All tensors in an output."""
    if isinstance(result, Tensor):
        yield result
    elif is_dataclass(result) and not isinstance(result, type):
        yield from (t for item in fields(result) for t in _found(getattr(result, item.name)))
    else:
        items = result.values() if isinstance(result, Mapping) else result if isinstance(result, list | tuple) else ()
        yield from (t for item in items for t in _found(item))
