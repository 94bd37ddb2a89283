"""All or nothing: remember everything a cut touches, so that it can be undone."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


class Transaction:
    """Undoes every recorded change unless it is committed.

    Parameter objects are never replaced, only their data, so optimizers, schedulers and hooks stay valid.
    """

    def __init__(self) -> None:
        self._undo: list[tuple[Any, ...]] = []
        self._done = False

    def set_data(self, tensor: Tensor, value: Tensor, gradient: Tensor | None = None) -> None:
        """Give a parameter or buffer other data, and a gradient that fits it."""
        self._undo.append((_set_data, tensor, tensor.data, tensor.grad))
        _set_data(tensor, value, gradient)

    def set_attribute(self, module: nn.Module, name: str, value: Any) -> None:
        """Set a plain attribute of a module, which may be a new one."""
        known = hasattr(module, name)
        self._undo.append((setattr, module, name, getattr(module, name)) if known else (delattr, module, name))
        setattr(module, name, value)

    def set_state(self, optimizer: Optimizer, parameter: Tensor, key: str, value: Any) -> None:
        """Replace one entry of an optimizer's state."""
        self._undo.append((optimizer.state[parameter].__setitem__, key, optimizer.state[parameter][key]))
        optimizer.state[parameter][key] = value

    def commit(self) -> None:
        """Keep the changes."""
        self._done = True

    def __enter__(self) -> Transaction:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._done:
            for action, *arguments in reversed(self._undo):
                action(*arguments)


def _set_data(tensor: Tensor, data: Tensor, gradient: Tensor | None) -> None:
    tensor.grad = None
    if tensor.shape != data.shape:
        # A loss that is still held somewhere keeps the parameter's gradient accumulator, with the old shape, in use.
        # Torch drops it only when the data changes type, so let it change type on the way.
        other = torch.float64 if tensor.dtype != torch.float64 else torch.float32
        tensor.data = torch.empty(0, dtype=other, device=tensor.device)
    tensor.data = data
    tensor.grad = gradient
    torch.clear_autocast_cache()  # or the rest of an autocast block goes on with casts of the old data
