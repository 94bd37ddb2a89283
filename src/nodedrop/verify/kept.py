"""What a cut of a run kept of the weights of its moment, as what is known of the tensors at the widths of the start."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .claims import Refuted
from .interval import DOUBLE, Array, Value, known
from .left import Left
from .pairs import NotProved

Kept = dict[str, torch.Tensor]
BITS = {torch.uint8: 4, torch.int8: 8, torch.int16: 16}


def facts_of(folder: Path, cut: Mapping[str, Any], left: Left, rest: Left) -> dict[str, Value]:
    """What is known at a cut, between what was left before it and after it; 0 where something was removed before."""
    kept, found = read_kept(folder, cut), dict[str, Value]()
    read = _Reader(kept, cut, left, rest)
    for key, tensor in kept.items():
        kind, axis, name = read.parted(key)
        if kind == "rows":
            found[name] = read.enclosed(name)
        elif kind == "whole":
            found[name] = read.whole(name, tensor)
        elif axis == "0" and f"rows/{name}" not in kept:
            found[name] = read.removed(name, tensor)
    return found


class _Reader:
    """The tensors that a cut kept, and where their elements were at the start."""

    def __init__(self, kept: Kept, cut: Mapping[str, Any], left: Left, rest: Left) -> None:
        self.kept, self.cut, self.left, self.rest = kept, cut, left, rest
        self.lost = {(item["tensor"], item["axis"]): item["original"] for item in cut["tensors"]}

    def parted(self, key: str) -> tuple[str, str, str]:
        """The kind, the axis if something is removed, and the tensor's name."""
        kind, _, name = key.partition("/")
        axis, _, name = name.partition("/") if kind == "removed" else ("", "", name)
        fits = {
            "whole": True,
            "rows": f"whole/{name}" not in self.kept,
            "steps": f"rows/{name}" in self.kept,
            "removed": f"whole/{name}" not in self.kept and axis in [str(d) for n, d in self.lost if n == name],
        }
        if not fits.get(kind) or name not in self.left.shapes:
            raise Refuted(f"what cut {self.cut['cut']} kept has '{key}', which is none of its format")
        return kind, axis, name

    def whole(self, name: str, tensor: torch.Tensor) -> Value:
        """A tensor."""
        wide = np.zeros(self.left.shapes[name])
        self.put([wide], name, tensor.double().numpy(), self.left)
        return known(wide)

    def removed(self, name: str, tensor: torch.Tensor) -> Value:
        """The rows that go of a tensor of which no others are known."""
        array, lost = tensor.double().numpy(), self.lost[name, 0]
        if array.ndim == 1:
            wide = np.full(self.left.shapes[name], np.nan)
            self.put([wide], name, array, self.slices(name, 0))
            return known(wide)
        every = np.zeros(self.left.shapes[name])
        self.put([every], name, array, self.slices(name, 0))
        wide = every[lost]
        return Value(wide, wide, tuple(self.left.shapes[name]), rows=np.array(lost, int))

    def enclosed(self, name: str) -> Value:
        """What stays, within a radius of middle + steps · scale by rows, and what goes as it is."""
        shape = self.rest.shape(name)
        lo, hi = self.intervals(name, shape)
        ends = [np.zeros(self.left.shapes[name]) for _ in range(2)]
        for end, stays in zip(ends, (lo, hi), strict=True):
            self.put([end], name, stays, self.rest)
        for axis in sorted(d for n, d in self.lost if n == name):
            tensor = self.kept.get(f"removed/{axis}/{name}")
            if tensor is None:
                raise Refuted(f"what cut {self.cut['cut']} kept lacks what it removed of '{name}'")
            self.put(ends, name, tensor.double().numpy(), self.slices(name, axis))
        return Value(ends[0], ends[1], tuple(self.left.shapes[name]))

    def intervals(self, name: str, shape: tuple[int, ...]) -> tuple[Array, Array]:
        """Ends of the weights that stay; the least step is a weight of 0."""
        rows, steps = self.kept[f"rows/{name}"].double().numpy(), self.kept.get(f"steps/{name}")
        bits = 0 if steps is None else BITS.get(steps.dtype, 0)
        sized = rows.shape == (3, *shape[:1]) and np.isfinite(rows).all() and bool((rows[2] >= 0).all())
        if not sized or len(shape) < 2 or (steps is not None and not bits):
            raise Refuted(f"what cut {self.cut['cut']} kept of '{name}' are no intervals of its rows")
        taken = np.zeros(shape) if steps is None else _unpacked(steps, prod(shape)).astype(float)
        if taken.size != prod(shape):
            raise Refuted(f"what cut {self.cut['cut']} kept does not fit it: '{name}' has shape {taken.shape}")
        middle, scale, radius = (part.reshape(-1, *(1,) * (len(shape) - 1)) for part in rows)
        taken = taken.reshape(shape)
        radius = radius * (1 + 4 * DOUBLE) + 4 * DOUBLE * (np.abs(middle) + np.abs(taken * scale))
        zero, values = (taken == -(2 ** (bits - 1))) & (bits > 0), middle + taken * scale
        return np.where(zero, 0.0, values - radius), np.where(zero, 0.0, values + radius)

    def slices(self, name: str, axis: int) -> Left:
        """What goes along an axis, of what stays along those before it."""
        along = dict(self.left.along)
        along |= {(name, d): self.rest.along[name, d] for d in range(axis)} | {(name, axis): self.lost[name, axis]}
        return Left(self.left.shapes, self.left.groups, along)

    def put(self, wide: list[Array], name: str, array: Array, where: Left) -> None:
        """Numbers, at their places."""
        places = where.places(name)
        if np.broadcast_shapes(*(p.shape for p in places)) != array.shape:
            raise Refuted(f"what cut {self.cut['cut']} kept does not fit it: '{name}' has shape {array.shape}")
        for target in wide:
            target[places] = array


def _unpacked(steps: torch.Tensor, count: int) -> Array:
    """Steps as numbers; two of 4 bits share a byte."""
    array: Array = steps.numpy()
    if steps.dtype != torch.uint8:
        return array
    halves = np.stack([array >> 4, array & 15], -1).reshape(-1).astype(int) - 8
    return halves[:count] if halves.size in (count, count + 1) else halves[:0]


def read_kept(folder: Path, cut: Mapping[str, Any]) -> Kept:
    """The file of what a cut kept."""
    from safetensors.torch import load

    stated = cut["witness"]
    if stated is None:
        raise NotProved(f"cut {cut['cut']} kept no weights; check it with the models before and after it")
    path = folder / str(stated["file"])
    if not path.resolve().is_relative_to(folder.resolve()) or not path.is_file():
        raise NotProved(f"the weights that cut {cut['cut']} kept are missing: '{stated['file']}'")
    content = path.read_bytes()
    if sha256(content).hexdigest() != stated["sha256"]:
        raise Refuted(f"'{stated['file']}' is not what cut {cut['cut']} kept")
    try:
        return load(content)
    except Exception as error:
        raise Refuted(f"'{stated['file']}' cannot be read: {error}") from None
