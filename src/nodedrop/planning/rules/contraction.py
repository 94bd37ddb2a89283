"""Weighted sums make units and read them."""

from __future__ import annotations

import string
from dataclasses import replace

import torch
from torch import Tensor

from ...tracing.compact import names_of
from ...tracing.graph import INPUT, PARAMETER, Node, Ref
from ..labels import FIXED, Blocks, Factor, Factors, Slot, Whole, support, touching, vector
from ..walk import Fixed, Fold, Layer, Outcome, Read, Side, Walk, label_rule, layer_name


def _spread(factor: Factor, axis: int, rank: int) -> Factor:
    """A single-axis factor as a factor of another value."""
    return vector(factor).reshape([-1 if d == axis else 1 for d in range(rank)])


def _parameter(walk: Walk, ref: Ref) -> Node | None:
    """The parameter that a value is made of, and of no input: rearranged, masked, scaled or normalised."""
    node, seen = walk.node(ref), {ref.name}
    frontier, found = [node], None
    while frontier:
        node = frontier.pop(0)
        if node.op == INPUT:
            return None
        if node.op == PARAMETER and found is None:
            found = node
        frontier += [walk.graph.by_name[name] for name in node.inputs if name not in seen]
        seen.update(node.inputs)
    return found


def _layer(walk: Walk, node: Node, weight: Ref, units: Tensor | None, size: int, axis: int = 0) -> None:
    """Register a layer of `size` units, along `axis` if no axis has their labels. A single one is fixed."""
    owner = _parameter(walk, weight)
    if owner is not None:
        labels = torch.full((size,), FIXED) if units is None else vector(units)
        name, first = layer_name(owner.target), int(labels[0])
        slots = [s for (tensor, _), s in walk.labels.slots.items() if tensor == owner.target and first in s.labels]
        axis, start = (slots[0].axis, int(slots[0].labels.min())) if slots and first != FIXED else (axis, first)
        places = labels - start if first != FIXED else torch.arange(size)
        walk.layers.append(Layer(name, owner.target, axis, places, walk.index, node.name, labels, node.where))


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


def _with_bias(walk: Walk, node: Node, factors: Factors, bias: object, *, axis: int | None = None) -> Factors:
    """The bias goes with the units; a convolution's lies along `axis` instead of the last one."""
    if not isinstance(bias, Ref):
        return factors
    own, shape = walk(bias), walk.shape(bias)
    if axis is not None:
        own = tuple(_spread(f, axis, len(node.shape)) for f in own)
        shape = tuple(shape[0] if d == axis else 1 for d in range(len(node.shape)))
    return walk.align(node, [(factors, node.shape), (own, shape)], node.shape)


@label_rule("aten.linear.default")
def _linear(walk: Walk, node: Node) -> Outcome:
    value, weight, bias = node.args[0], node.args[1], node.arg(2, "bias")
    lead = string.ascii_uppercase[: len(node.shape) - 1]
    found, summed = _contract(walk, node, (value, lead + "i"), (weight, "oi"), lead + "o")
    _layer(walk, node, weight, found.get("o"), node.shape[-1])
    _foldable(walk, node, summed, weight, bias, axis=1)
    return _with_bias(walk, node, _output(found, lead + "o"), bias)


def _foldable(walk: Walk, node: Node, summed: list[str], weight: Ref, bias: object, *, axis: int) -> None:
    """Remember where constants of the read just made could be folded: into a bias parameter of a plain weight."""
    if not summed or not isinstance(bias, Ref):
        return
    weight_node, bias_node = walk.node(weight), walk.node(bias)
    if weight_node.op == PARAMETER and bias_node.op == PARAMETER:
        read = walk.reads[-1]
        fold = Fold(weight_node.target, axis, bias_node.target)
        walk.reads[-1] = replace(read, fold=fold)


@label_rule("aten.matmul.default", "aten.mm.default", "aten.bmm.default")
def _matmul(walk: Walk, node: Node) -> Outcome:
    return _product(walk, node, node.args[0], node.args[1])


@label_rule("aten.addmm.default", "aten.baddbmm.default")
def _addmm(walk: Walk, node: Node) -> Outcome:
    return _with_bias(walk, node, _product(walk, node, node.args[1], node.args[2]), node.args[0])


