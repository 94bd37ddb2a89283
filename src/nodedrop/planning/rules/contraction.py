"""Weighted sums make units and read them."""

from __future__ import annotations

import string

import torch
from torch import Tensor

from ...tracing.compact import names_of
from ...tracing.graph import Node, Ref
from ..labels import Factor, Factors, Whole, support, touching, vector
from ..walk import Outcome, Read, Side, Walk, label_rule
from .layers import add_layer, note_fold, parameters_of, spread, with_bias


class _Operand:
    """One side of a sum of products, its axes named by letters."""

    def __init__(self, walk: Walk, ref: Ref, letters: str) -> None:
        self.ref, self.letters = ref, letters
        self.sizes = dict(zip(letters, walk.shape(ref), strict=True))
        self.factors = {self.names(f): f for f in walk(ref)}

    def names(self, factor: Factor) -> str:
        return "".join(self.letters[d] for d in support(factor))

    def matrix(self, names: str) -> Tensor:
        """The labels of a factor as a tensor with one axis per letter."""
        return self.factors[names].reshape([self.sizes[c] for c in names])

    def axes(self, names: str) -> tuple[int, ...]:
        return tuple(self.letters.index(c) for c in names)


def _contract(
    walk: Walk, node: Node, first: tuple[Ref, str], second: tuple[Ref, str], out: str
) -> tuple[dict[str, Tensor], list[str]]:
    """Labels of a sum of products. Returns the label tensor per group of output letters, and the letters summed.

    A factor along a summed letter must meet its like on the other side; along a letter that both sides keep, heads
    of one side meet rows of the other.
    """
    sides = _Operand(walk, *first), _Operand(walk, *second)
    found: dict[str, Tensor] = {}
    summed: list[str] = []
    for mine, other in (sides, sides[::-1]):
        for names, factor in mine.factors.items():
            gone = [c for c in names if c not in out]
            common = [c for c in names if other.sizes.get(c, 1) > 1]
            partner = next((n for n in other.factors if set(n) & set(common)), None)
            if not gone and not common:
                found[names] = mine.matrix(names)
            elif not gone and len(names) == 2 and common == [names[0]] and partner in (None, names[0]):
                heads = other.matrix(partner) if partner else torch.zeros(mine.sizes[names[0]], dtype=torch.long)
                reason = walk.reason(node, "a head goes as a whole or not at all")
                walk.labels.constraints.append(Whole(heads, mine.matrix(names), reason))
                found[names] = mine.matrix(names)
            elif not gone and partner is not None and len(partner) == 2 and partner[0] == names:
                continue  # heads that met rows of the other side
            elif common == list(names) and partner == names and len(gone) <= 1 and (not gone or names[-1] == gone[0]):
                if mine is sides[0]:
                    _meet(walk, node, sides, names, gone, out, found, summed)
            else:
                walk.pin(node, (factor,), "meets values that cannot be cut")
    return found, summed


def _meet(
    walk: Walk,
    node: Node,
    sides: tuple[_Operand, _Operand],
    names: str,
    gone: list[str],
    out: str,
    found: dict[str, Tensor],
    summed: list[str],
) -> None:
    """Two factors on the same letters: united, and read if the last of the letters is summed over."""
    labels = sides[0].matrix(names)
    walk.labels.unite(labels, sides[1].matrix(names))
    if not gone:
        found[names] = labels
        return
    if len(names) > 2:
        walk.labels.pin((labels,), walk.reason(node, "units lie along several axes"))
        return
    heads = None
    if len(names) == 2:
        heads = walk.labels.heads(labels, walk.reason(node, "a head goes as a whole or not at all"))
        found[names[0]] = heads
    made = []
    for side in sides:
        other = next((n for n in side.factors if len(n) == 1 and n in out and n not in names), None)
        units = None if other is None else vector(side.factors[other])
        made.append(Side(side.ref.name, side.axes(names), units, 0 if other is None else side.axes(other)[0]))
    if parameters_of(walk, sides[0].ref) and not parameters_of(walk, sides[1].ref):
        made.reverse()  # weights on the left
    walk.reads.append(Read(walk.index, node.name, labels, (made[0], made[1]), heads=heads))
    summed.append(gone[0])


def _output(found: dict[str, Tensor], out: str) -> Factors:
    """Label tensors by letters, as factors of the result."""
    factors = []
    for names, labels in found.items():
        order = sorted(range(len(names)), key=lambda k: out.index(names[k]))
        turned = labels.permute(order)
        sizes = iter(turned.shape)
        factors.append(turned.reshape([next(sizes) if c in names else 1 for c in out]))
    return tuple(factors)


@label_rule("aten.linear.default")
def _linear(walk: Walk, node: Node) -> Outcome:
    value, weight, bias = node.args[0], node.args[1], node.arg(2, "bias")
    lead = string.ascii_uppercase[: len(node.shape) - 1]
    found, summed = _contract(walk, node, (value, lead + "i"), (weight, "oi"), lead + "o")
    add_layer(walk, node, weight, found.get("o"), node.shape[-1])
    note_fold(walk, node, summed, weight, bias, axis=1)
    return with_bias(walk, node, _output(found, lead + "o"), bias)


