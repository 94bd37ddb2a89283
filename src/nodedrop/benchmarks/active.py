"""Units that are always on: how many there are in trained ReLU networks, and how many of them could be merged.

Where ReLU units are positive for every input, their layer is linear in them, and one that is a linear combination of
others and a constant could be folded into what reads it, exactly. This counts what that would bring.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from ..bounds import bound
from ..experiments.data import Data
from ..experiments.making import example
from ..experiments.recipes import Recipe, baseline, changed, domain_of, recipe
from ..experiments.run import Run
from ..tracing import Graph, Node, Ref, tensors_of, trace
from .harness import Settings, document, single
from .run import pictures

RELU = {"activation": "relu"}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "MNIST Dense160, dense": ("mnist", {"lam": 0.0, "epochs": 1}),
    "MNIST Dense160, λ = 1e-4": ("mnist", {"lam": 1e-4, "epochs": 1} | RELU),
    "Transformer, dense": ("text", {"lam": 0.0, "epochs": 1}),
}
QUICK: dict[str, Any] = {"images": 64, "batch": 32, "width": 0.1}
LAYERS = ("aten.linear.", "aten.conv1d.", "aten.conv2d.", "aten.conv3d.")
RECTIFIERS = ("aten.relu.default", "aten.relu_.default")


def run(settings: Settings) -> dict[str, Any]:
    """Train each network for an epoch, and look at it with both kinds of bounds."""
    rows: list[dict[str, Any]] = []
    cases = list(CASES.items())[: 1 if settings.quick else None]
    for number, (title, (name, changes)) in enumerate(cases):
        settings.tell(title, number / len(cases))
        made = changed(recipe(name), {**changes, **settings.changes, **(QUICK if settings.quick else {})})
        made = baseline(made) if made.lam == 0 else made
        rows += [{"case": title, **row} for row in layers(made, pictures(made, settings))]
    units = sum(row["units"] for row in rows)
    on, merged = (sum(row[name] for row in rows) for name in ("on_linear", "merged"))
    figures = [
        single(f"of {units} units, ReLU is always on, by linear bounds, in", on, unit="units"),
        single("of these, linear combinations of others, which could be merged", merged, unit="units"),
    ]
    return document("active", settings, figures, layers=rows)


def layers(made: Recipe, data: Data) -> list[dict[str, Any]]:
    """A row for each ReLU of a network that was trained as the recipe says."""
    with TemporaryDirectory() as folder:
        training = Run(made, Path(folder), data)
        training.open()
        for _ in training.steps():
            pass
        model, inputs = training.model.eval(), example(made, data, 2)
    (graph,) = trace(model, inputs).in_mode("eval")
    tensors, domain = tensors_of(model), None if data.text else domain_of(made)
    plain, linear = (bound(graph, tensors, domain, linear=choice) for choice in (False, True))
    rows = []
    for node in (node for node in graph.nodes if node.op in RECTIFIERS):
        axis = 1 if len(node.shape) == 4 else len(node.shape) - 1
        source = graph.by_name[node.args[0].name]
        on = [_on(each[source.name].double().lo.expand(node.shape), axis) for each in (plain, linear)]
        rows.append({
            "layer": node.module or node.name, "units": len(on[0]), "on_interval": int(on[0].sum()),
            "on_linear": int(on[1].sum()), "merged": _merged(graph, source, on[1], tensors),
        })  # fmt: skip
    return rows


def _on(lo: torch.Tensor, axis: int) -> torch.Tensor:
    return lo.movedim(axis, 0).flatten(1).amin(1) >= 0


def _merged(graph: Graph, node: Node, on: torch.Tensor, tensors: Any) -> int:
    """How many of the units that are on are linear combinations of others and a constant.

    A constant folds into the biases of what reads the unit, so weights alone decide, and biases do not.
    """
    weight = node.args[1] if node.op.startswith(LAYERS) else None
    tensor = tensors.get(graph.by_name[weight.name].target) if isinstance(weight, Ref) else None
    if tensor is None or not on.any():
        return 0
    rows = tensor.detach().double().reshape(len(on), -1)[on]
    return len(rows) - int(torch.linalg.matrix_rank(rows))
