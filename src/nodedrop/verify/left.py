"""What the cuts of a run have left of each tensor, by the indices that its elements had at the start.

The inner axis of a convolution in groups is shared by its groups, and each group may lose other parts of it. Along it
an element is counted as `group · size + index`, which is also the channel that the element reads (or, of a transposed
convolution, makes).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .claims import Refuted
from .interval import Array
from .pairs import INNER, NotProved
from .program import Program, Ref


def groups_read(program: Program) -> dict[str, int]:
    """The tensors that convolutions in more than one group read, and the number of groups."""
    found: dict[str, int] = {}
    for step in program.steps:
        weight, groups = step.args.get("weight"), step.args.get("groups", 1)
        if "conv" in step.op and isinstance(weight, Ref) and groups > 1:
            source = program.steps[weight.place]
            name = source.args["name"] if source.op == "tensor" else ""
            if name and found.setdefault(name, groups) != groups:
                raise NotProved(f"'{name}' is read by convolutions in different numbers of groups")
    return found


@dataclass(frozen=True)
class Left:
    """Indices that are left along each axis of each tensor; `shapes` and `groups` are those of the start."""

    shapes: Mapping[str, list[int]]
    groups: Mapping[str, int]
    along: Mapping[tuple[str, int], list[int]]

    @staticmethod
    def all(shapes: Mapping[str, list[int]], groups: Mapping[str, int]) -> Left:
        """Nothing is cut yet."""
        sizes = {
            (name, d): n * (groups.get(name, 1) if d == 1 else 1)
            for name, shape in shapes.items()
            for d, n in enumerate(shape)
        }
        return Left(shapes, groups, {place: list(range(n)) for place, n in sizes.items()})

    def without(self, cut: Mapping[str, Any]) -> Left:
        """What a cut leaves; its indices must be those that the cuts before it left."""
        along = dict(self.along)
        for item in cut["tensors"]:
            place = name, axis = item["tensor"], item["axis"]
            now, gone = self.along.get(place, []), set(item["removed"])
            if item["blocks"] > 1 and name not in self.groups:
                raise NotProved(f"cut {cut['cut']} removes blocks of '{name}', which no convolution in groups reads")
            blocks = len(self._by_group(name)) if axis == 1 and name in self.groups else 1
            if (item["blocks"], item["size"] * blocks) != (blocks, len(now)) or not gone <= set(range(len(now))):
                raise Refuted(f"cut {cut['cut']} is of another width than the cuts before it left")
            if item["original"] != [now[k] for k in item["removed"]]:
                raise Refuted(f"cut {cut['cut']} states other first indices than the cuts before it left")
            along[place] = [index for k, index in enumerate(now) if k not in gone]
        for name in self.groups:  # a group without rows has nothing left of the inner axis either
            rows = {row // self._height(name) for row in along[name, 0]}
            inner = along[name, 1]
            along[name, 1] = [k for k in inner if k // self.shapes[name][1] in rows]
        after = Left(self.shapes, self.groups, along)
        for name in self.groups:
            heights = np.bincount(np.array(along[name, 0], int) // self._height(name), minlength=self.groups[name])
            widths = np.bincount(np.array(along[name, 1], int) // self.shapes[name][1], minlength=self.groups[name])
            there = heights > 0
            if not np.array_equal(there, widths > 0) or len({*zip(heights[there], widths[there], strict=True)}) > 1:
                raise Refuted(f"cut {cut['cut']} leaves groups of different size of '{name}'")
            if cut["groups"].get(name, int(there.sum())) != int(there.sum()):
                raise Refuted(f"cut {cut['cut']} states {cut['groups'][name]} groups of '{name}', and leaves others")
        return after

    def hints(self, after: Left) -> dict[str, dict[int, Array]]:
        """What is left of all that was there at the start when what lies between two states goes."""
        found: dict[str, dict[int, Array]] = {}
        for (name, axis), now in self.along.items():
            gone = np.setdiff1d(now, after.along[name, axis])
            if len(gone):
                inner = axis == 1 and name in self.groups
                size = self.shapes[name][axis] * (self.groups[name] if inner else 1)
                found.setdefault(name, {})[INNER if inner else axis] = np.setdiff1d(np.arange(size), gone)
        return found

    def places(self, name: str, rows: list[int] | None = None) -> tuple[Array, ...]:
        """Where the elements of a tensor, or of some of its rows, were at the start: indices that broadcast."""
        axes = [np.array(self.along[name, d], int) for d in range(len(self.shapes[name]))]
        if rows is not None:
            axes[0] = np.array(rows, int)
        if name not in self.groups:
            return np.ix_(*axes)
        lines = self._by_group(name)
        width = len(axes[1]) // len(lines)
        inner = np.array([lines[row // self._height(name)] for row in axes[0].tolist()], int)
        found = list(np.ix_(axes[0], np.arange(width), *axes[2:]))
        found[1] = inner.reshape(len(axes[0]), width, *(1,) * len(axes[2:]))
        return tuple(found)

    def shape(self, name: str) -> tuple[int, ...]:
        """Of a tensor as it is by now."""
        return np.broadcast_shapes(*(place.shape for place in self.places(name))) if self.shapes[name] else ()

    def _height(self, name: str) -> int:
        """How many rows each group of a tensor had."""
        return self.shapes[name][0] // self.groups[name]

    def _by_group(self, name: str) -> dict[int, list[int]]:
        """Indices along the inner axis, within each group that is left."""
        found: dict[int, list[int]] = {}
        for index in self.along[name, 1]:
            found.setdefault(index // self.shapes[name][1], []).append(index % self.shapes[name][1])
        return found
