"""Parameters on another device: no GPU is needed to see that tensors of two devices are never mixed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from nodedrop import Box
from nodedrop.bounds import bound, propagate
from nodedrop.planning import Structure, plan, structure
from nodedrop.proof import Certificates, observe, prove
from nodedrop.tracing import tensors_of, trace

Move = Callable[[Mapping[str, Tensor]], dict[str, Tensor]]


class Elsewhere(Tensor):
    """Behaves as on another device: it meets no tensor from here, except numbers, and `cpu` is the way back."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        tensors = [value for value in tree_leaves((args, kwargs)) if isinstance(value, Tensor)]
        if any(type(value) is Tensor and value.dim() for value in tensors):
            raise RuntimeError(f"expected all tensors to be on the same device ({func})")
        found = super().__torch_function__(func, types, args, kwargs or {})
        return tree_map(here, found) if func is Tensor.cpu else found


def here(value: Any) -> Any:
    return value.as_subclass(Tensor) if isinstance(value, Elsewhere) else value


def away(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.detach().as_subclass(Elsewhere) for name, value in tensors.items()}


def conv() -> nn.Module:
    torch.manual_seed(0)
    made = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 6, 3), nn.ReLU(),
        nn.Flatten(), nn.LayerNorm(24), nn.Linear(24, 5), nn.ReLU(), nn.Linear(5, 2),
    )  # fmt: skip
    with torch.no_grad():
        made[4].bias[:2], made[8].bias[1] = -1e6, -1e6
    return made


def evidence(kind: str, made: Structure, model: nn.Module, move: Move) -> list[Certificates]:
    found, images = [], torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    for graph in made.program.graphs:
        tensors = move({name: value.detach().clone() for name, value in tensors_of(model).items()})
        if kind == "observed":
            found.append(observe(graph, tensors, [move({graph.inputs[0].name: images})] * 2))
        else:
            domain = Box(torch.zeros(3), torch.ones(3))
            found.append(prove(bound(graph, tensors, domain, batch_limit=4, linear=kind == "linear")))
    return found


@pytest.mark.parametrize("kind", ["interval", "linear", "observed"])
def test_what_is_found_does_not_depend_on_where_parameters_are(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(propagate, "STRICT", True)
    model = conv()
    made = structure(trace(model, torch.rand(4, 3, 8, 8)))
    near, far = (evidence(kind, made, model, move) for move in (dict, away))
    for one, other in zip(near, far, strict=True):
        for name, interval in one.intervals.items():
            moved = other.intervals[name]
            assert not isinstance(moved.lo, Elsewhere), name
            assert torch.equal(interval.lo, moved.lo), name
            assert torch.equal(interval.hi, moved.hi), name
    assert plan(made, near).removed.any()
    assert torch.equal(plan(made, near).removed, plan(made, far).removed)
