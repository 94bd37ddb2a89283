"""The activations that a layer's units meet first, and whether batch norms are on the way."""

from __future__ import annotations

from dataclasses import dataclass

from ..tracing.graph import GETITEM, Program
from .rules.elementwise import NO_ZERO_REGION, ZERO_REGION
from .walk import Layer, Outcome, Structure

BATCH_NORMS = frozenset(
    {
        "aten.batch_norm.default",
        "aten._native_batch_norm_legit_no_training.default",
        "aten._native_batch_norm_legit_functional.default",
        "aten._native_batch_norm_legit.default",
        "aten._native_batch_norm_legit.no_stats",
        "aten.native_batch_norm.default",
    }
)


@dataclass(frozen=True)
class Reach:
    """Activations with a zero region, and names of those without one."""

    zero: tuple[str, ...]
    without: tuple[str, ...]


def normalises_batches(program: Program) -> bool:
    """Whether there is a batch norm, whose bounds in train mode depend on the batch."""
    return any(node.op in BATCH_NORMS for graph in program.in_mode("train") for node in graph.nodes)


def reach(structure: Structure, layer: Layer) -> Reach:
    """Follow a layer's output through operators that keep its units, up to the first activations."""
    graph, values = structure.program.graphs[layer.graph], structure.values[layer.graph]
    reading = structure.reading[layer.graph]
    zero: list[str] = []
    without: list[str] = []
    frontier, seen = [layer.node], {layer.node}
    while frontier:
        for name in graph.readers.get(frontier.pop(), ()):
            node = graph.by_name[name]
            if name in seen or name in reading:
                continue
            seen.add(name)
            if node.op in ZERO_REGION and ZERO_REGION[node.op](node) is not None:
                zero.append(name)
            elif node.op in NO_ZERO_REGION:
                without.append(NO_ZERO_REGION[node.op])
            elif _labelled(values.get(name, ())) or node.op == GETITEM:
                frontier.append(name)
    return Reach(tuple(zero), tuple(without))


def _labelled(outcome: Outcome) -> bool:
    return any(outcome) if isinstance(outcome, list) else bool(outcome)
