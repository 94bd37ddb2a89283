"""Certificates in, a plan of cuts out: the largest set of units that can go exactly."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256

import torch
from torch import Tensor

from ..proof import Certificates, Kind
from .labels import Blocks, Grid, Slot, Whole
from .walk import Read, Side, Structure

DEAD, CONSTANT, UNREAD = 0, 1, 2
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

    @property
    def axes(self) -> set[tuple[str, int]]:
        """The tensor axes that are cut."""
        return {(cut.tensor, cut.axis) for cut in self.cuts}

    @property
    def digest(self) -> str:
        """A short name of the set of units that go."""
        return sha256(self.removed.numpy().tobytes()).hexdigest()[:12]


@dataclass
class _Search:
    structure: Structure
    certificates: Mapping[int, tuple[Certificates, ...]]
    blocked: Mapping[int, str]
    learning: bool
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
    learning: bool = False,
) -> Plan:
    """The largest set of labels that nothing outside the set depends on.

    Starts from all labels and takes out those that a remaining reader needs, until none is left: since outputs are
    pinned and the graph has no cycle, what is left changes no output. `blocked` are labels that must stay for a
    reason found elsewhere. While weights are `learning`, constants and units that nobody reads yet have gradients, and
    stay.
    """
    by_graph = group_certificates(structure, certificates)
    search = _Search(structure, by_graph, blocked or {}, learning)
    removed = _candidates(search)
    while True:
        kinds = _drop_needed(search, removed)
        # what is put back may need others back, so the next check waits until the one before it finds nothing
        if not any(check(search, removed) for check in (_keep_heads, _keep_shapes, _keep_layers)):
            break
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


def independent_groups(structure: Structure, made: Plan) -> list[set[int]]:
    """The labels that a plan removes, split into sets that share no tensor axis."""
    groups: list[set[int]] = []
    for slot in structure.slots:
        owners = structure.representative[slot.labels].reshape(-1)
        mine = set(owners[made.removed[owners]].tolist())
        if mine:
            joined = [group for group in groups if group & mine]
            groups = [group for group in groups if not group & mine]
            groups.append(mine.union(*joined))
    return groups


def group_certificates(
    structure: Structure, certificates: Sequence[Certificates]
) -> dict[int, tuple[Certificates, ...]]:
    """Certificates by the number of their graph; a graph has several if copies of the module must agree."""
    numbers = {id(graph): number for number, graph in enumerate(structure.program.graphs)}
    found: dict[int, tuple[Certificates, ...]] = {}
    for item in certificates:
        number = numbers[id(item.graph)]
        found[number] = (*found.get(number, ()), item)
    return found


def _candidates(search: _Search) -> Tensor:
    """Representatives that are read somewhere and not pinned."""
    rep = search.rep
    possible = torch.zeros(len(rep), dtype=torch.bool)
    for reading in search.structure.reads:
        if reading.graph in search.certificates:
            possible[rep[reading.labels]] = True
    possible[rep[search.structure.free]] = True
    possible[list(search.structure.pins)] = False
    possible[list(search.blocked)] = False
    return possible


def _drop_needed(search: _Search, removed: Tensor) -> Tensor:
    """Take out of `removed` what a remaining reader needs, to a fixed point; returns how each label is absorbed."""
    rep = search.rep
    while True:
        kinds = torch.zeros(len(rep), dtype=torch.long)
        changed = False
        for number in reversed(range(len(search.structure.reads))):
            reading = search.structure.reads[number]
            owners = rep[reading.labels].reshape(-1)
            if reading.graph not in search.certificates or not bool(removed[owners].any()):
                continue
            how = _absorbed(search, number, reading, removed)
            needed = owners[how < 0]
            changed |= bool(removed[needed].any())
            removed[needed] = False
            kinds.scatter_reduce_(0, owners, how, "amax")
        if not changed:
            return kinds


def _absorbed(search: _Search, number: int, reading: Read, removed: Tensor) -> Tensor:
    """For each index of a read: DEAD, CONSTANT or UNREAD if it can go, −1 if not."""
    copies = search.certificates[reading.graph]
    sizes = tuple(reading.labels.shape)
    if number not in search.cache:
        side = reading.sides[0]
        dead = _everywhere(_profile(c.zero(side.value), side.axes, sizes) for c in copies)
        fixed = torch.zeros_like(dead)
        if reading.fold is not None and not search.learning and len(copies) == 1:
            fixed = _constant_profile(search, reading)
        search.cache[number] = dead, fixed
    dead, fixed = search.cache[number]
    how = torch.full((len(dead),), -1)
    if not search.learning and reading.sides[0] != reading.sides[1]:
        gone = removed[search.rep]
        how[_everywhere(_idle(c, reading.sides[1], gone, sizes) for c in copies)] = UNREAD
        if reading.heads is not None:
            how[gone[reading.heads].repeat_interleave(sizes[1])] = UNREAD
    how[fixed] = CONSTANT
    how[dead] = DEAD
    return how


def _everywhere(masks: Iterable[Tensor]) -> Tensor:
    return torch.stack(list(masks)).all(0)


def _profile(mask: Tensor, axes: tuple[int, ...], sizes: tuple[int, ...]) -> Tensor:
    """A compact mask reduced to some axes (true where true everywhere), written out and flattened."""
    others = [d for d in range(mask.dim()) if d not in axes]
    reduced = mask.all(dim=others, keepdim=True) if others else mask
    order = [*axes, *others]
    return reduced.permute(order).reshape([mask.size(d) for d in axes]).expand(sizes).reshape(-1)


def _idle(certificates: Certificates, side: Side, gone: Tensor, sizes: tuple[int, ...]) -> Tensor:
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
    return _profile(mask, side.axes, sizes)


def _constant_profile(search: _Search, reading: Read) -> Tensor:
    """Indices that are one number, and the same number in every graph, wherever that can move to the read's bias."""
    fold, graphs = reading.fold, search.structure.program.graphs
    siblings = [r for r in search.structure.reads if r.fold == fold and fold is not None]
    for graph in graphs:  # weight and bias must serve this one sum and nothing else
        owned = [node.name for node in graph.nodes if fold and node.target in (fold.weight, fold.bias)]
        users = [graph.readers.get(name, ()) for name in owned]
        if any(len(names) > 1 for names in users) or sum(graphs[r.graph] is graph for r in siblings) > 1:
            return torch.zeros(len(reading.labels), dtype=torch.bool)
    known = [_hull(search.certificates[r.graph][0], r) for r in siblings if r.graph in search.certificates]
    lo, hi = torch.stack([k[0] for k in known]).amin(0), torch.stack([k[1] for k in known]).amax(0)
    size = torch.maximum(lo.abs(), hi.abs())
    dtype = graphs[reading.graph].by_name[reading.sides[0].value].dtype or torch.float32
    # No more than the rounding of the last operators: what varies with the input by more may be magnified later.
    return (hi - lo <= 4 * torch.finfo(dtype).eps * size) & size.isfinite()


