"""Labels: which elements of which tensors stand or fall together.

Every axis of every parameter starts with one label per index. Walking the graph, values inherit labels from the
parameters that make them, and elements that must share one fate get their labels united. A value carries a list of
*factors*, compact label tensors; an element goes if the label of any factor at its place goes. Elements under no
factor are fixed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..tracing.graph import Shape

Factor = Tensor
Factors = tuple[Factor, ...]

FIXED = 0


def support(factor: Factor) -> tuple[int, ...]:
    """The axes along which a factor tells elements apart."""
    return tuple(d for d, n in enumerate(factor.shape) if n > 1)


def along(factors: Factors, axis: int) -> Factor | None:
    """The factor that labels an axis, if just one does and it labels nothing else."""
    found = touching(factors, (axis,))
    return found[0] if len(found) == 1 and support(found[0]) == (axis,) else None


def touching(factors: Factors, axes: Iterable[int]) -> Factors:
    """Factors that label any of some axes."""
    wanted = set(axes)
    return tuple(f for f in factors if wanted & set(support(f)))


def vector(factor: Factor) -> Tensor:
    """The labels of a factor on a single axis."""
    return factor.reshape(-1)


@dataclass(frozen=True)
class Slot:
    """One axis of a parameter or buffer, with a label per index.

    A grouped convolution's inner axis is shared by its groups; there `labels` is [groups, indices], the tensor's
    other channel axis being split into as many blocks.
    """

    tensor: str
    axis: int
    labels: Tensor


@dataclass(frozen=True)
class Blocks:
    """Rows that must all keep the same number of labels (equal chunks, groups of a convolution).

    Where `droppable`, a row that goes as a whole, in every matrix, may go.
    """

    matrices: tuple[Tensor, ...]
    droppable: bool
    reason: str


@dataclass(frozen=True)
class Whole:
    """A head goes exactly when all of its labels go: `heads` is [n], `labels` [n, indices]."""

    heads: Tensor
    labels: Tensor
    reason: str


@dataclass(frozen=True)
class Grid:
    """A value labelled along several axes at once: whole slices go, or nothing."""

    labels: Factor
    reason: str


@dataclass
class Labels:
    """The union-find forest over labels, with what is pinned and why. Filled while graphs are walked."""

    count: int = 1
    edges: list[Tensor] = field(default_factory=list)
    pins: list[tuple[Tensor, str]] = field(default_factory=list)
    slots: dict[tuple[str, int], Slot] = field(default_factory=dict)
    constraints: list[Blocks | Grid | Whole] = field(default_factory=list)
    free: list[Tensor] = field(default_factory=list)

    def fresh(self, n: int) -> Tensor:
        """New labels."""
        self.count += n
        return torch.arange(self.count - n, self.count)

    def heads(self, labels: Tensor, reason: str) -> Tensor:
        """New labels for the rows of a label matrix. They belong to no tensor: a row goes when all of it goes."""
        made = self.fresh(len(labels))
        self.free.append(made)
        self.constraints.append(Whole(made, labels, reason))
        return made

    def unite(self, first: Tensor, second: Tensor) -> None:
        """Elements at the same place (after broadcasting) share one fate."""
        a, b = torch.broadcast_tensors(first, second)
        self.edges.append(torch.stack([a.reshape(-1), b.reshape(-1)]))

    def pin(self, factors: Iterable[Factor], reason: str) -> None:
        """These labels can never go."""
        for factor in factors:
            self.pins.append((factor.reshape(-1), reason))

    def of_tensor(self, name: str, shape: Shape) -> Factors:
        """The factors of a parameter or buffer: one for every axis with more than one index."""
        found = []
        for axis, n in enumerate(shape):
            if n > 1:
                slot = self.slots.get((name, axis))
                if slot is None:
                    slot = self.slots[name, axis] = Slot(name, axis, self.fresh(n))
                if slot.labels.dim() > 1:  # shared by the groups of a convolution: no label of its own
                    continue
                found.append(slot.labels.reshape([n if d == axis else 1 for d in range(len(shape))]))
        return tuple(found)

    def solve(self) -> Tensor:
        """The representative of every label: the least label it is united with."""
        parent = torch.arange(self.count)
        if not self.edges:
            return parent
        first, second = torch.cat(self.edges, 1)
        while True:
            a, b = parent[first], parent[second]
            low = torch.minimum(a, b)
            before = parent.clone()
            parent.scatter_reduce_(0, a, low, "amin")
            parent.scatter_reduce_(0, b, low, "amin")
            parent = parent[parent]
            if torch.equal(parent, before):
                return parent
