"""Forward passes that leave no trace: what they change is put back."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import nn

from .graph import tensors_of

# Whether the passes of this thread are nodedrop's own: to a hook that watches training, these are no batches.
OWN_PASS: ContextVar[bool] = ContextVar("own_pass", default=False)


@contextmanager
def undisturbed(module: nn.Module) -> Iterator[None]:
    """Put back, on leaving, what forward passes may change: tensors, buffers, training flags, random state."""
    flags = [(child, child.training, dict(child._buffers)) for child in module.modules()]
    parameters = {id(parameter) for parameter in module.parameters()}
    tensors = [(tensor, tensor._version, tensor.detach().clone()) for tensor in tensors_of(module).values()]
    state, devices = draws(), sorted({t.device.index or 0 for t, *_ in tensors if t.device.type == "cuda"})
    token = OWN_PASS.set(True)
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        OWN_PASS.reset(token)
        _redraw(state)
        for child, flag, buffers in flags:
            child.training = flag
            child._buffers.clear()
            child._buffers.update(buffers)
        with torch.no_grad():
            for tensor, version, value in tensors:
                # statistics are updated behind the version counter's back
                if tensor._version != version or (id(tensor) not in parameters and not torch.equal(tensor, value)):
                    tensor.copy_(value)


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
