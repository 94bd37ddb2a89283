"""Evidence about values, and the certificate that a removed unit leaves behind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from ..bounds import Bounds, Interval
from ..tracing.execute import execute
from ..tracing.graph import Graph

Evidence = Literal["proved", "batch-proved", "observed"]
Kind = Literal["dead", "constant", "unread"]


@dataclass(frozen=True)
class Certificate:
    """Why one unit could go.

    `bound` is the largest value that can enter the unit's activation, rounding margin included (§2.1, §3); it is
    None for a unit that nobody reads.
    """

    layer: str
    index: int
    kind: Kind
    evidence: Evidence
    modes: tuple[str, ...]
    bound: float | None
    margin: float | None
    where: str

    def to_json(self) -> dict[str, Any]:
        """Plain data for a JSON file."""
        return asdict(self)


@dataclass(frozen=True)
class Certificates:
    """What is established about all values of one graph, and by which kind of evidence."""

    graph: Graph
    evidence: Evidence
    intervals: Mapping[str, Interval]
    margins: Mapping[str, Tensor]
    unknown: tuple[str, ...] = ()
    idle: Mapping[str, Tensor] = field(default_factory=dict)

    def zero(self, value: str) -> Tensor:
        """Compact mask of the elements that are exactly zero (of kernels: at all positions)."""
        if value in self.idle:
            return self.idle[value]
        interval = self.intervals[value]
        return interval.lo == 0 if interval.exact else (interval.lo == 0) & (interval.hi == 0)

    def upper(self, value: str) -> Tensor:
        """Compact upper bound."""
        return self.intervals[value].hi


def prove(bounds: Bounds, evidence: Evidence = "proved") -> Certificates:
    """Certificates from bounds: they hold for every input of the domain, in the mode of the graph."""
    intervals = {name: bounds[name] for name in bounds.values}
    return Certificates(bounds.graph, evidence, intervals, bounds.margins, bounds.unknown, bounds.idle)


def observe(
    graph: Graph, tensors: Mapping[str, Tensor], samples: Sequence[Mapping[str, Any]], *, learning: bool = False
) -> Certificates:
    """Certificates of what was seen on samples (inputs by name), and of nothing more.

    While weights are `learning`, those of 0 are tried as a little more, too.
    """
    seen: dict[str, Interval] = {}
    weights = [tensors, {name: _stirred(tensor) for name, tensor in tensors.items()}] if learning else [tensors]
    with torch.no_grad():
        for sample in samples:
            for held in weights:
                for name, value in execute(graph, held, sample).items():
                    if isinstance(value, Tensor) and not value.is_complex():
                        seen[name] = _merged(seen.get(name), value.detach().double().cpu(), graph.by_name[name].op)
    return Certificates(graph, "observed", seen, {})


def _stirred(tensor: Tensor) -> Tensor:
    """What is 0 and learns is not 0 for long."""
    return tensor.detach().masked_fill(tensor == 0, torch.finfo(tensor.dtype).eps) if tensor.requires_grad else tensor


def _merged(before: Interval | None, value: Tensor, op: str) -> Interval:
    if op in ("parameter", "buffer", "constant") or value.dim() == 0:
        return Interval(value, value, tuple(value.shape))
    lo, hi = value.amin(0, keepdim=True), value.amax(0, keepdim=True)
    if before is not None:
        lo, hi = torch.minimum(lo, before.lo), torch.maximum(hi, before.hi)
    return Interval(lo, hi, tuple(value.shape))
