"""Recurrent layers read units; their own, the states, stay."""

from __future__ import annotations

from ...tracing.graph import PARAMETER, Node
from ..labels import touching, vector
from ..walk import Fixed, Outcome, Read, Side, Walk, label_rule

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
