"""Max pooling before the activation: σ never falls, so the largest σ(v) is σ of the largest v.

A file then computes the activation of what pooling leaves, a quarter of the values for windows of 2×2. The computed σ
may fall by a few ulps where the real one rises, which the comparison with the module covers.
"""

from __future__ import annotations

import torch
from torch.export import ExportedProgram
from torch.fx import Node

_ACTIVATION = torch.ops.nodedrop.soft_clamped_relu.default
_POOLS = (torch.ops.aten.max_pool1d.default, torch.ops.aten.max_pool2d.default, torch.ops.aten.max_pool3d.default)


def pool_first_(program: ExportedProgram) -> None:
    """Let every max pooling that alone reads an activation change places with it."""
    graph = program.graph_module.graph
    for pool in list(graph.nodes):
        if pool.op != "call_function" or pool.target not in _POOLS:
            continue
        activation = pool.args[0]
        if _moves(activation, pool):
            v, *rest = activation.args
            pool.args = (v, *pool.args[1:])
            with graph.inserting_after(pool):
                after = graph.call_function(_ACTIVATION, (pool, *rest))
            after.meta = dict(pool.meta)
            pool.replace_all_uses_with(after, delete_user_cb=lambda user, after=after: user is not after)
            graph.erase_node(activation)
    program.graph_module.recompile()


def _moves(activation: Node, pool: Node) -> bool:
    """Outputs of the program are named in its signature, and keep their places."""
    only = activation.target == _ACTIVATION and list(activation.users) == [pool]
    return only and all(user.op != "output" for user in pool.users)
