"""Certificates in, a plan of cuts out: the largest set of units that can go exactly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..proof import Certificates, Kind
from .labels import Blocks, Grid, Slot
from .walk import Read, Side, Structure

DEAD, CONSTANT, UNREAD = 0, 1, 2
MOST_ROUNDS = 100
KINDS: tuple[Kind, Kind, Kind] = ("dead", "constant", "unread")


@dataclass(frozen=True)
class Cut:
    """Keep these indices along one axis of a tensor.

    With a two-dimensional `keep`, [blocks, indices], the tensor's other channel axis is split into as many blocks and
    every block keeps its own indices; `rows` are the blocks that stay.
    """

    tensor: str
    axis: int
    keep: Tensor
    size: int
    rows: Tensor | None = None
    blocks: int = 1


@dataclass(frozen=True)
class Folding:
    """Add `weight[:, index] · constant` to a bias, for constants that are about to be cut."""

    weight: str
    axis: int
    bias: str
    index: Tensor
    constant: Tensor


@dataclass(frozen=True)
class Plan:
    """What to cut, all of it together."""

    cuts: tuple[Cut, ...]
    foldings: tuple[Folding, ...]
    groups: Mapping[str, int]
    sizes: Mapping[str, int]
    removed: Tensor
    kinds: Tensor
    held: Mapping[int, str]
    collapsed: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.cuts)


@dataclass
class _Search:
    structure: Structure
    certificates: Mapping[int, Certificates]
    blocked: Mapping[int, str]
    constants: bool
    unread: bool
    held: dict[int, str] = field(default_factory=dict)
    collapsed: list[str] = field(default_factory=list)
    cache: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)

    @property
    def rep(self) -> Tensor:
        return self.structure.representative


def plan(
    structure: Structure,
    certificates: Sequence[Certificates],
    *,
    blocked: Mapping[int, str] | None = None,
    constants: bool = True,
    unread: bool = True,
) -> Plan:
    """The largest set of labels whose removal is exact, forward and backward to a fixed point.

    `blocked` are labels that must stay for a reason found elsewhere.
    """
    by_graph = {structure.program.graphs.index(c.graph): c for c in certificates}
    search = _Search(structure, by_graph, blocked or {}, constants, unread)
    removed, kinds = _removable(search, torch.zeros(len(search.rep), dtype=torch.bool))
    removed = _constrain(search, removed)
    for _ in range(MOST_ROUNDS):  # units read only by what has gone can go as well
        wider, kinds = _removable(search, removed)
        wider = _constrain(search, wider | removed)
        if torch.equal(wider, removed):
            break
        removed = wider
    while True:  # and nothing may rest on a unit that stayed after all
        sound, kinds = _removable(search, removed)
        narrower = _constrain(search, removed & sound)
        if torch.equal(narrower, removed):
            break
        removed = narrower
    return Plan(
        tuple(_cuts(structure, removed)),
        tuple(_foldings(search, removed)),
        _groups(structure, removed),
        {module: int((~removed[structure.representative[labels]]).sum()) for module, labels in structure.sized},
        removed,
        kinds,
        dict(search.held),
        tuple(dict.fromkeys(search.collapsed)),
    )


def _removable(search: _Search, removed: Tensor) -> tuple[Tensor, Tensor]:
    """Representatives that every reader can do without, given what is removed already; and of which kind."""
    rep, count = search.rep, len(search.rep)
    possible = torch.ones(count, dtype=torch.bool)
    read = torch.zeros(count, dtype=torch.bool)
    kinds = torch.zeros(count, dtype=torch.long)
    for number, reading in enumerate(search.structure.reads):
        if reading.graph not in search.certificates:
            continue
        owners = rep[reading.labels]
        how = _absorbed(search, number, reading, removed)
        possible[owners[how < 0]] = False
        read[owners] = True
        kinds.scatter_reduce_(0, owners, how, "amax")
    possible &= read
    for label in (*search.structure.pins, *search.blocked):
        possible[label] = False
    return possible & (rep == torch.arange(count)), kinds


def _absorbed(search: _Search, number: int, reading: Read, removed: Tensor) -> Tensor:
    """For each index of a read: DEAD, CONSTANT or UNREAD if it can go, −1 if not."""
    certificates = search.certificates[reading.graph]
    if number not in search.cache:
        n = len(reading.labels)
        dead = _profile(certificates.zero(reading.sides[0].value), reading.sides[0].axis, n)
        fixed = torch.zeros_like(dead)
        if reading.fold is not None and search.constants:
            fixed = _constant_profile(search, reading)
        search.cache[number] = dead, fixed
    dead, fixed = search.cache[number]
    how = torch.full((len(dead),), -1)
    if search.unread and reading.sides[0] != reading.sides[1]:
        how[_idle(certificates, reading.sides[1], removed[search.rep], len(dead))] = UNREAD
    how[fixed] = CONSTANT
    how[dead] = DEAD
    return how


def _profile(mask: Tensor, axis: int, n: int) -> Tensor:
    """A compact mask reduced to one axis: true where true everywhere."""
    others = [d for d in range(mask.dim()) if d != axis]
    return (mask.all(dim=others) if others else mask).reshape(-1).expand(n).clone()


def _idle(certificates: Certificates, side: Side, gone: Tensor, n: int) -> Tensor:
    """Indices that a weight ignores: zero weights for every unit that stays."""
    mask = certificates.zero(side.value)
    if side.groups > 1:
        if side.transposed:
            inner = mask.shape[0] // side.groups
            mask = mask.reshape(side.groups, inner, mask.shape[1], -1).transpose(1, 2)
        else:
            mask = mask.reshape(side.groups, mask.shape[0] // side.groups, mask.shape[1], -1)
        flat = mask.all(dim=3)
        if side.units is not None:
            flat = flat | gone[side.units].reshape(side.groups, -1, 1)
        return flat.all(dim=1).reshape(-1)
    if side.units is not None and mask.size(side.units_axis) == len(side.units):
        stays = (~gone[side.units]).nonzero().reshape(-1)
        if len(stays) < len(side.units):
            mask = mask.index_select(side.units_axis, stays)
    return _profile(mask, side.axis, n)


def _constant_profile(search: _Search, reading: Read) -> Tensor:
    """Indices that are one number, and the same number in every graph, wherever that can move to the read's bias."""
    siblings = [r for r in search.structure.reads if r.fold is not None and r.fold.bias == reading.fold.bias]  # type: ignore[union-attr]
    shared = [r for r in search.structure.reads if r.graph == reading.graph and r.sides[1].value == reading.sides[1].value]
    known = [_constants(search.certificates[r.graph], r) for r in siblings if r.graph in search.certificates]
    if len({r.graph for r in siblings}) != len(siblings) or len(shared) != 1:
        return torch.zeros(len(reading.labels), dtype=torch.bool)
    mask, first = known[0]
    for other, values in known[1:]:
        mask = mask & other & ((values - first).abs() <= 1e-6 * first.abs())
    return mask


