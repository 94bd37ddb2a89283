"""Passes against what the proofs speak of: they say nothing about inputs elsewhere, or about coarser arithmetic."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from ..bounds import Interval
from ..errors import InputError
from ..tracing.undisturbed import OWN_PASS


class InputWatch:
    """Remembers the extremes of every batch the model has seen; `check` compares them with the domain.

    A forward hook takes the extremes, without waiting for the device. `check` reads them, and waits. `largest` is the
    size of training batches that the proofs allow, if they do not allow any: batch norm's bound grows with the number
    of values of a channel, so larger samples count as more of them. `dtype` is the precision that the proofs count
    beside the parameters' own.
    """

    def __init__(
        self,
        model: nn.Module,
        domain: Mapping[str, Interval],
        largest: int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        self._domain, self._seen = domain, dict[str, tuple[Tensor, Tensor]]()
        self._first = next((name for name, box in domain.items() if box.shape), "")
        self._largest, self._batch = largest, 0
        own = {p.dtype for p in model.parameters() if p.is_floating_point() and p.dtype != torch.float64}
        self._proved = [(item, dtype or item) for item in own]  # autocast leaves double precision alone
        self._cast = set[torch.dtype]()
        self._sizes, self._told = set[tuple[str, tuple[int, ...]]](), False
        self._hook = model.register_forward_pre_hook(_Hook(self), with_kwargs=True)

    def close(self) -> None:
        """Take the hook off the model."""
        self._hook.remove()

    def note(self, model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Take precision and extremes of one pass: keyword inputs by name, the others in the order of the domain."""
        kind = next(model.parameters()).device.type
        if torch.is_autocast_enabled(kind):
            self._cast.add(torch.get_autocast_dtype(kind))
        given = {name: value for name, value in kwargs.items() if isinstance(value, Tensor)}
        nested = [value for name, value in kwargs.items() if name not in given]
        others = [value for value in tree_leaves([*args, *nested]) if isinstance(value, Tensor)]
        given |= zip([name for name in self._domain if name not in given], others, strict=False)
        if model.training and self._first in given:
            self._batch = max(self._batch, self._samples(given[self._first]))
        for name, value in given.items():
            box = self._domain.get(name)
            if box is None:
                continue
            if not self._told and self._largest is None and _is_larger(value.shape, box.shape):
                self._sizes.add((name, tuple(value.shape)))
            if not _is_limited(box) or not value.numel():
                continue
            ends = _extremes(value.detach(), box.lo)
            if ends is not None:
                before = self._seen.get(name, ends)
                self._seen[name] = torch.minimum(before[0], ends[0]), torch.maximum(before[1], ends[1])

    def _samples(self, value: Tensor) -> int:
        """How many samples of the example's size a batch holds as many values as."""
        return -(-value.numel() // max(prod(self._domain[self._first].shape[1:]), 1))

    @property
    def free(self) -> bool:
        """Whether a check costs no wait for a device."""
        return all(lo.device.type == "cpu" for lo, _ in self._seen.values())

    def check(self) -> None:
        """An error if a pass since the last check is not what the proofs speak of."""
        seen, batch, cast = self._seen, self._batch, self._cast
        self._seen, self._batch, self._cast = {}, 0, set()
        for name, shape in sorted(self._sizes)[:1]:
            self._sizes, self._told = set(), True
            warnings.warn(
                f"a batch of shape {shape} for input '{name}' has larger samples than the example, of shape "
                f"{self._domain[name].shape}: where the model sums over them, proofs hold up to the example's size; "
                "give an example of the largest size you train with",
                stacklevel=3,
            )
        if self._largest is not None and batch > self._largest:
            raise InputError(
                f"a training batch had as many values as {batch} samples of the example's size, but the proofs hold up "
                f"to batch_size={self._largest}; give the largest batch you train with, and an example of its size"
            )
        for used, proved in ((used, proved) for used in cast for proved in self._proved if not _covers(proved, used)):
            raise InputError(
                f"the model ran under autocast in {used}, but the proofs are for {proved[1]}: with the coarser "
                f"rounding a unit that they call dead may fire; make the NodeDrop with dtype={used}, or pass "
                "check_inputs=False if you know why"
            )
        for name, (lo, hi) in seen.items():
            box, least, most = self._domain[name], lo.double().cpu(), hi.double().cpu()
            if not bool(((least >= box.lo) & (most <= box.hi)).all()):  # NaN is outside, too
                ends, declared = (least.min(), most.max()), (box.lo.min(), box.hi.max())
                raise InputError(
                    f"a batch had values from {ends[0]:.8g} to {ends[1]:.8g} for input '{name}', outside the declared "
                    f"domain [{declared[0]:.4g}, {declared[1]:.4g}] that the proofs speak of; "
                    "declare the domain the data really has, or pass check_inputs=False if you know why"
                )


def odd_modes(model: nn.Module) -> frozenset[str]:
    """Modules that are not in the mode of the whole: batch norms that are frozen in eval mode, say."""
    return frozenset(name for name, child in model.named_modules() if child.training != model.training)


def require_modes(model: nn.Module, known: frozenset[str]) -> None:
    """An error if a part is in train and another in eval mode that were not when the proofs were made for them."""
    if model.training and (strange := sorted(odd_modes(model) ^ known)):
        raise InputError(
            f"'{strange[0]}' is in another mode than the model, or was when the NodeDrop was made, and the proofs "
            "speak of the parts as they were; set the modes first, and make the NodeDrop then"
        )


class _Hook:
    """What stays on the model: it keeps nothing alive, and copies and pickles of the model get an empty one."""

    def __init__(self, owner: InputWatch | None = None) -> None:
        self._owner = weakref.ref(owner) if owner is not None else lambda: None

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        owner = self._owner()
        if owner is not None and not torch.compiler.is_compiling() and not OWN_PASS.get():
            owner.note(module, args, kwargs)

    def __reduce__(self) -> tuple[type[_Hook], tuple[()]]:
        return _Hook, ()


def _is_larger(shape: Sequence[int], example: Sequence[int]) -> bool:
    """Whether samples are larger than those of the example, in some direction."""
    return len(shape) == len(example) and any(own > size for own, size in zip(shape[1:], example[1:], strict=True))


def _is_limited(box: Interval) -> bool:
    return bool(box.lo.isfinite().any() or box.hi.isfinite().any())


def _extremes(value: Tensor, box: Tensor) -> tuple[Tensor, Tensor] | None:
    """The ends of a batch for each number of its box; none if the box is for another shape."""
    if box.numel() == 1:
        return value.amin(), value.amax()
    value = value[(None,) * (box.dim() - value.dim())]  # one sample without a batch axis
    if value.dim() != box.dim() or any(own not in (1, size) for own, size in zip(box.shape, value.shape, strict=True)):
        return None
    axes = [d for d in range(box.dim()) if box.size(d) == 1]
    return (value.amin(axes, keepdim=True), value.amax(axes, keepdim=True)) if axes else (value, value)


def _covers(proved: Sequence[torch.dtype], other: torch.dtype) -> bool:
    """Whether bounds that count the arithmetic of some types hold for another: no coarser, and of no smaller range."""
    known, asked = [torch.finfo(d) for d in proved if d.is_floating_point], torch.finfo(other)
    return (
        asked.eps <= max(info.eps for info in known)
        and asked.tiny <= max(info.tiny for info in known)
        and asked.max >= min(info.max for info in known)
    )
