"""A before/after forward on the example, in train and eval mode: the last guard in front of a commit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ..errors import CutError
from ..tracing.export import modes_kept, split_inputs

# Largest accepted difference, relative to the largest output: a summation of other length rounds differently.
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4, torch.float16: 3e-2, torch.bfloat16: 1e-1}


class _Noiseless(TorchDispatchMode):
    """Dropout keeps everything, so that two networks of different width can be compared in training mode."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func)
        if name.startswith("aten.bernoulli"):
            return args[0].fill_(1) if name.startswith("aten.bernoulli_") else torch.ones_like(args[0])
        if name == "aten.native_dropout.default":
            return args[0].clone(), torch.ones_like(args[0], dtype=torch.bool)
        return func(*args, **(kwargs or {}))


@contextmanager
def _undisturbed(module: nn.Module) -> Iterator[None]:
    """Buffers, random state and training flags are put back on leaving."""
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    devices = sorted({t.device.index or 0 for t in module.parameters() if t.device.type == "cuda"})
    try:
        with modes_kept(module), torch.random.fork_rng(devices=devices), torch.no_grad():
            yield
    finally:
        with torch.no_grad():
            for name, buffer in module.named_buffers():
                buffer.copy_(buffers[name])


def outputs(module: nn.Module, example_inputs: Any) -> dict[str, list[Tensor]]:
    """All output tensors in eval and in train mode, without a trace on the module."""
    args, kwargs = split_inputs(example_inputs)
    found = {}
    with _undisturbed(module), _Noiseless():  # type: ignore[no-untyped-call]
        for mode in ("eval", "train"):
            module.train(mode == "train")
            try:
                result = module(*args, **kwargs)
            except Exception as error:
                reason = " ".join(str(error).split())[:300]
                raise CutError(f"the forward pass fails in {mode} mode: {type(error).__name__}: {reason}") from error
            found[mode] = [leaf.detach().clone() for leaf in tree_leaves(_plain(result)) if isinstance(leaf, Tensor)]
    return found


def _plain(result: Any) -> Any:
    """Output objects of other libraries (dataclasses that are mappings) as plain containers."""
    return dict(result) if isinstance(result, Mapping) else result


def compare(before: Mapping[str, list[Tensor]], after: Mapping[str, list[Tensor]], modes: tuple[str, ...]) -> float:
    """The largest difference of any output, relative to the largest output; an error if it is beyond rounding.

    Modes that the certificates do not speak of are only checked for shape.
    """
    worst = 0.0
    for mode, olds in before.items():
        for old, new in zip(olds, after[mode], strict=True):
            if old.shape != new.shape:
                raise CutError(f"an output changes shape in {mode} mode: {tuple(old.shape)} to {tuple(new.shape)}")
            if mode not in modes or not old.is_floating_point() or old.numel() == 0:
                continue
            both = old.isfinite() & new.isfinite()
            scale = max(float(old[both].abs().max()) if bool(both.any()) else 0.0, torch.finfo(old.dtype).tiny)
            difference = float((old.double() - new.double())[both].abs().max()) / scale if bool(both.any()) else 0.0
            if difference > TOLERANCE.get(old.dtype, 1e-4) or not torch.equal(old.isfinite(), new.isfinite()):
                raise CutError(f"an output changes by {difference:.1e} (relative) in {mode} mode")
            worst = max(worst, difference)
    return worst