@label_rule("aten.matmul.default", "aten.mm.default", "aten.bmm.default")
def _matmul(walk: Walk, node: Node) -> Outcome:
    return _product(walk, node, node.args[0], node.args[1])


@label_rule("aten.addmm.default", "aten.baddbmm.default")
def _addmm(walk: Walk, node: Node) -> Outcome:
    return with_bias(walk, node, _product(walk, node, node.args[1], node.args[2]), node.args[0])


def _product(walk: Walk, node: Node, first: Ref, second: Ref) -> Factors:
    rank_a, rank_b = len(walk.shape(first)), len(walk.shape(second))
    if rank_a < 2 or rank_b < 2:
        walk.pin(node, walk(first) + walk(second), "is a vector product")
        return ()
    batch = string.ascii_uppercase[: len(node.shape) - 2]
    letters = batch[len(batch) - (rank_a - 2) :] + "ti", batch[len(batch) - (rank_b - 2) :] + "io"
    found, _ = _contract(walk, node, (first, letters[0]), (second, letters[1]), batch + "to")
    if parameters_of(walk, second):
        add_layer(walk, node, second, found.get("o"), node.shape[-1])
    else:
        add_layer(walk, node, first, found.get("t"), node.shape[-2])
    return _output(found, batch + "to")


@label_rule("aten.einsum.default")
def _einsum(walk: Walk, node: Node) -> Outcome:
    equation, refs = str(node.args[0]).replace(" ", ""), [Ref(name) for name in names_of(node.args[1])]
    terms, arrow, out = equation.partition("->")
    letters = terms.split(",")
    repeated = any(len(set(term)) != len(term) for term in letters)
    if "." in equation or not arrow or len(refs) != 2 or repeated:
        for ref in refs:
            walk.pin(node, walk(ref), "is an einsum of another kind")
        return ()
    found, _ = _contract(walk, node, (refs[0], letters[0]), (refs[1], letters[1]), out)
    for ref, own, other in ((refs[1], letters[1], letters[0]), (refs[0], letters[0], letters[1])):
        units = [c for c in own if c in found and c not in other]
        if units and parameters_of(walk, ref):
            add_layer(walk, node, ref, found[units[0]], len(found[units[0]]))
            break
    return _output(found, out)


@label_rule("aten.embedding.default")
def _embedding(walk: Walk, node: Node) -> Outcome:
    table = walk(node.args[0])
    walk.pin(node, touching(table, (0,)), "is a row of a table that is looked up")
    columns = walk.single(node, table, 1)
    add_layer(walk, node, node.args[0], columns, node.shape[-1])
    return () if columns is None else (spread(columns, len(node.shape) - 1, len(node.shape)),)


@label_rule("aten.scaled_dot_product_attention.default")
def _attention(walk: Walk, node: Node) -> Outcome:
    """softmax(q·kᵀ/√d)·v: heads may go; single indices of q and k may not, since the scale depends on their number."""
    query, key, value = node.args[:3]
    mask, rank = node.arg(3, "attn_mask"), len(node.shape)
    same_heads = walk.shape(query)[:-2] == walk.shape(key)[:-2] == walk.shape(value)[:-2]
    if rank < 3 or not same_heads or (isinstance(mask, Ref) and walk(mask)):
        for ref in (query, key, value, mask):
            walk.pin(node, walk(ref), "is part of an attention head")
        return ()
    lead = string.ascii_uppercase[: rank - 2]
    scores, _ = _contract(walk, node, (query, lead + "td"), (key, lead + "sd"), lead + "ts")
    for ref in (query, key):
        for factor in touching(walk(ref), (rank - 1,)):
            rows = factor.reshape(-1, factor.shape[-1])
            walk.labels.unite(rows, rows[:, :1])
            if len(rows) == 1:
                walk.pin(node, (factor,), "counts in the scale of an attention")
    return _mixed(walk, node, value, scores, lead)


def _mixed(walk: Walk, node: Node, value: Ref, scores: dict[str, Tensor], lead: str) -> Factors:
    """The values keep their labels; their heads are those of the scores."""
    sides = _Operand(walk, value, lead + "sv")
    found: dict[str, Tensor] = {}
    for names, factor in sides.factors.items():
        if names == "v":
            found[names] = sides.matrix(names)
        elif len(names) == 2 and names[1] == "v" and names[0] in lead:
            heads = scores.get(names[0], torch.zeros(sides.sizes[names[0]], dtype=torch.long))
            reason = walk.reason(node, "a head goes as a whole or not at all")
            walk.labels.constraints.append(Whole(heads, sides.matrix(names), reason))
            found[names] = sides.matrix(names)
        else:
            walk.pin(node, (factor,), "is part of an attention head")
    return _output(found, lead + "tv")
