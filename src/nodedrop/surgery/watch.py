"""A pass as it is watched: without the noise of dropout, and with its operators written down."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from ..tracing.graph import tensors_of

# What operators call the sizes that they are given: a cut changes these, and shapes tell them.
_SIZES = frozenset({"size", "sizes", "shape", "repeats", "normalized_shape", "groups"})


class Watching(TorchDispatchMode):
    """Dropout keeps everything, so that two networks of different width can be compared in training mode.

    `ran` tells the operators in order, with their numbers and the parameters they read, but without sizes.
    """

    supports_higher_order_operators = True

    def __init__(self, module: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._names = {id(tensor): name for name, tensor in tensors_of(module).items()}
        self.ran: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = str(func), kwargs or {}
        given = [value for value, sizes in zip(args, _are_sizes(func), strict=False) if not sizes]
        self.ran.append((name, self._told(given), self._told([kwargs[key] for key in sorted(kwargs)])))
        if name.startswith("aten.bernoulli"):
            return args[0].fill_(1) if name.startswith("aten.bernoulli_") else torch.ones_like(args[0])
        if name == "aten.native_dropout.default":
            return args[0].clone(), torch.ones_like(args[0], dtype=torch.bool)
        return func(*args, **kwargs)

    def _told(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return self._names.get(id(value), "")
        return [self._told(item) for item in value] if isinstance(value, list | tuple) else repr(value)


@cache
def _are_sizes(func: Any) -> tuple[bool, ...]:
    schema = getattr(func, "_schema", None)
    return tuple(item.name in _SIZES for item in schema.arguments) if schema is not None else (False,) * 64
