"""The search for an input on which two modules differ: random ones, corners of the domain, and uphill from there."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .interval import Array
from .program import split


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


def search(
    before: nn.Module,
    after: nn.Module,
    inputs: Any,
    boxes: Mapping[str, tuple[Array, Array]],
    modes: Sequence[str],
    tries: int,
) -> Counterexample | None:
    """Try some inputs in double precision, the worst of them improved by gradient ascent."""
    u = max((torch.finfo(t.dtype).eps / 2 for t in before.parameters() if t.is_floating_point()), default=2.0**-53)
    tolerance, ends = max(256 * u, 1e-9), _ends(inputs, boxes)
    if ends is None:
        return None
    generator = torch.Generator().manual_seed(0)
    for mode in modes:
        pair = [_quiet(copy.deepcopy(module).double(), mode) for module in (before, after)]
        worst: tuple[float, list[Tensor]] = (0.0, [])
        for k in range(tries):
            drawn = _drawn(inputs, ends, generator, corner=k % 2 == 1)
            with torch.no_grad():
                gap = _gap(pair, inputs, drawn)
            if gap is None:
                break
            worst = max(worst, (float(gap), drawn), key=lambda item: item[0])
            if worst[0] > tolerance:
                break
        if worst[0] <= tolerance and worst[1]:
            worst = max(worst, _uphill(pair, inputs, ends, worst[1]), key=lambda item: item[0])
        if worst[0] > tolerance:
            return Counterexample(tuple(t.detach() for t in worst[1]), mode, worst[0])
    return None


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


def _ends(inputs: Any, boxes: Mapping[str, tuple[Array, Array]]) -> list[tuple[Array, Array]] | None:
    """The boxes of the inputs in their order; None if inputs are not told apart, being inside of others."""
    kwargs = split(inputs)[1]
    named = [k for k, v in kwargs.items() if isinstance(v, Tensor)]
    rest = [box for name, box in boxes.items() if name not in named]
    if len(boxes) != len(_tensors(inputs)) or not set(named) <= set(boxes):
        return None
    return rest + [boxes[name] for name in named]


def _drawn(inputs: Any, boxes: Any, generator: torch.Generator, corner: bool) -> list[Tensor]:
    found = []
    for tensor, (lo, hi) in zip(_tensors(inputs), boxes, strict=True):
        if not (tensor.is_floating_point() and np.isfinite(lo).all() and np.isfinite(hi).all()):
            found.append(tensor.detach())
            continue
        share = torch.rand(tensor.shape, generator=generator, dtype=torch.float64)
        share = share.round() if corner else share
        low, high = torch.from_numpy(np.asarray(lo)), torch.from_numpy(np.asarray(hi))
        found.append(low + share * (high - low))
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


def _uphill(pair: Sequence[nn.Module], inputs: Any, boxes: Any, start: list[Tensor]) -> tuple[float, list[Tensor]]:
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
        for tensor, (lo, hi) in zip(moving, boxes, strict=True):
            slope = next(slopes) if tensor.requires_grad else None
            tensor = tensor.detach()
            if slope is not None:
                ends = [np.nan_to_num(np.asarray(end), posinf=1e6, neginf=-1e6) for end in (lo, hi)]
                low, high = torch.from_numpy(ends[0]), torch.from_numpy(ends[1])
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
