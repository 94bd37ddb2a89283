"""A before/after forward on the example, in train and eval mode: the last guard in front of a commit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from ..errors import CutError
from ..tracing.export import split_inputs
from ..tracing.undisturbed import undisturbed

# Largest accepted difference, relative to the largest output: a summation of other length rounds differently.
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 5e-2}


class _Noiseless(TorchDispatchMode):
    """Dropout keeps everything, so that two networks of different width can be compared in training mode."""

    supports_higher_order_operators = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func)
        if name.startswith("aten.bernoulli"):
            return args[0].fill_(1) if name.startswith("aten.bernoulli_") else torch.ones_like(args[0])
        if name == "aten.native_dropout.default":
            return args[0].clone(), torch.ones_like(args[0], dtype=torch.bool)
        return func(*args, **(kwargs or {}))


def outputs(
    module: nn.Module, batches: Sequence[Any], modes: tuple[str, ...] = ("eval", "train")
) -> list[dict[str, list[Tensor]]]:
    """All output tensors for each of some inputs, by mode, without a trace on the module."""
    found: list[dict[str, list[Tensor]]] = [{} for _ in batches]
    with undisturbed(module), torch.no_grad(), _Noiseless():  # type: ignore[no-untyped-call]
        for mode in modes:
            module.train(mode == "train")
            for inputs, by_mode in zip(batches, found, strict=True):
                args, kwargs = split_inputs(inputs)
                try:
                    result = module(*args, **kwargs)
                except Exception as error:
                    reason = " ".join(str(error).split())[:300]
                    message = f"the forward pass fails in {mode} mode: {type(error).__name__}: {reason}"
                    raise CutError(message) from error
                by_mode[mode] = [tensor.detach().clone() for tensor in _tensors(result)]
    return found


def _tensors(result: Any) -> Iterator[Tensor]:
    """All tensors in an output, through containers, mappings and dataclasses."""
    if isinstance(result, Tensor):
        yield result
    elif isinstance(result, Mapping):
        for item in result.values():
            yield from _tensors(item)
    elif is_dataclass(result) and not isinstance(result, type):
        for item in fields(result):
            yield from _tensors(getattr(result, item.name))
    elif isinstance(result, list | tuple):
        for item in result:
            yield from _tensors(item)


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
