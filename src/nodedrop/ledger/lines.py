"""The lines of a ledger, and the hashes that chain them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from hashlib import sha256
from math import inf, isfinite
from typing import Any

import torch
from torch import Tensor

from ..bounds import Interval
from ..bounds.rounding import unit_roundoff
from ..planning import Cut
from ..planning.plan import KINDS
from ..planning.walk import Layer
from ..proof import Certificate
from ..tracing import Node
from .record import CutRecord, Declared

FORMAT, VERSION = "nodedrop ledger", 1


def line_hash(line: Mapping[str, Any]) -> str:
    """SHA-256 of a line without its own hash, as JSON with sorted keys.

    >>> line_hash({"a": 1, "hash": "x"}) == line_hash({"a": 1})
    True
    """
    bare = {key: value for key, value in line.items() if key != "hash"}
    return sha256(json.dumps(bare, sort_keys=True, allow_nan=False).encode()).hexdigest()


def fingerprint(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over names, types, shapes and bytes of all tensors, in the order of their names.

    >>> one = fingerprint({"w": torch.zeros(2)})
    >>> one == fingerprint({"w": torch.zeros(2)}), one == fingerprint({"w": torch.zeros(2, 1)})
    (True, False)
    """
    total = sha256()
    for name, tensor in sorted(tensors.items()):
        value = tensor.detach().cpu().contiguous()
        shape = ",".join(map(str, value.shape))
        total.update(f"{name} {str(value.dtype)[6:]} {shape}\n".encode())
        total.update(value.reshape(-1).view(torch.uint8).numpy().data if value.numel() else b"")
    return total.hexdigest()


def header(declared: Declared, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """The first line: what the proofs rest on, and what the model is before any cut."""
    inputs = [_input(name, node, box) for name, (node, box) in declared.inputs.items()]
    types = {t.dtype for t in tensors.values()} | ({declared.dtype} if declared.dtype is not None else set())
    rounding = {str(dtype)[6:]: unit_roundoff(dtype) for dtype in sorted(types, key=str) if unit_roundoff(dtype)}
    lowest = None if declared.dtype is None else str(declared.dtype)[6:]
    return {
        "line": "header", "format": FORMAT, "version": VERSION, "model": declared.module,
        "fingerprint": fingerprint(tensors), "inputs": inputs,
        "outputs": [list(shape) for shape in declared.outputs], "modes": list(declared.modes),
        "evidence": declared.evidence, "batch_size": declared.batch_size,
        "arithmetic": {"lowest": lowest, "unit_roundoff": rounding},
        "tensors": {n: {"shape": list(t.shape), "dtype": str(t.dtype)[6:]} for n, t in tensors.items()},
    }  # fmt: skip


def cut_line(record: CutRecord) -> dict[str, Any]:
    """What a cut does to the tensors."""
    plan = record.plan
    return {
        "line": "cut", "difference": record.difference, "tensors": [_tensor(cut, record) for cut in plan.cuts],
        "groups": dict(plan.groups), "folded": sorted(fold.bias for fold in plan.foldings),
        "before": fingerprint(record.before), "after": fingerprint(record.after), "witness": None,
    }  # fmt: skip


def _input(name: str, node: Node, box: Interval) -> dict[str, Any]:
    ends = [_end(box.lo), _end(box.hi)]
    return {"name": name, "shape": list(node.shape), "dtype": str(node.dtype)[6:], "lo": ends[0], "hi": ends[1]}


def _end(values: Tensor) -> Any:
    """One number, or nested lists that broadcast against the input; null where there is no bound."""
    return _finite(float(values) if values.numel() == 1 else values.tolist())


def _finite(value: Any) -> Any:
    if isinstance(value, list):
        return [_finite(part) for part in value]
    return value if isfinite(value) else None


def gone(cut: Cut) -> list[int]:
    """Indices along the cut axis that go; of a cut in blocks, block · size + index."""
    if cut.keep.dim() == 1:
        return sorted(set(range(cut.size)) - set(cut.keep.tolist()))
    rows = cut.rows.tolist() if cut.rows is not None else list(range(len(cut.keep)))
    kept = {row * cut.size + k for row, line in zip(rows, cut.keep.tolist(), strict=True) for k in line}
    return sorted(set(range(cut.blocks * cut.size)) - kept)


def _tensor(cut: Cut, record: CutRecord) -> dict[str, Any]:
    lost, origin = gone(cut), record.origin.get((cut.tensor, cut.axis))
    original = lost if origin is None else [origin[k] for k in lost]
    return {
        "tensor": cut.tensor, "axis": cut.axis, "size": cut.size, "blocks": cut.blocks if cut.keep.dim() > 1 else 1,
        "removed": lost, "original": original,
    }  # fmt: skip


def unit_lines(record: CutRecord, bounds: Mapping[tuple[str, int], float] | None) -> Iterator[dict[str, Any]]:
    """A line for every unit that goes, and for elements that go without belonging to a unit.

    `bounds`, by layer and present index, are stated in place of the certificates' own.
    """
    structure, removed = record.structure, record.plan.removed
    tied: dict[int, dict[str, list[int]]] = {}
    for slot in structure.slots:
        owners = structure.representative[slot.labels].reshape(-1)
        for index in removed[owners].nonzero().reshape(-1).tolist():
            tied.setdefault(int(owners[index]), {}).setdefault(f"{slot.tensor}:{slot.axis}", []).append(index)
    layers: dict[tuple[str, int], tuple[Layer, int, int]] = {}
    for layer in structure.layers:
        origin = record.origin.get((layer.weight, layer.axis), [])
        for label, place in zip(structure.representative[layer.labels].tolist(), layer.places.tolist(), strict=True):
            first = origin[place] if place < len(origin) else place
            layers.setdefault((layer.name, first), (layer, place, label))
    told: set[int] = set()
    for certificate in record.analysis.removable:
        layer, place, label = layers[certificate.layer, certificate.index]
        told.add(label)
        if bounds is not None and certificate.bound is not None:
            bound = bounds.get((certificate.layer, place), inf)
            certificate = replace(certificate, bound=bound if isfinite(bound) else None)
        own = [key.rpartition(":") for key, places in tied.get(label, {}).items() if place in places]
        axes = [int(axis) for tensor, _, axis in own if tensor == layer.weight]
        axis = layer.axis if layer.axis in axes or not axes else axes[0]  # units of groups lie in blocks of another
        yield _unit(certificate, layer.weight, axis, place, tied.get(label, {}))
    evidence, modes = record.analysis.evidence, record.analysis.modes
    for label in sorted(set(tied) - told):
        key, (index, *_) = next(iter(sorted(tied[label].items())))
        tensor, _, along = key.rpartition(":")
        origin = record.origin.get((tensor, int(along)), [])
        why = KINDS[int(record.plan.kinds[label])]
        first = origin[index] if origin else index
        bare = Certificate(tensor, first, why, evidence, modes, None, None, "")  # type: ignore[arg-type]
        yield _unit(bare, tensor, int(along), index, tied[label])


def _unit(
    certificate: Certificate, weight: str, axis: int, place: int, tied: Mapping[str, list[int]]
) -> dict[str, Any]:
    return {
        "layer": certificate.layer, "weight": weight, "axis": axis, "index": certificate.index, "at": place,
        "kind": certificate.kind, "evidence": certificate.evidence, "modes": list(certificate.modes),
        "bound": certificate.bound, "margin": certificate.margin, "with": dict(tied),
    }  # fmt: skip
