"""What the analysis found and what a compaction did, as values that print and serialise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from .planning import Account, Unit, needed
from .proof import Certificate


@dataclass(frozen=True)
class Analysis:
    """Every unit of a model accounted for; nothing was changed."""

    accounts: tuple[Account, ...]
    evidence: str
    modes: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def units(self) -> tuple[Unit, ...]:
        """All units, layer by layer."""
        return tuple(unit for account in self.accounts for unit in account.units)

    @property
    def removable(self) -> tuple[Certificate, ...]:
        """Certificates of the units that can go."""
        return tuple(unit.certificate for unit in self.units if unit.certificate is not None)

    def count(self, status: str) -> int:
        """How many units have a status: removed, alive or pinned."""
        return sum(unit.status == status for unit in self.units)

    def to_json(self) -> dict[str, Any]:
        """Plain data for a JSON file."""
        return {
            "evidence": self.evidence,
            "modes": list(self.modes),
            "notes": list(self.notes),
            "layers": [_layer_json(account) for account in self.accounts],
        }

    def __str__(self) -> str:
        removable = self.count("removed")
        head = f"{removable} of {len(self.units)} units can go ({self.evidence}, {' and '.join(self.modes)} mode)"
        return "\n".join([head, layer_table(self.accounts, "can go"), *why_nothing(self), *self.notes])


@dataclass(frozen=True)
class Ledger:
    """What `compact_` removed, with a certificate for every unit."""

    analysis: Analysis
    parameters_before: int
    parameters_after: int
    difference: float

    @property
    def removed(self) -> tuple[Certificate, ...]:
        """Certificates of the removed units, with their indices before the cut."""
        return self.analysis.removable

    @property
    def units(self) -> tuple[Unit, ...]:
        """All units of the model as it was."""
        return self.analysis.units

    def to_json(self) -> dict[str, Any]:
        """Plain data for a JSON file."""
        return {
            "parameters_before": self.parameters_before,
            "parameters_after": self.parameters_after,
            "difference": self.difference,
            "removed": [certificate.to_json() for certificate in self.removed],
            "analysis": self.analysis.to_json(),
        }

    def __str__(self) -> str:
        factor = self.parameters_before / max(self.parameters_after, 1)
        head = (
            f"{len(self.removed)} of {len(self.units)} units removed ({self.analysis.evidence}, "
            f"{' and '.join(self.analysis.modes)} mode)\n"
            f"{self.parameters_before:,} → {self.parameters_after:,} parameters ({factor:.2f}× smaller), "
            f"largest relative change of an output on the example: {self.difference:.1e}"
        )
        notes = (*why_nothing(self.analysis), *self.analysis.notes)
        return "\n".join([head, layer_table(self.analysis.accounts, "removed"), *notes])


def why_nothing(analysis: Analysis) -> list[str]:
    """An analysis that can remove nothing says why, layer by layer."""
    if analysis.count("removed"):
        return []
    lines = ["nothing can go:"] if analysis.accounts else ["nothing can go: the model has no layer made of units"]
    for account in analysis.accounts:
        alive = [unit.bound for unit in account.units if unit.status == "alive"]
        finite = [bound for bound in alive if bound is not None]
        parts = [f"{count} pinned: {reason}" for reason, count in account.reasons.items()]
        if alive:
            nearest = "their bound is infinite"
            if finite:
                nearest = f"the nearest has an upper bound of {min(finite):.3g}, which must be {needed(account.edge)}"
            parts.append(f"{len(alive)} can still fire, {nearest}")
        lines.append(f"  {account.layer}: {'; '.join(parts)}")
    return lines


def layer_table(accounts: Iterable[Account], verb: str) -> str:
    """One line per layer: units, how many go, live and are pinned, and the main reason."""
    rows: list[tuple[str, ...]] = [("layer", "units", verb, "alive", "pinned", "kind", "why pinned")]
    for account in accounts:
        kinds = Counter(unit.certificate.kind for unit in account.units if unit.certificate is not None)
        reason = max(account.reasons, key=account.reasons.__getitem__, default="")
        counts = (len(account.units), account.count("removed"), account.count("alive"), account.count("pinned"))
        rows.append((account.layer, *map(str, counts), " ".join(kinds), reason))
    totals = [sum(int(row[k]) for row in rows[1:]) for k in range(1, 5)]
    rows.append(("all", *map(str, totals), "", ""))
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    lines = []
    for row in rows:
        numbers = [row[k].rjust(widths[k]) for k in range(1, 5)]
        lines.append("  ".join([row[0].ljust(widths[0]), *numbers, row[5].ljust(widths[5]), row[6]]).rstrip())
    return "\n".join(lines)


def _layer_json(account: Account) -> dict[str, Any]:
    return {
        "layer": account.layer,
        "activation": account.activation,
        "units": [
            {
                "index": unit.index,
                "status": unit.status,
                "bound": unit.bound,
                "reason": unit.reason,
                "kind": unit.certificate.kind if unit.certificate else None,
            }
            for unit in account.units
        ],
    }