def _hull(certificates: Certificates, reading: Read) -> tuple[Tensor, Tensor]:
    """The least and the largest value at each index of a read, over all positions."""
    side, n = reading.sides[0], len(reading.labels)
    interval = certificates.intervals[side.value]
    others = [d for d in range(interval.lo.dim()) if d != side.axes[0]]
    lo, hi = (interval.lo.amin(others), interval.hi.amax(others)) if others else (interval.lo, interval.hi)
    return lo.double().reshape(-1).expand(n), hi.double().reshape(-1).expand(n)


def _keep_heads(search: _Search, removed: Tensor) -> bool:
    """Put back heads of which something stays; true if there were any."""
    before = removed.clone()
    for constraint in search.structure.constraints:
        if isinstance(constraint, Whole):
            heads, rows = search.rep[constraint.heads], search.rep[constraint.labels]
            _revive(search, removed, heads[removed[heads] & ~removed[rows].all(1)], constraint.reason)
    return not torch.equal(before, removed)


def _keep_shapes(search: _Search, removed: Tensor) -> bool:
    """Put back what would leave a value ragged, blocks unequal or a head without indices; true if there was any."""
    before = removed.clone()
    for constraint in search.structure.constraints:
        if isinstance(constraint, Blocks):
            _balance(search, constraint, removed)
        elif isinstance(constraint, Grid):
            _square(search, constraint, removed)
        else:
            heads, rows = search.rep[constraint.heads], search.rep[constraint.labels]
            broken = removed[rows].all(1) & ~removed[heads]
            _revive(search, removed, rows[broken].reshape(-1), constraint.reason)
    return not torch.equal(before, removed)


def _keep_layers(search: _Search, removed: Tensor) -> bool:
    """Put back one unit of every layer that would be empty; true if there was one."""
    before = removed.clone()
    axes = [(layer.name, layer.labels) for layer in search.structure.layers]
    axes += [(slot.tensor, slot.labels.reshape(-1)) for slot in search.structure.slots]
    for name, labels in axes:
        owners = search.rep[labels]
        if bool(removed[owners].all()):
            search.collapsed.append(name)
            _revive(search, removed, owners[:1], "it is the last unit of its layer")
    return not torch.equal(before, removed)


def _revive(search: _Search, removed: Tensor, owners: Tensor, reason: str) -> None:
    for label in owners.unique().tolist():
        search.held.setdefault(label, reason)
    removed[owners] = False


def _balance(search: _Search, constraint: Blocks, removed: Tensor) -> None:
    owners = [search.rep[matrix] for matrix in constraint.matrices]
    gone = [removed[o] for o in owners]
    whole = torch.stack([g.all(1) for g in gone]).all(0)
    if not constraint.droppable or bool(whole.all()):
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
        if not bool(fixed.any()):
            continue
        idle = _idle(search.certificates[reading.graph][0], reading.sides[1], removed[search.rep], (len(dead),))
        chosen = (fixed & ~dead & ~idle & removed[search.rep[reading.labels]]).nonzero().reshape(-1)
        if len(chosen):
            lo, hi = _hull(search.certificates[reading.graph][0], reading)
            values = ((lo + hi) / 2)[chosen]
            fold = reading.fold
            done.setdefault(fold.bias, Folding(fold.weight, fold.axis, fold.bias, chosen, values))
    return list(done.values())
