"""Batches against the declared domain: a proof says nothing about inputs outside it."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from ..bounds import Interval
from ..errors import InputError


class InputWatch:
    """Remembers the extremes of every batch the model has seen; `check` compares them with the domain.

    A forward hook takes the extremes, without waiting for the device. `check` reads them, and waits. `largest` is the
    size of training batches that the proofs allow, if they do not allow any: batch norm's bound grows with the number
    of values of a channel, so larger samples count as more of them.
    """

    def __init__(self, model: nn.Module, domain: Mapping[str, Interval], largest: int | None = None) -> None:
        self._domain, self._seen = domain, dict[str, tuple[Tensor, Tensor]]()
        self._largest, self._batch = largest, 0
        limited = largest is not None or any(_is_limited(box) for box in domain.values())
        self._hook = model.register_forward_pre_hook(_Hook(self), with_kwargs=True) if limited else None

    def close(self) -> None:
        """Take the hook off the model."""
        if self._hook is not None:
            self._hook.remove()

    def note(self, args: Sequence[Any], kwargs: Mapping[str, Any], *, training: bool) -> None:
        """Take the extremes of one batch: keyword inputs by name, the others in the order of the domain."""
        tensors = [value for value in args if isinstance(value, Tensor)]
        given = dict(zip((name for name in self._domain if name not in kwargs), tensors, strict=False))
        given |= {name: value for name, value in kwargs.items() if isinstance(value, Tensor)}
        if training:
            sizes = (self._samples(name, value) for name, value in given.items() if value.dim())
            self._batch = max([self._batch, *sizes])
        for name, value in given.items():
            box = self._domain.get(name)
            if box is None or not _is_limited(box) or not value.numel():
                continue
            axes = list(range(value.dim()))
            if box.lo.numel() > 1:
                if value.dim() != box.lo.dim():
                    continue
                axes = [d for d in axes if box.lo.size(d) == 1]
            lo, hi = (value.detach().amin(axes, keepdim=True), value.detach().amax(axes, keepdim=True))
            before = self._seen.get(name)
            if before is not None and before[0].shape == lo.shape:
                lo, hi = torch.minimum(before[0], lo), torch.maximum(before[1], hi)
            self._seen[name] = (lo, hi)

    def _samples(self, name: str, value: Tensor) -> int:
        """How many samples of the example's size a batch holds as many values as."""
        box = self._domain.get(name)
        return len(value) if box is None else -(-value.numel() // max(prod(box.shape[1:]), 1))

    @property
    def free(self) -> bool:
        """Whether a check costs no wait for a device."""
        return all(lo.device.type == "cpu" for lo, _ in self._seen.values())

    def check(self) -> None:
        """An error if a batch since the last check lay outside the domain, or was too large."""
        batch, self._batch = self._batch, 0
        if self._largest is not None and batch > self._largest:
            raise InputError(
                f"a training batch had as many values as {batch} samples of the example's size, but the proofs hold up "
                f"to batch_size={self._largest}; give the largest batch you train with, and an example of its size"
            )
        seen, self._seen = self._seen, {}
        for name, (lo, hi) in seen.items():
            box, least, most = self._domain[name], lo.double().cpu(), hi.double().cpu()
            if box.lo.numel() == 1:
                least, most = least.reshape_as(box.lo), most.reshape_as(box.hi)
            if not bool(((least >= box.lo) & (most <= box.hi)).all()):  # NaN is outside, too
                ends, declared = (least.min(), most.max()), (box.lo.min(), box.hi.max())
                raise InputError(
                    f"a batch had values from {ends[0]:.8g} to {ends[1]:.8g} for input '{name}', outside the declared "
                    f"domain [{declared[0]:.4g}, {declared[1]:.4g}] that the proofs speak of; "
                    "declare the domain the data really has, or pass check_inputs=False if you know why"
                )


class _Hook:
    """What stays on the model: it keeps nothing alive, and copies and pickles of the model get an empty one."""

    def __init__(self, owner: InputWatch | None = None) -> None:
        self._owner = weakref.ref(owner) if owner is not None else lambda: None

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        owner = self._owner()
        if owner is not None and not torch.compiler.is_compiling():
            owner.note(args, kwargs, training=module.training)

    def __reduce__(self) -> tuple[type[_Hook], tuple[()]]:
        return _Hook, ()


def _is_limited(box: Interval) -> bool:
    return bool(box.lo.isfinite().any() or box.hi.isfinite().any())