def _product(walk: Walk, node: Node, first: Ref, second: Ref) -> Factors:
    rank_a, rank_b = len(walk.shape(first)), len(walk.shape(second))
    if rank_a < 2 or rank_b < 2:
        walk.pin(node, walk(first) + walk(second), "is a vector product")
        return ()
    batch = string.ascii_uppercase[: len(node.shape) - 2]
    letters = batch[len(batch) - (rank_a - 2) :] + "ti", batch[len(batch) - (rank_b - 2) :] + "io"
    found, _ = _contract(walk, node, (first, letters[0]), (second, letters[1]), batch + "to")
    if _parameter(walk, second) is not None:
        _layer(walk, node, second, found.get("o"), node.shape[-1])
    else:
        _layer(walk, node, first, found.get("t"), node.shape[-2])
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
        if units and _parameter(walk, ref) is not None:
            _layer(walk, node, ref, found[units[0]], len(found[units[0]]))
            break
    return _output(found, out)


def _groups(node: Node) -> int:
    return int(node.arg(8 if node.op == "aten.convolution.default" else 6, "groups", 1))


@label_rule("aten.conv1d.default", "aten.conv2d.default", "aten.conv3d.default", "aten.convolution.default",
            "aten.conv1d.padding", "aten.conv2d.padding", "aten.conv3d.padding",
            "aten.conv_transpose1d.default", "aten.conv_transpose2d.input", "aten.conv_transpose3d.input")
def _conv(walk: Walk, node: Node) -> Outcome:
    value, weight, bias = node.args[0], node.args[1], node.arg(2, "bias")
    rank = len(node.shape)
    general = node.op == "aten.convolution.default"
    transposed = "transpose" in node.op or (general and bool(node.args[6]))
    if len(walk.shape(weight)) != rank:
        walk.pin(node, walk(value) + walk(weight) + walk(bias), "is a convolution without batch axis")
        return ()
    groups = _groups(node)
    walk.pin(node, touching(walk(weight), range(2, rank)), "is a kernel position")
    walk.pin(node, touching(walk(value), [0, *range(2, rank)]), "is convolved over")
    if groups == 1:
        factors = _dense(walk, node, value, weight, bias, transposed)
    else:
        factors = _grouped(walk, node, value, weight, groups, transposed)
    return _with_bias(walk, node, factors, bias, axis=1)


def _dense(walk: Walk, node: Node, value: Ref, weight: Ref, bias: object, transposed: bool) -> Factors:
    unit_axis, inner_axis = (1, 0) if transposed else (0, 1)
    units = walk.single(node, walk(weight), unit_axis)
    inner = walk.single(node, walk(weight), inner_axis)
    read = walk.single(node, walk(value), 1)
    _layer(walk, node, weight, units, node.shape[1])
    if inner is not None and read is not None:
        walk.labels.unite(vector(read), vector(inner))
        sides = (
            Side(value.name, (1,)),
            Side(weight.name, (inner_axis,), None if units is None else vector(units), unit_axis),
        )
        walk.reads.append(Read(walk.index, node.name, vector(read), sides))
        if not transposed and not _padded(node):
            _foldable(walk, node, ["i"], weight, bias, axis=inner_axis)
    else:
        walk.pin(node, tuple(f for f in (inner, read) if f is not None), "meets values that cannot be cut")
    return () if units is None else (_spread(units, 1, len(node.shape)),)


def _padded(node: Node) -> bool:
    padding = node.arg(4, "padding", 0)
    if isinstance(padding, str):
        return padding != "valid"
    return any(padding) if isinstance(padding, list | tuple) else bool(padding)


def _grouped(walk: Walk, node: Node, value: Ref, weight: Ref, groups: int, transposed: bool) -> Factors:
    """A grouped convolution: its groups must stay equal, and each reads its own inputs through one inner axis."""
    shape, owner = walk.shape(weight), walk.node(weight)
    channels = walk.shape(value)[1]
    inputs, outputs = channels // groups, node.shape[1] // groups
    read = walk.single(node, walk(value), 1)
    outer = walk.single(node, walk(weight), 0)
    if owner.op != PARAMETER or read is None or outer is None:
        _layer(walk, node, weight, None if transposed else outer, node.shape[1])
        walk.pin(node, walk(value) + walk(weight), "is a grouped convolution of values that cannot be cut")
        return ()
    if not transposed:
        _layer(walk, node, weight, outer, node.shape[1])
    if inputs == 1 and (not transposed or shape[1] == 1):
        # depthwise: output c·k … c·k+k−1 is made of input c alone, so they go together
        if transposed:
            _layer(walk, node, weight, outer, node.shape[1])
        walk.labels.unite(vector(outer).reshape(channels, -1), vector(read).reshape(channels, 1))
        walk.regroups[owner.target] = vector(read).reshape(channels, 1)
        return (_spread(outer, 1, len(node.shape)),)
    return _blockwise(walk, node, (value, weight), (vector(read), vector(outer)), (groups, inputs, outputs), transposed)


