"""Walk a graph once and bound every value: abstract interpretation with intervals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..tracing.graph import BUFFER, CONSTANT, GETITEM, INPUT, PARAMETER, Graph, Node
from . import rules as _rules  # noqa: F401  (registers every rule)
from .conversion import converted
from .domain import boxes
from .interval import INF, Interval, point, unbounded
from .learning import learned, stirred
from .linear import tightened
from .registry import RULES, Context, Result

# Tests set this, so that a rule that fails is an error and not merely an operator without a rule.
STRICT = False


@dataclass(frozen=True)
class Bounds:
    """Intervals of all values of a graph; `unknown` lists nodes whose operator has no rule.

    `idle` marks, for convolution weights as [units, inputs, 1, …], kernels that are zero at every position.
    """

    graph: Graph
    values: Mapping[str, Result]
    margins: Mapping[str, Tensor]
    unknown: tuple[str, ...]
    idle: Mapping[str, Tensor]

    def __getitem__(self, name: str) -> Interval:
        found = self.values[name]
        return found if isinstance(found, Interval) else found[0]


def bound(
    graph: Graph,
    tensors: Mapping[str, Tensor | Interval],
    domain: Any = (0.0, 1.0),
    *,
    batch_limit: float = INF,
    dtype: torch.dtype | None = None,
    memo: dict[Any, Any] | None = None,
    linear: bool = False,
    known: Mapping[str, Result] | None = None,
    learning: bool = False,
) -> Bounds:
    """Bounds of every value for all inputs in the domain.

    Of a tensor, only an interval may be known. `batch_limit` is the largest number of values per unit that batch norm
    ever sees in one training batch; `dtype` the lowest precision the model will run in, if lower than that of its
    parameters (autocast). Calls for graphs of one module in one state may share a `memo`. With `linear`, values that
    activations read are bounded by linear relaxation as well, which costs a pass back through the graph for each of
    their elements. Values that are `known` are taken as they are, and no more is bounded than the outputs need beyond
    them. While weights are `learning`, a value that is 0 only as long as they are has no bound of 0.
    """
    context = Context(graph, tensors, batch_limit, dtype, memo={} if memo is None else memo)
    context.values.update(known or {})
    inputs = boxes(graph, domain)
    unknown: list[str] = []
    taught = learned(graph, tensors) if learning else frozenset()
    with torch.no_grad():
        for node in graph.nodes if known is None else _missing(graph, known):
            found = _bound(context, node, inputs, unknown)
            if not taught.isdisjoint(node.inputs):
                found = stirred(found) if isinstance(found, Interval) else tuple(map(stirred, found))
            context.values[node.name] = found
            if linear and isinstance(found, Interval):
                context.values[node.name] = _tightened(context, node, found)
    return Bounds(graph, context.values, context.margins, tuple(unknown), _idle_weights(context))


def _tightened(context: Context, node: Node, found: Interval) -> Interval:
    try:
        return tightened(context, node, found)
    except Exception:  # a use of an operator that lines did not foresee
        if STRICT:
            raise
        return found


def _missing(graph: Graph, known: Mapping[str, Result]) -> list[Node]:
    """What the outputs need beyond known values, in order."""
    waiting, found = list(graph.outputs), set[str]()
    while waiting:
        name = waiting.pop()
        if name not in found and name not in known:
            found.add(name)
            waiting += graph.by_name[name].inputs
    return [node for node in graph.nodes if node.name in found]


def _bound(context: Context, node: Node, inputs: Mapping[str, Interval], unknown: list[str]) -> Result:
    if node.op == INPUT:
        return inputs.get(node.name, unbounded(node.shape))
    if node.name in context.rewritten:
        return unbounded(node.shape)
    if node.op in (PARAMETER, BUFFER):
        return _leaf(context, context.tensors[node.target], node)
    if node.op == CONSTANT:
        return _leaf(context, context.graph.constants[node.name], node)
    if node.op == GETITEM:
        found = context.values[node.args[0].name]
        return found[node.args[1]] if isinstance(found, tuple) else found
    result = None
    if node.op in RULES and node.name not in context.graph.shapeless:
        try:
            context.node = node
            result = RULES[node.op](context, node)
        except Exception:  # a use of the operator that its rule did not foresee
            if STRICT:
                raise
    if result is None:
        unknown.append(node.name)
        shapes = [shape or () for shape in node.shapes] or [()]  # some return nothing
        return unbounded(shapes[0]) if len(shapes) == 1 else tuple(map(unbounded, shapes))
    if isinstance(result, Interval):
        return _typed(result, node.dtype)
    return tuple(_typed(one, dtype) for one, dtype in zip(result, node.dtypes, strict=True))


def _typed(value: Interval, dtype: torch.dtype | None) -> Interval:
    """Rules compute with real numbers, and round them as floats are."""
    return value if dtype is None or dtype.is_floating_point else converted(value, None, dtype)


def _idle_weights(context: Context) -> dict[str, Tensor]:
    """What the kernels' positive and negative parts tell already, without another look at the weights."""
    found = {}
    for node in context.graph.nodes:
        split = context.memo.get((node.target, 1, False))
        if node.op == PARAMETER and split is not None and node.name not in context.rewritten:
            shape = (*node.shape[:2], *(1,) * (len(node.shape) - 2))
            zero = split[0] == split[1]  # the positive and the negative part
            found[node.name] = (zero if split[2] is None else zero & (split[2] == 0)).reshape(shape)
    return found


def _leaf(context: Context, tensor: Tensor | Interval, node: Node) -> Interval:
    if isinstance(tensor, Interval):
        return tensor
    if tensor.is_complex():
        return unbounded(node.shape)
    return point(tensor.cpu())  # boxes and rules are on the CPU
