"""Nested plain data with tensors in it, as JSON and a flat dictionary of tensors.

JSON as it stands for None, booleans, numbers, text, lists and dictionaries with text as keys; everything else is an
object {"$": kind, "of": …}.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping, MutableMapping
from typing import Any

import numpy as np
from torch import Tensor

from ..errors import InputError

_KIND = "$"
_MAPPINGS: dict[str, type[dict[Any, Any]]] = {"dict": dict, "Counter": Counter, "OrderedDict": OrderedDict}


def pack(value: Any, tensors: MutableMapping[str, Tensor], where: str = "") -> Any:
    """JSON data for a value; its tensors join `tensors` under names that nothing has there yet.

    >>> import torch
    >>> tensors = {}
    >>> data = pack({"best": 0.5, "betas": (0.9, 0.99), "mean": torch.ones(2)}, tensors)
    >>> data
    {'best': 0.5, 'betas': {'$': 'tuple', 'of': [0.9, 0.99]}, 'mean': {'$': 'tensor', 'of': 'mean'}}
    >>> unpack(data, tensors)
    {'best': 0.5, 'betas': (0.9, 0.99), 'mean': tensor([1., 1.])}
    """
    if isinstance(value, np.ndarray | np.generic):
        flat = pack(value.reshape(-1).tolist(), tensors, where)
        return {_KIND: value.dtype.str, "shape": list(value.shape), "of": flat}
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Tensor):
        name = where
        while name in tensors:
            name += "_"
        tensors[name] = value
        return {_KIND: "tensor", "of": name}
    if type(value) is list or type(value) is tuple:
        items = [pack(item, tensors, f"{where}.{k}") for k, item in enumerate(value)]
        return items if isinstance(value, list) else {_KIND: "tuple", "of": items}
    kind = type(value).__name__
    if _MAPPINGS.get(kind) is not type(value):
        raise InputError(f"'{where}' is a {kind}, which is neither plain data nor a tensor and cannot be saved")
    inside = {key: pack(item, tensors, f"{where}.{key}" if where else f"{key}") for key, item in value.items()}
    if kind == "dict" and all(isinstance(key, str) for key in inside) and _KIND not in inside:
        return inside
    return {_KIND: kind, "of": [[pack(key, tensors, where), item] for key, item in inside.items()]}


def unpack(data: Any, tensors: MutableMapping[str, Tensor]) -> Any:
    """The value that `pack` gave this data for; takes its tensors out of `tensors`."""
    if isinstance(data, list):
        return [unpack(item, tensors) for item in data]
    if not isinstance(data, Mapping):
        return data
    if _KIND not in data:
        return {key: unpack(item, tensors) for key, item in data.items()}
    kind, inside = data[_KIND], data["of"]
    if kind == "tensor":
        return tensors.pop(inside).clone()
    if kind == "tuple":
        return tuple(unpack(inside, tensors))
    if kind in _MAPPINGS:
        return _MAPPINGS[kind]({unpack(key, tensors): unpack(item, tensors) for key, item in inside})
    return np.array(inside, dtype=kind).reshape(data["shape"])[()]