def _blockwise(
    walk: Walk, node: Node, refs: tuple[Ref, Ref], labels: tuple, sizes: tuple[int, int, int], transposed: bool  # type: ignore[type-arg]
) -> Factors:
    (value, weight), (read, outer), (groups, inputs, outputs) = refs, labels, sizes
    target, rank, inner_size = walk.node(weight).target, len(node.shape), walk.shape(weight)[1]
    walk.pin(node, touching(walk(weight), (1,)), "belongs to every group of a convolution")
    known = walk.labels.slots.get((target, 1))
    before = known.labels if known is not None and known.labels.dim() == 2 else None
    if transposed:
        made = walk.labels.fresh(groups * outputs) if before is None else before.reshape(-1)
        walk.labels.unite(read, outer)
        inner = made.reshape(groups, outputs)
    else:
        made, inner = outer, read.reshape(groups, inputs)
    if before is not None:
        walk.labels.unite(before, inner)
    elif inner_size > 1:
        walk.labels.slots[target, 1] = Slot(target, 1, inner)
    if transposed:
        _layer(walk, node, weight, made, len(made), axis=1)
    matrices = (read.reshape(groups, inputs), made.reshape(groups, outputs))
    reason = walk.reason(node, "every group of a convolution must keep the same number of units")
    walk.labels.constraints.append(Blocks(matrices, True, reason))
    walk.regroups[target] = matrices[0]
    sides = (Side(value.name, (1,)), Side(weight.name, (1,), made, 0, groups, transposed))
    walk.reads.append(Read(walk.index, node.name, read, sides))
    return (made.reshape([-1 if d == 1 else 1 for d in range(rank)]),)


@label_rule("aten.embedding.default")
def _embedding(walk: Walk, node: Node) -> Outcome:
    table = walk(node.args[0])
    walk.pin(node, touching(table, (0,)), "is a row of a table that is looked up")
    columns = walk.single(node, table, 1)
    _layer(walk, node, node.args[0], columns, node.shape[-1])
    return () if columns is None else (_spread(columns, len(node.shape) - 1, len(node.shape)),)


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


GATES = {"aten.lstm.input": 4, "aten.gru.input": 3, "aten.rnn_tanh.input": 1, "aten.rnn_relu.input": 1}


@label_rule(*GATES)
def _recurrent(walk: Walk, node: Node) -> Outcome:
    """The inputs of a recurrent layer are read by the weights of its first layer; its state is pinned."""
    is_lstm = node.op == "aten.lstm.input"
    value, weights = node.args[0], node.args[2]
    layers, bidirectional = int(node.args[4]), bool(node.args[7])
    states = node.args[1] if is_lstm else (node.args[1],)
    for ref in states:
        walk.pin(node, walk(ref), "is a recurrent state")
    directions = 2 if bidirectional else 1
    per_direction = len(weights) // (layers * directions)
    first = {k * per_direction for k in range(directions)}
    rank = len(walk.shape(value))
    read = walk.single(node, walk(value), rank - 1)
    walk.pin(node, touching(walk(value), range(rank - 1)), "is a step of a recurrent layer")
    for position, ref in enumerate(weights):
        own, source = walk(ref), walk.node(ref)
        walk.pin(node, touching(own, (0,)), "is a recurrent state")
        if position % per_direction == 1 and source.op == PARAMETER:  # the weights of a state, row by row of every gate
            name, units = source.target.replace("weight_hh_", ""), source.shape[0] // GATES[node.op]
            walk.fixed.append(Fixed(name, source.target, units, walk.reason(node, "is a recurrent state")))
        inner = walk.single(node, own, 1) if len(walk.shape(ref)) > 1 else None
        if inner is None:
            continue
        if position in first and read is not None:
            walk.labels.unite(vector(inner), vector(read))
            sides = (Side(value.name, (rank - 1,)), Side(ref.name, (1,)))
            walk.reads.append(Read(walk.index, node.name, vector(read), sides))
        else:
            walk.pin(node, (inner,), "is a recurrent state")
    return [()] * len(node.shapes)

