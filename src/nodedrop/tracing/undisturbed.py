"""Forward passes that leave no trace: what they change is put back."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from .graph import tensors_of

# Whether the passes of this thread are nodedrop's own: to a hook that watches training, these are no batches.
OWN_PASS: ContextVar[bool] = ContextVar("own_pass", default=False)


@contextmanager
def undisturbed(module: nn.Module) -> Iterator[Kept]:
    """Put back, on leaving, what forward passes may change: tensors, training flags, random state."""
    kept = Kept(module)
    devices = sorted({t.device.index or 0 for t in tensors_of(module).values() if t.device.type == "cuda"})
    token = OWN_PASS.set(True)
    try:
        with torch.random.fork_rng(devices=devices):
            yield kept
    finally:
        OWN_PASS.reset(token)
        kept.put_back()


@dataclass(frozen=True)
class _Memory:
    """A tensor with its memory, and what that held."""

    tensor: Tensor
    data: Tensor
    version: int
    value: Tensor

    def is_where_it_was(self) -> bool:
        """What is written without a change has moved on as well: zeros have signs."""
        return self.tensor._version == self.version and self.tensor.data_ptr() == self.data.data_ptr()

    def put_back(self) -> None:
        self.tensor.data = self.data
        self.tensor.copy_(self.value)


class Kept:
    """Everything that a forward pass may change of a module, by value: code has ways around the version counters."""

    def __init__(self, module: nn.Module) -> None:
        self._modules = [
            (path, child, child.training, dict(child._parameters), dict(child._buffers))
            for path, child in module.named_modules()
        ]
        owned = {id(tensor): tensor for tensor in tensors_of(module).values()}
        self._memory = {
            key: _Memory(tensor, tensor.data, tensor._version, tensor.detach().clone()) for key, tensor in owned.items()
        }
        self._draws = draws()

    @torch.no_grad()
    def put_back(self) -> set[str]:
        """Names, all that they have, of tensors that have other values than before, which are given theirs again."""
        _redraw(self._draws)
        alike = {key: _alike(memory.tensor, memory.value) for key, memory in self._memory.items()}
        changed = set()
        for path, name, now, tensor in self._held():
            if not (alike[id(tensor)] if now is tensor else _alike(now, self._memory[id(tensor)].value)):
                changed.add(f"{path}.{name}".lstrip("."))
        for key, memory in self._memory.items():
            if not (alike[key] and memory.is_where_it_was()):
                memory.put_back()
        for _, child, flag, parameters, buffers in self._modules:
            child.training = flag
            for own, before in ((child._parameters, parameters), (child._buffers, buffers)):
                own.clear()
                own.update(before)
        return changed

    def _held(self) -> Iterator[tuple[str, str, Tensor | None, Tensor]]:
        """Every place of a tensor: its module, its name there, what is there now, and what was."""
        for path, child, _, parameters, buffers in self._modules:
            for own, before in ((child._parameters, parameters), (child._buffers, buffers)):
                held = ((name, tensor) for name, tensor in before.items() if tensor is not None)
                yield from ((path, name, own.get(name), tensor) for name, tensor in held)


def _alike(now: Tensor | None, value: Tensor) -> bool:
    kind = (value.shape, value.dtype, value.device)
    return now is not None and (now.shape, now.dtype, now.device) == kind and torch.equal(now, value)


def fresh(inputs: Any) -> Any:
    """The same inputs in memory of their own, for a forward that writes to them; what was one tensor still is."""
    copies: dict[int, Tensor] = {}

    def copied(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if id(value) not in copies:
            copies[id(value)] = value.detach().clone().requires_grad_(value.requires_grad)
        return copies[id(value)]

    return tree_map(copied, inputs)


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
