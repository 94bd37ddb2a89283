"""Zeros that weights have only for the moment: training goes on from them, so they are no bounds of 0.

A layer that starts from 0, a norm with a scale of 0, a branch that is scaled by 0: nothing comes out of them, and their
weights have gradients. An activation's flat region ends those, a weight of 0 does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from ..tracing.graph import BUFFER, CONSTANT, PARAMETER, Graph
from .interval import Interval

TINY = float(torch.finfo(torch.float64).tiny)


def learned(graph: Graph, tensors: Mapping[str, Tensor | Interval]) -> frozenset[str]:
    """Parameters that take gradients, and what is computed from parameters alone."""
    found, fixed = set[str](), set[str]()
    for node in graph.nodes:
        if node.op == PARAMETER:
            tensor = tensors[node.target]
            (found if isinstance(tensor, Tensor) and tensor.requires_grad else fixed).add(node.name)
        elif node.op in (BUFFER, CONSTANT):
            fixed.add(node.name)
        elif node.inputs and all(name in found or name in fixed for name in node.inputs):
            (fixed if found.isdisjoint(node.inputs) else found).add(node.name)
    return frozenset(found)


def stirred(value: Interval) -> Interval:
    """The interval of what reads a learned value: 0 becomes the least that is not quite 0."""
    still = (value.lo == 0) & (value.hi == 0)
    if value.exact or not bool(still.any()):
        return value
    return replace(value, lo=torch.where(still, -TINY, value.lo), hi=torch.where(still, TINY, value.hi))
