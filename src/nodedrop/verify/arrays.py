"""Index arrays: operators that only move elements, run as they are, and slices found by their numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from .interval import Array
from .program import Ref, Step

MOVES = frozenset(
    f"{name}.{form}"
    for form, names in {
        "default": "view reshape _unsafe_view squeeze unsqueeze view_copy reshape_as view_as clone contiguous detach "
        "alias lift_fresh_copy permute t mT numpy_T expand expand_as repeat tile narrow flip roll diagonal chunk "
        "split_with_sizes channel_shuffle pixel_shuffle pixel_unshuffle cat stack concat slice_scatter select_scatter",
        "using_ints": "flatten",
        "int": "unflatten transpose select unbind movedim",
        "dim": "squeeze",
        "dims": "squeeze",
        "Tensor": "slice split",
        "sizes": "split",
    }.items()
    for name in names.split()
)


def refs(value: Any) -> list[int]:
    """Places of all values in an argument."""
    if isinstance(value, Ref):
        return [value.place]
    items = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return [place for item in items for place in refs(item)]


def told(value: Any) -> Any:
    """What an argument says beside its tensors. Types count, signs of zeros, and the places of tensors in lists."""
    if isinstance(value, Mapping):
        return {name: told(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [told(item) for item in value]
    return Ref if isinstance(value, Ref) else (type(value), repr(value))


def alike(one: Array, two: Array, signed: bool = True) -> bool:
    """Whether numbers are the same, and the signs of zeros."""
    return np.array_equal(one, two) and (not signed or np.array_equal(np.signbit(one), np.signbit(two)))


def run(step: Step, arrays: Sequence[Array]) -> list[Array]:
    """An operator's results on these arrays in place of its operands."""
    tensors = iter([torch.from_numpy(np.array(x, order="C")) for x in arrays])

    def filled(value: Any) -> Any:
        if isinstance(value, Ref):
            return next(tensors)
        return [filled(item) for item in value] if isinstance(value, list) else value

    results = step.run(**{name: filled(value) for name, value in step.args.items()})
    return [t.contiguous().numpy() for t in (results if isinstance(results, list | tuple) else (results,))]


def whole(keep: Array, size: int) -> bool:
    """Whether an axis lost nothing."""
    return len(keep) == size and bool((keep == np.arange(size)).all())


def compact(array: Array) -> Array:
    """Axes along which all positions agree, reduced to one."""
    for axis in range(array.ndim):
        first = array.take([0], axis) if array.shape[axis] else array
        array = first if (array == first).all() else array
    return array


def grid(origin: Array, left: Array) -> tuple[Array, ...] | None:
    """Indices along each axis with `left == origin[np.ix_(*indices)]`, if there are such."""
    if origin.shape == left.shape and np.array_equal(origin, left):
        return tuple(np.arange(n) for n in origin.shape)
    if origin.ndim != left.ndim or not origin.size or not left.size:
        return None
    order = np.argsort(origin, axis=None, kind="stable")
    spots = np.searchsorted(origin.reshape(-1), left.reshape(-1), sorter=order)
    places = np.unravel_index(order[np.minimum(spots, len(order) - 1)], origin.shape)
    keep = []
    for d, (n, m) in enumerate(zip(origin.shape, left.shape, strict=True)):
        line = np.moveaxis(places[d].reshape(left.shape), d, 0).reshape(m, -1)[:, 0]
        keep.append(np.arange(n) if n == m else line)
    return tuple(keep) if np.array_equal(origin[np.ix_(*keep)], left) else None


def keeps_rows(origin: Array, width: int) -> bool:
    """Whether every row along the last axis is still a row of the value it came from."""
    if not origin.ndim or origin.shape[-1] != width:
        return False
    rows = origin.reshape(-1, width)
    return bool((rows == rows[:, :1] + np.arange(width)).all() and (rows[:, 0] % width == 0).all())


def matched(before: Array, after: Array) -> Array:
    """Slices of one array found in another by their numbers, in order where that is possible; none if one is not."""
    places: dict[bytes, list[int]] = {}
    for index, row in enumerate(before):
        places.setdefault((row + 0.0).tobytes(), []).append(index)
    found, last = [], -1
    for row in after:
        options = places.get((row + 0.0).tobytes(), [])
        if not options:
            return np.zeros(0, int)
        last = next((index for index in options if index > last), options[0])
        found.append(last)
    return np.array(found, int)


def dense(kernel: Array, groups: int, turned: bool) -> Array:
    """A kernel of any number of groups as [units, inputs, positions], 0 where groups do not meet."""
    flat = kernel.reshape(groups, kernel.shape[0] // groups, kernel.shape[1], -1)
    flat = flat.swapaxes(1, 2) if turned else flat
    if groups == 1:
        return np.asarray(flat[0])
    wide = np.zeros((groups, flat.shape[1], groups, *flat.shape[2:]), kernel.dtype)
    for g in range(groups):
        wide[g, :, g] = flat[g]
    return wide.reshape(groups * flat.shape[1], groups * flat.shape[2], -1)
