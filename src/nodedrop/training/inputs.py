"""Batches against the declared domain: a proof says nothing about inputs outside it."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..bounds import Interval
from ..errors import InputError
from ..intake import tensor_inputs


class InputWatch:
    """Remembers the extremes of every batch the model has seen; `check` compares them with the domain.

    A forward hook takes the extremes, without waiting for the device. `check` reads them, and waits.
    """

    def __init__(self, model: nn.Module, domain: Mapping[str, Interval]) -> None:
        self._domain = {name: box for name, box in domain.items() if _is_limited(box)}
        self._count = len(domain)
        self._places = [k for k, name in enumerate(domain) if name in self._domain]
        self._seen: list[tuple[Tensor, Tensor]] = []
        self._hook = model.register_forward_pre_hook(_Hook(self), with_kwargs=True) if self._domain else None

    def close(self) -> None:
        """Take the hook off the model."""
        if self._hook is not None:
            self._hook.remove()

    def note(self, inputs: list[Tensor]) -> None:
        """Take the extremes of one batch."""
        if len(inputs) != self._count:
            return
        found = []
        for place, box in zip(self._places, self._domain.values(), strict=True):
            value = inputs[place].detach()
            if value.dim() != box.lo.dim() or not value.numel():
                return
            axes = [d for d in range(value.dim()) if box.lo.size(d) == 1]
            found.append((value.amin(axes, keepdim=True), value.amax(axes, keepdim=True)))
        if not self._seen:
            self._seen = found
        elif all(a[0].shape == b[0].shape for a, b in zip(self._seen, found, strict=True)):
            pairs = zip(self._seen, found, strict=True)
            self._seen = [(torch.minimum(a[0], b[0]), torch.maximum(a[1], b[1])) for a, b in pairs]

    @property
    def free(self) -> bool:
        """Whether a check costs no wait for a device."""
        return all(lo.device.type == "cpu" for lo, _ in self._seen)

    def check(self) -> None:
        """An error if a batch since the last check lay outside the domain."""
        seen, self._seen = self._seen, []
        for (name, box), (lo, hi) in zip(self._domain.items(), seen, strict=False):
            least, most = lo.double().cpu(), hi.double().cpu()
            if not bool(((least >= box.lo) & (most <= box.hi)).all()):  # NaN is outside, too
                ends, declared = (least.min(), most.max()), (box.lo.min(), box.hi.max())
                raise InputError(
                    f"a batch had values from {ends[0]:.4g} to {ends[1]:.4g} for input '{name}', outside the declared "
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
            owner.note(tensor_inputs((*args, *kwargs.values())))

    def __reduce__(self) -> tuple[type[_Hook], tuple[()]]:
        return _Hook, ()


def _is_limited(box: Interval) -> bool:
    return bool(box.lo.isfinite().any() or box.hi.isfinite().any())