def _constants(certificates: Certificates, reading: Read) -> tuple[Tensor, Tensor]:
    """Which indices of a read hold a constant, and which one."""
    side, n = reading.sides[0], len(reading.labels)
    interval = certificates.intervals[side.value]
    others = [d for d in range(interval.lo.dim()) if d != side.axis]
    lo, hi = (interval.lo.amin(others), interval.hi.amax(others)) if others else (interval.lo, interval.hi)
    lo, hi = lo.double().reshape(-1).expand(n), hi.double().reshape(-1).expand(n)
    steady = _profile(certificates.constant(side.value), side.axis, n)
    size = torch.maximum(lo.abs(), hi.abs())
    return steady & (hi - lo <= 1e-5 * size) & size.isfinite(), (lo + hi) / 2


def _constrain(search: _Search, removed: Tensor) -> Tensor:
    """The largest part of a removal that keeps every value rectangular, blocks equal, and no layer empty."""
    removed = removed.clone()
    while True:
        before = removed.clone()
        for constraint in search.structure.constraints:
            if isinstance(constraint, Blocks):
                _balance(search, constraint, removed)
            else:
                _square(search, constraint, removed)
        for layer in search.structure.layers:
            owners = search.rep[layer.labels]
            if bool(removed[owners].all()):
                search.collapsed.append(layer.name)
                _revive(search, removed, owners[:1], "it is the last unit of its layer")
        if torch.equal(before, removed):
            return removed


