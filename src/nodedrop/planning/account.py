"""Every unit accounted for: removed with its certificate, alive with its bound, or pinned with a reason."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from ..proof import Certificate, Certificates
from .labels import FIXED, Factors
from .plan import KINDS, Plan, group_certificates
from .reach import reach
from .rules.elementwise import ZERO_REGION
from .walk import Fixed, Layer, Structure

# Why a dead unit stays that no rule pins: by what it is joined with, or by its readers.
_HELD = {
    True: "dead, but joined with units that are alive, or read by what is not 0 at 0",
    False: "dead, but on its way to the next layer its 0 becomes another number",
}

Status = Literal["removed", "alive", "pinned"]


class Unit(NamedTuple):
    """One unit's fate. `bound` is the largest value that can enter its activation, if it has one.

    A tuple, since every look makes thousands of them.
    """

    layer: str
    index: int  # type: ignore[assignment]  # where tuples have a method
    status: Status
    bound: float | None = None
    reason: str = ""
    certificate: Certificate | None = None


@dataclass(frozen=True)
class Account:
    """All units of one layer. They are dead if their bound is at most `edge`, the end of the zero region."""

    layer: str
    units: tuple[Unit, ...]
    activation: str = ""
    edge: float = 0.0

    def count(self, status: Status) -> int:
        """How many units have this status."""
        return sum(unit.status == status for unit in self.units)

    @property
    def reasons(self) -> dict[str, int]:
        """Reasons of pinned units, with how many they hold."""
        found: dict[str, int] = {}
        for unit in self.units:
            if unit.status == "pinned":
                found[unit.reason] = found.get(unit.reason, 0) + 1
        return found


def needed(edge: float) -> str:
    """What a bound must be, in words. Some zero regions end just below 0, which no format shows.

    >>> needed(0.0), needed(-3.0), needed(-5e-324)
    ('at most 0', 'at most -3', 'less than 0')
    """
    return f"at most {edge:g}" if edge == 0 or abs(edge) > 1e-300 else "less than 0"


def account(
    structure: Structure,
    certificates: Sequence[Certificates],
    plan: Plan,
    blocked: Mapping[int, str],
    modes: tuple[str, ...],
    origin: Mapping[tuple[str, int], list[int]],
) -> tuple[Account, ...]:
    """One account per layer, in the order of the forward pass; `modes` are those the certificates speak of, `origin`
    the indices that units along a tensor's axis had before any cut, where they are others now."""
    accounts: dict[tuple[str, int, int], Account] = {}
    by_graph = {number: found[0] for number, found in group_certificates(structure, certificates).items()}
    fixed = {item.weight: item for item in structure.fixed}
    reasons = {**plan.held, **blocked, **structure.pins}
    for key, uses in structure.uses.items():
        loose = (use for use in uses if use.weight not in fixed or not bool((use.labels == FIXED).all()))
        if (layer := next(loose, None)) is not None:
            accounts[key] = _account(structure, by_graph, plan, reasons, layer, uses, modes, origin)
    told = {weight for weight, _, _ in accounts}
    return (*_merged(accounts.values()), *(_whole(item) for item in fixed.values() if item.weight not in told))


def _whole(item: Fixed) -> Account:
    """All units of a layer that cannot be taken apart."""
    return Account(item.name, tuple(Unit(item.name, k, "pinned", reason=item.reason) for k in range(item.units)))


def _merged(accounts: Iterable[Account]) -> tuple[Account, ...]:
    """One account per layer, also where several sums use parts of one weight."""
    found: dict[str, Account] = {}
    for item in accounts:
        units = (*found[item.layer].units, *item.units) if item.layer in found else item.units
        found[item.layer] = replace(item, units=tuple(sorted(units, key=lambda unit: unit.index)))
    return tuple(found.values())


