"""Pooling, reductions and normalisations: axes they work along are read or pinned, the others pass."""

from __future__ import annotations

from ...tracing.graph import Node, Ref
from ..labels import Factor, Factors, support, touching, vector
from ..walk import Outcome, Read, Side, Walk, label_rule


def _axes(axes: object, rank: int) -> set[int]:
    if axes is None or axes == () or axes == []:
        return set(range(rank))
    return {int(d) % rank for d in (axes if isinstance(axes, list | tuple) else (axes,))}


def _without(factor: Factor, axes: set[int], rank: int) -> Factor:
    """A factor that does not touch the reduced axes, as a factor of the result."""
    if factor.dim() == rank:
        return factor
    return factor.reshape([n for d, n in enumerate(factor.shape) if d not in axes])


def _rest(walk: Walk, node: Node, axes: set[int], why: str) -> Factors:
    """Pin what touches some axes; what does not passes."""
    factors = walk(node.args[0])
    walk.pin(node, touching(factors, axes), why)
    rank = len(node.shape)
    return tuple(_without(f, axes, rank) for f in factors if not axes & set(support(f)))


@label_rule("aten.sum.dim_IntList", "aten.sum.default")
def _sum(walk: Walk, node: Node) -> Outcome:
    """A sum reads units with weights of one: exact without those that are zero."""
    value = node.args[0]
    shape = walk.shape(value)
    axes = _axes(node.arg(1, "dim") if "default" not in node.op else None, len(shape))
    rank, passed = len(node.shape), []
    for factor in walk(value):
        touched = axes & set(support(factor))
        if not touched:
            passed.append(_without(factor, axes, rank))
        elif len(support(factor)) == 1:
            side = Side(value.name, support(factor))
            walk.reads.append(Read(walk.index, node.name, vector(factor), (side, side)))
        else:
            walk.pin(node, (factor,), "units lie along several axes")
    return tuple(passed)


@label_rule("aten.mean.dim", "aten.mean.default", "aten.amax.default", "aten.amin.default", "aten.max.dim",
            "aten.min.dim", "aten.max.default", "aten.min.default", "aten.argmax.default", "aten.any.dim",
            "aten.any.default", "aten.any.dims", "aten.all.dim", "aten.all.default")
def _reduce(walk: Walk, node: Node) -> Outcome:
    shape = walk.shape(node.args[0])
    axes = _axes(None if ".default" in node.op and "am" not in node.op else node.arg(1, "dim"), len(shape))
    passed = _rest(walk, node, axes, "is reduced over, and the result depends on how many there are")
    return [passed] * len(node.shapes) if len(node.shapes) > 1 else passed


@label_rule("aten.softmax.int", "aten._softmax.default", "aten._safe_softmax.default",
            "aten.log_softmax.int", "aten._log_softmax.default",
            "aten.cumsum.default", "aten.argsort.default")
def _softmax(walk: Walk, node: Node) -> Outcome:
    axis = int(node.arg(1, "dim", -1)) % len(node.shape)
    return _rest(walk, node, {axis}, "is normalised over")


@label_rule("aten.triu.default", "aten.tril.default")
def _triangle(walk: Walk, node: Node) -> Outcome:
    rank = len(node.shape)
    return _rest(walk, node, {rank - 2, rank - 1}, "is masked by position")


@label_rule(
    "aten.max_pool1d.default", "aten.max_pool2d.default", "aten.max_pool3d.default",
    "aten.adaptive_max_pool1d.default", "aten.adaptive_max_pool2d.default", "aten.adaptive_max_pool3d.default",
    "aten.max_pool2d_with_indices.default", "aten.max_pool3d_with_indices.default",
    "aten.avg_pool1d.default", "aten.avg_pool2d.default", "aten.avg_pool3d.default",
    "aten.adaptive_avg_pool1d.default", "aten.adaptive_avg_pool2d.default", "aten.adaptive_avg_pool3d.default",
    "aten._adaptive_avg_pool2d.default", "aten.reflection_pad1d.default", "aten.reflection_pad2d.default",
    "aten.replication_pad1d.default", "aten.replication_pad2d.default", "aten.replication_pad3d.default",
    "aten.upsample_nearest1d.vec", "aten.upsample_nearest2d.vec", "aten.upsample_nearest3d.vec",
    "aten.upsample_nearest1d.default", "aten.upsample_nearest2d.default", "aten._upsample_nearest_exact2d.vec",
    "aten.upsample_bilinear2d.vec", "aten.upsample_linear1d.vec", "aten.upsample_trilinear3d.vec",
    "aten.upsample_bilinear2d.default", "aten.upsample_bicubic2d.vec",
)  # fmt: skip
def _windowed(walk: Walk, node: Node) -> Outcome:
    digits = [int(c) for c in node.op if c.isdigit()]
    rank = len(node.shape)
    passed = _rest(walk, node, set(range(rank - digits[0], rank)), "is pooled over")
    return [passed] * len(node.shapes) if len(node.shapes) > 1 else passed


@label_rule("aten.batch_norm.default", "aten._native_batch_norm_legit_no_training.default",
            "aten._native_batch_norm_legit_functional.default",
            "aten._native_batch_norm_legit.default", "aten._native_batch_norm_legit.no_stats",
            "aten.native_batch_norm.default", "aten.instance_norm.default")
def _per_unit_norm(walk: Walk, node: Node) -> Outcome:
    """Every unit is normalised by itself; its parameters and statistics go with it."""
    rank = len(node.shape)
    last = 3 if node.op.endswith("no_stats") else 5
    factors = _rest(walk, node, {0, *range(2, rank)}, "is normalised over")
    operands = [(factors, node.shape)]
    for ref in node.args[1:last]:
        if isinstance(ref, Ref):
            shape = walk.shape(ref)
            lifted = tuple(f.reshape([-1 if d == 1 else 1 for d in range(rank)]) for f in walk(ref))
            operands.append((lifted, tuple(shape[0] if d == 1 else 1 for d in range(rank))))
    result = walk.align(node, operands, node.shape)
    if len(operands) == 1 and node.module:
        walk.sized += [(walk.graph.part + node.module, vector(f)) for f in touching(result, (1,))]
    if len(node.shapes) == 1:
        return result
    units = tuple(vector(f) for f in touching(result, (1,)))
    several: list[Factors] = [result]
    for statistic in node.shapes[1:]:
        several.append(units if statistic == (node.shape[1],) else ())
    return several


@label_rule("aten.layer_norm.default", "aten.native_layer_norm.default", "aten.rms_norm.default",
            "aten._fused_rms_norm.default")
def _layer_norm(walk: Walk, node: Node) -> Outcome:
    rank, normalised = len(node.shape), len(node.args[1])
    for ref in node.args[2:4]:
        walk.pin(node, walk(ref), "counts in the statistics of a layer norm")
    axes = set(range(rank - normalised, rank))
    passed = _rest(walk, node, axes, "counts in the statistics of a layer norm")
    return [passed] * len(node.shapes) if len(node.shapes) > 1 else passed


@label_rule("aten.group_norm.default", "aten.native_group_norm.default")
def _group_norm(walk: Walk, node: Node) -> Outcome:
    rank = len(node.shape)
    refs = node.args[2:4] if node.op == "aten.group_norm.default" else node.args[1:3]
    for ref in refs:
        walk.pin(node, walk(ref), "counts in the statistics of a group norm")
    passed = _rest(walk, node, set(range(1, rank)), "counts in the statistics of a group norm")
    return [passed] * len(node.shapes) if len(node.shapes) > 1 else passed