def _revive(search: _Search, removed: Tensor, owners: Tensor, reason: str) -> None:
    for label in owners.unique().tolist():
        search.held.setdefault(label, reason)
    removed[owners] = False


def _balance(search: _Search, constraint: Blocks, removed: Tensor) -> None:
    owners = [search.rep[matrix] for matrix in constraint.matrices]
    gone = [removed[o] for o in owners]
    whole = torch.stack([g.all(1) for g in gone]).all(0) if constraint.droppable else torch.zeros(len(gone[0]), dtype=torch.bool)
    if bool(whole.all()):
        whole = torch.zeros_like(whole)
    for owner, row in zip(owners, gone, strict=True):
        counts = row.sum(1)
        target = int(counts[~whole].min())
        for k in ((counts > target) & ~whole).nonzero().reshape(-1).tolist():
            surplus = owner[k][row[k]][target:]
            _revive(search, removed, surplus, constraint.reason)


def _square(search: _Search, constraint: Grid, removed: Tensor) -> None:
    owners = search.rep[constraint.labels]
    gone = removed[owners]
    covered = torch.zeros_like(gone)
    for axis in (d for d, n in enumerate(gone.shape) if n > 1):
        others = [d for d in range(gone.dim()) if d != axis]
        covered |= gone.all(dim=others, keepdim=True) if others else gone
    left = gone & ~covered
    if bool(left.any()):
        _revive(search, removed, owners[left], constraint.reason)


def _cuts(structure: Structure, removed: Tensor) -> list[Cut]:
    cuts = []
    for slot in structure.slots:
        stays = ~removed[structure.representative[slot.labels]]
        if bool(stays.all()):
            continue
        cuts.append(_cut(slot, stays))
    return cuts


def _cut(slot: Slot, stays: Tensor) -> Cut:
    if stays.dim() == 1:
        return Cut(slot.tensor, slot.axis, stays.nonzero().reshape(-1), len(stays))
    rows = stays.any(1).nonzero().reshape(-1)
    keep = torch.stack([stays[row].nonzero().reshape(-1) for row in rows.tolist()])
    return Cut(slot.tensor, slot.axis, keep, stays.shape[1], rows, len(stays))


def _groups(structure: Structure, removed: Tensor) -> dict[str, int]:
    """The new number of groups of every convolution that loses some."""
    found = {}
    for tensor, labels in structure.regroups.items():
        stays = (~removed[structure.representative[labels]]).any(1)
        if not bool(stays.all()):
            found[tensor] = int(stays.sum())
    return found


def _foldings(search: _Search, removed: Tensor) -> list[Folding]:
    done: dict[str, Folding] = {}
    for number, reading in enumerate(search.structure.reads):
        if reading.fold is None or reading.graph not in search.certificates or number not in search.cache:
            continue
        dead, fixed = search.cache[number]
        idle = _idle(search.certificates[reading.graph], reading.sides[1], removed[search.rep], len(dead))
        chosen = (fixed & ~dead & ~idle & removed[search.rep[reading.labels]]).nonzero().reshape(-1)
        if len(chosen):
            values = _constants(search.certificates[reading.graph], reading)[1][chosen]
            fold = reading.fold
            done.setdefault(fold.bias, Folding(fold.weight, fold.axis, fold.bias, chosen, values))
    return list(done.values())