def _account(
    structure: Structure,
    by_graph: Mapping[int, Certificates],
    plan: Plan,
    reasons: Mapping[int, str],
    layer: Layer,
    uses: list[Layer],
    modes: tuple[str, ...],
    origin: Mapping[tuple[str, int], list[int]],
) -> Account:
    owners = structure.representative[layer.labels]
    bound: Tensor | None = None
    margin: Tensor | None = None
    names: list[str] = []
    without: list[str] = []
    edges: list[float] = []
    for item in uses:
        certificates = by_graph.get(item.graph)
        met = reach(structure, item)
        without += met.without
        if certificates is None:
            continue
        for activation in met.zero:
            node = certificates.graph.by_name[activation]
            names.append(node.op.split(".")[1])
            edges.append(ZERO_REGION[node.op](node) or 0.0)
            source = node.args[0].name
            here = _per_unit(structure, item.graph, source, certificates.upper(source), item.labels)
            bound = here if bound is None else torch.maximum(bound, here)
        if item.node in certificates.margins:
            here = _per_unit(structure, item.graph, item.node, certificates.margins[item.node], item.labels)
            margin = here if margin is None else torch.maximum(margin, here)
    evidence = next(iter(by_graph.values())).evidence
    tops, slacks = (_finite(numbers, len(owners)) for numbers in (bound, margin))
    gone, kinds = plan.removed[owners].tolist(), plan.kinds[owners].tolist()
    missing = f"{without[0]} has no zero region" if without else "no activation with a zero region follows"
    edge = min(edges, default=0.0)
    units, first = [], origin.get((layer.weight, layer.axis))
    for k, (label, place) in enumerate(zip(owners.tolist(), layer.places.tolist(), strict=True)):
        index, top = place if first is None else first[place], tops[k]
        if gone[k]:
            kind = KINDS[kinds[k]]
            limit = None if kind == "unread" else top
            certificate = Certificate(layer.name, index, kind, evidence, modes, limit, slacks[k], layer.where)
            units.append(Unit(layer.name, index, "removed", top, "", certificate))
            continue
        reason = reasons.get(label)
        if reason is None and bound is None:
            reason = missing
        if reason is None and top is not None and top <= edge:
            reason = _HELD[bool(structure.joined[label])]
        units.append(Unit(layer.name, index, "pinned" if reason else "alive", top, reason or ""))
    return Account(layer.name, tuple(units), names[0] if names else "", edge)


def _finite(numbers: Tensor | None, count: int) -> Sequence[float | None]:
    """Those of each unit, None where there is none or it is infinite."""
    if numbers is None:
        return [None] * count
    found: list[float] = numbers.tolist()
    return found if bool(numbers.isfinite().all()) else [number if isfinite(number) else None for number in found]


def _per_unit(structure: Structure, graph: int, value: str, compact: Tensor, labels: Tensor) -> Tensor:
    """The maximum of a compact tensor over each unit's own elements, or where a value does not carry the unit's own
    label, over those of all units it is joined with; −∞ where there are none. An only unit has all of them."""
    if len(labels) == 1:
        return compact.double().amax().reshape(1)
    rep = structure.representative
    own = torch.full((len(rep),), -float("inf"), dtype=torch.float64)
    joined = own.clone()
    outcome = structure.values[graph].get(value, ())
    factors: Factors = outcome[0] if isinstance(outcome, list) else outcome
    for factor in factors:
        if factor.dim() < compact.dim():
            continue
        lifted = compact.double().reshape((1,) * (factor.dim() - compact.dim()) + tuple(compact.shape))
        axes = [d for d in range(factor.dim()) if factor.size(d) == 1 and lifted.size(d) > 1]
        reduced = lifted.amax(axes, keepdim=True) if axes else lifted
        places, values = torch.broadcast_tensors(factor, reduced)
        own.scatter_reduce_(0, places.reshape(-1), values.reshape(-1), "amax")
        joined.scatter_reduce_(0, rep[places].reshape(-1), values.reshape(-1), "amax")
    return torch.where(own[labels] > -float("inf"), own[labels], joined[rep[labels]])
