"""A before/after forward on the example, in train and eval mode: the last guard in front of a commit."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import CutError
from ..tracing.export import split_inputs
from ..tracing.undisturbed import fresh, undisturbed
from .watch import Watching

# Largest accepted difference, relative to the largest output: a summation of other length rounds differently.
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 5e-2}

_PLAIN = (bool, int, float, complex, str, type(None))


def outputs(
    module: nn.Module, batches: Sequence[Any], modes: tuple[str, ...] = ("eval", "train")
) -> list[dict[str, list[Tensor]]]:
    """All output tensors for each of some inputs, by mode, without a trace on the module."""
    found: list[dict[str, list[Tensor]]] = [{} for _ in batches]
    with undisturbed(module), torch.no_grad(), Watching(module) as watch:
        for mode in modes:
            module.train(mode == "train")
            for inputs, by_mode in zip(batches, found, strict=True):
                args, kwargs = fresh(split_inputs(inputs))
                watch.ran = []
                try:
                    result = module(*args, **kwargs)
                except Exception as error:
                    reason = " ".join(str(error).split())[:300]
                    message = f"the forward pass fails in {mode} mode: {type(error).__name__}: {reason}"
                    raise CutError(message) from error
                by_mode[mode] = Returned(result, watch.ran)
    return found


class Returned(list[Tensor]):
    """All tensors in an output; `rest` tells what else it is made of, each with its place, `ran` what made them."""

    def __init__(self, result: Any, ran: Sequence[Any] = ()) -> None:
        self.ran = ran
        parts = list(_parts(result, "the output"))
        super().__init__(part.detach().clone() for _, part in parts if isinstance(part, Tensor))
        self.rest = [(place, part if isinstance(part, _PLAIN) else type(part).__name__) for place, part in parts]


def _parts(result: Any, place: str) -> Iterator[tuple[str, Any]]:
    """Everything in an output with its place, through containers, mappings and dataclasses."""
    if isinstance(result, Mapping):
        inner = [(f"{place}[{key!r}]", item) for key, item in result.items()]
    elif is_dataclass(result) and not isinstance(result, type):
        inner = [(f"{place}.{item.name}", getattr(result, item.name)) for item in fields(result)]
    elif isinstance(result, list | tuple):
        inner = [(f"{place}[{k}]", item) for k, item in enumerate(result)]
    else:
        yield place, result
        return
    yield place, type(result).__name__
    for where, item in inner:
        yield from _parts(item, where)


def change(before: list[Tensor], after: list[Tensor]) -> float:
    """The largest difference of any output, relative to the largest output."""
    worst = 0.0
    for old, new in zip(before, after, strict=True):
        both = old.isfinite() & new.isfinite()
        if old.is_floating_point() and bool(both.any()):
            scale = max(float(old[both].abs().max()), torch.finfo(old.dtype).tiny)
            worst = max(worst, float((old.double() - new.double())[both].abs().max()) / scale)
    return worst


def compare(before: Mapping[str, list[Tensor]], after: Mapping[str, list[Tensor]], modes: tuple[str, ...]) -> float:
    """The largest difference of any output, relative to the largest output; an error if it is beyond rounding.

    Modes that the certificates do not speak of are only checked for shape.
    """
    worst = 0.0
    for mode, olds in before.items():
        if not olds or len(olds) != len(after[mode]):
            raise CutError(f"the outputs of {mode} mode cannot be compared: {len(olds)} and {len(after[mode])} tensors")
        if (told := _difference(olds, after[mode], mode in modes)) is not None:
            raise CutError(f"{told} in {mode} mode")
        for old, new in zip(olds, after[mode], strict=True):
            if old.shape != new.shape:
                raise CutError(f"an output changes shape in {mode} mode: {tuple(old.shape)} to {tuple(new.shape)}")
            if mode not in modes:
                continue
            if not old.is_floating_point() and not torch.equal(old, new):
                raise CutError(f"an output of type {old.dtype} changes in {mode} mode")
            difference = change([old], [new])
            if difference > TOLERANCE.get(old.dtype, 1e-4) or not torch.equal(old.isfinite(), new.isfinite()):
                raise CutError(f"an output changes by {difference:.1e} (relative) in {mode} mode")
            worst = max(worst, difference)
    return worst


def ran(passes: Sequence[Mapping[str, list[Tensor]]]) -> list[Any]:
    """The operators of some passes, with the parameters they read and their numbers but for sizes."""
    return [{mode: getattr(result, "ran", None) for mode, result in by_mode.items()} for by_mode in passes]


def _difference(before: list[Tensor], after: list[Tensor], covered: bool) -> str | None:
    """What changes in outputs besides tensors: their structure and, where certificates speak of it, their numbers."""
    rests = [item.rest if isinstance(item, Returned) else [] for item in (before, after)]
    if [place for place, _ in rests[0]] != [place for place, _ in rests[1]]:
        return "the output gets another structure"
    for (place, old), (_, new) in zip(*rests, strict=True):
        if not (_close(old, new) if covered else type(old) is type(new)):
            return f"{place} changes from {old!r} to {new!r}"
    return None


def _close(old: Any, new: Any) -> bool:
    """Floats that were read off tensors are rounded as these are."""
    if isinstance(old, float) and isinstance(new, float):
        return math.isclose(old, new, rel_tol=TOLERANCE[torch.float32]) or (math.isnan(old) and math.isnan(new))
    return type(old) is type(new) and bool(old == new)
