"""Forward passes that leave no trace: what they change is put back."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from .graph import tensors_of


@contextmanager
def undisturbed(module: nn.Module) -> Iterator[None]:
    """Put back, on leaving, what a forward pass may change: tensors, buffers, training flags, random state."""
    kept = _CopyOnWrite(module.parameters())
    try:
        with unmoved(module), kept:
            yield
    finally:
        with torch.no_grad():
            for tensor, value in kept.copies:
                tensor.copy_(value)


@contextmanager
def unmoved(module: nn.Module) -> Iterator[None]:
    """The same without the parameters, in whose place a tracer has its own."""
    flags = [(child, child.training, dict(child._buffers)) for child in module.modules()]
    buffers = [(buffer, buffer.detach().clone()) for buffer in module.buffers()]  # written where no schema tells of it
    state = draws()
    devices = sorted({t.device.index or 0 for t in tensors_of(module).values() if t.device.type == "cuda"})
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        _redraw(state)
        for child, flag, own in flags:
            child.training = flag
            child._buffers.clear()
            child._buffers.update(own)
        with torch.no_grad():
            for buffer, value in buffers:
                if not torch.equal(buffer, value):
                    buffer.copy_(value)


class _CopyOnWrite(TorchDispatchMode):
    """Copies a tensor just before an operator writes to its memory, so that what is only read costs nothing."""

    supports_higher_order_operators = True

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._owners: dict[int, list[Tensor]] = {}
        for tensor in tensors:
            self._owners.setdefault(_memory(tensor), []).append(tensor)
        self.copies: list[tuple[Tensor, Tensor]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        schema = getattr(func, "_schema", None)
        if schema is not None and schema.is_mutable:
            for argument, value in zip(schema.arguments, args, strict=False):
                self._save(argument, value)
            for argument in schema.arguments:
                self._save(argument, kwargs.get(argument.name))
        return func(*args, **kwargs)

    def _save(self, argument: Any, value: Any) -> None:
        if argument.alias_info is None or not argument.alias_info.is_write:
            return
        for tensor in value if isinstance(value, list | tuple) else (value,):
            if isinstance(tensor, Tensor):
                self.copies += [(whole, whole.detach().clone()) for whole in self._owners.pop(_memory(tensor), ())]


def _memory(tensor: Tensor) -> int:
    """What tensors that share their memory share."""
    return int(tensor.untyped_storage()._cdata) if tensor.layout is torch.strided else id(tensor)


def draws() -> tuple[Any, ...]:
    """The state of the random numbers that are not torch's."""
    numpy = sys.modules.get("numpy")
    kind, keys, *rest = numpy.random.get_state() if numpy is not None else ("", None)
    return random.getstate(), kind, None if keys is None else keys.tobytes(), tuple(rest)


def _redraw(state: tuple[Any, ...]) -> None:
    own, kind, keys, rest = state
    random.setstate(own)
    if keys is not None:
        numpy = sys.modules["numpy"]
        numpy.random.set_state((kind, numpy.frombuffer(keys, dtype=numpy.uint32), *rest))
