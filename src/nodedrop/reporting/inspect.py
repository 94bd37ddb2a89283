"""What is known about every unit of a network, layer by layer: one finding each, with the reason if it is open."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..analysis import Analysis
from ..planning import Account, Unit, needed

# In the order of the table; what a unit is comes before what is not known about it.
VERDICTS = {
    "dead": "is zero for every input of the domain",
    "constant": "has one value for every input of the domain",
    "unread": "is read by nobody",
    "fires": "was seen to fire",
    "silent": "never fired on the samples, without a proof that it cannot",
    "undecided": "may fire or not: its bound does not tell",
    "pinned": "cannot go, whether it fires or not",
}
DECADES = (-100.0, -10.0, -1.0, -0.1, 0.0, 0.1, 1.0, 10.0, 100.0, 1e3, 1e4)


@dataclass(frozen=True)
class Finding:
    """One unit. `bound` is the largest value that can enter its activation, `seen` the largest that did."""

    index: int
    verdict: str
    bound: float | None
    seen: float | None
    reason: str


@dataclass(frozen=True)
class Layer:
    """The units of one layer; those whose activation gets at most `edge` are dead."""

    name: str
    activation: str
    edge: float
    findings: tuple[Finding, ...]

    def count(self, verdict: str) -> int:
        """How many units have a verdict."""
        return sum(finding.verdict == verdict for finding in self.findings)

    @property
    def bounds(self) -> list[float]:
        """Bounds relative to the edge, of the units that have one."""
        return [finding.bound - self.edge for finding in self.findings if finding.bound is not None]


def inspection(proved: Analysis, observed: Analysis | None = None, samples: int = 0) -> tuple[Layer, ...]:
    """A finding for every unit, from what is proved and, if samples were given, from what was seen on them."""
    seen = {(unit.layer, unit.index): unit.bound for unit in observed.units} if observed is not None else {}
    layers = []
    for account in proved.accounts:
        findings = (_finding(unit, account, seen.get((unit.layer, unit.index)), samples) for unit in account.units)
        layers.append(Layer(account.layer, account.activation, account.edge, tuple(findings)))
    return tuple(layers)


def _finding(unit: Unit, account: Account, seen: float | None, samples: int) -> Finding:
    if unit.certificate is not None:
        return Finding(unit.index, unit.certificate.kind, unit.bound, seen, "")
    reason = unit.reason
    if unit.status == "alive":
        top = "no finite upper bound" if unit.bound is None else f"an upper bound of {unit.bound:.4g}"
        reason = f"{top}, and {needed(account.edge)} is needed"
    if not account.activation or seen is None:
        return Finding(unit.index, "pinned" if unit.status == "pinned" else "undecided", unit.bound, seen, reason)
    proved = unit.bound is not None and unit.bound <= account.edge  # dead, but something keeps it
    if seen <= account.edge and not proved:
        reason = f"at most {seen:.4g} on {samples:,} samples; {reason}"
        return Finding(unit.index, "silent", unit.bound, seen, reason)
    if unit.status == "pinned":
        return Finding(unit.index, "pinned", unit.bound, seen, reason)
    return Finding(unit.index, "fires", unit.bound, seen, "")


def histogram(bounds: Iterable[float]) -> list[tuple[float | None, float | None, int]]:
    """How many bounds lie above `lo` and up to `hi`, decade by decade; None is no end. Zero parts dead from alive.

    >>> histogram([-0.5, 0.0, 0.02, 3.0])
    [(-1.0, -0.1, 1), (-0.1, 0.0, 1), (0.0, 0.1, 1), (0.1, 1.0, 0), (1.0, 10.0, 1)]
    """
    counts = Counter(bisect_left(DECADES, bound) for bound in bounds)
    ends = (None, *DECADES, None)
    used = range(min(counts), max(counts) + 1) if counts else ()
    return [(ends[k], ends[k + 1], counts[k]) for k in used]


def reasons(layer: Layer) -> dict[str, int]:
    """Why units are not decided or cannot go, with how many; bounds are summed up by the lowest one."""
    found: dict[str, int] = {}
    for verdict in ("silent", "undecided"):
        these = [finding for finding in layer.findings if finding.verdict == verdict]
        finite = [finding.bound for finding in these if finding.bound is not None]
        if finite:
            found[f"{verdict}: upper bounds from {min(finite):.3g} on, {needed(layer.edge)} is needed"] = len(finite)
        if len(finite) < len(these):
            found[f"{verdict}: no finite upper bound"] = len(these) - len(finite)
    pins = Counter(finding.reason for finding in layer.findings if finding.verdict == "pinned")
    return found | {f"pinned: {reason}": count for reason, count in pins.most_common()}


def to_json(layers: Sequence[Layer], analysis: Analysis, samples: int) -> dict[str, Any]:
    """Plain data."""
    return {
        "modes": list(analysis.modes),
        "samples": samples,
        "units": sum(len(layer.findings) for layer in layers),
        "verdicts": {name: sum(layer.count(name) for layer in layers) for name in VERDICTS},
        "notes": list(analysis.notes),
        "histogram": _bins(bound for layer in layers for bound in layer.bounds),
        "layers": [
            {
                "layer": layer.name,
                "activation": layer.activation,
                "edge": layer.edge,
                "verdicts": {name: layer.count(name) for name in VERDICTS},
                "histogram": _bins(layer.bounds),
                "units": [asdict(finding) for finding in layer.findings],
            }
            for layer in layers
        ],
    }


def _bins(bounds: Iterable[float]) -> list[dict[str, Any]]:
    return [{"above": lo, "up_to": hi, "units": count} for lo, hi, count in histogram(bounds)]
