"""Operators that write in place: the traced graph computes what the model does, whoever shares the memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.nn import functional as F

from nodedrop.tracing import trace
from nodedrop.tracing.execute import execute
from nodedrop.tracing.graph import INPUT, tensors_of

Use = Callable[[Tensor, Tensor, Tensor], Tensor]


class Uses(nn.Module):
    """Two layers whose results are handed to a piece of code, with the input. A parameter has the input's name."""

    def __init__(self, use: Use) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.use, self.one, self.two = use, nn.Linear(4, 4), nn.Linear(4, 4)
        self.x = nn.Parameter(torch.randn(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.use(self.one(x * self.x), self.two(x), x)


def ignored(a: Tensor, b: Tensor, _: Tensor) -> Tensor:
    F.relu(a, inplace=True)
    return a * b


def other_name(a: Tensor, b: Tensor, _: Tensor) -> Tensor:
    same = a
    same.relu_()
    return a - b


def read_before(a: Tensor, b: Tensor, _: Tensor) -> Tensor:
    before = a * 2
    a.relu_()
    return before + a * b


def added(a: Tensor, b: Tensor, _: Tensor) -> Tensor:
    a += b
    b.relu_()
    return a.relu_() - b


def written_twice(a: Tensor, b: Tensor, _: Tensor) -> Tensor:
    first = a.relu_()
    second = a.add_(b)
    first.mul_(0.5)
    return first + second * a


def viewed_at_the_end(a: Tensor, b: Tensor, _: Tensor) -> Tensor:
    return a.relu_().add_(b).view(-1, 2).reshape(-1)


def doubled(a: Tensor, b: Tensor, _: Tensor) -> Tensor:
    a += a
    return a / b


def view_before(a: Tensor, b: Tensor, _: Tensor) -> Tensor:
    view = a.view(-1)
    a.relu_()
    return view * b.view(-1)


def view_of_another_name(a: Tensor, b: Tensor, _: Tensor) -> Tensor:
    view = a.relu_().flatten()
    a.add_(b)
    return view


def dropout_that_is_no_copy(a: Tensor, _b: Tensor, _: Tensor) -> Tensor:
    same = F.dropout(a, 0.5, training=False)
    a.relu_()
    return same


def idle_dropout_in_place(a: Tensor, b: Tensor, _: Tensor) -> Tensor:
    return F.dropout(a, 0.5, training=False, inplace=True) + F.alpha_dropout(b, 0.0, training=True)


def contiguous_that_is_no_copy(a: Tensor, _b: Tensor, _: Tensor) -> Tensor:
    same = a.contiguous()
    same.relu_()
    return a


def part(a: Tensor, b: Tensor, _: Tensor) -> Tensor:
    a[:, :2].relu_()
    return a * b


def the_input(a: Tensor, _b: Tensor, x: Tensor) -> Tensor:
    y = x.to(x.dtype)
    y.sub_(0.5)
    return a * x


def another_type(a: Tensor, b: Tensor, _: Tensor) -> Tensor:
    a += b.double() / 3
    return a * 3


PLAIN = (
    ignored, other_name, read_before, added, written_twice, viewed_at_the_end, doubled, dropout_that_is_no_copy,
    idle_dropout_in_place,
)  # fmt: skip
SHARED = (view_before, view_of_another_name, contiguous_that_is_no_copy, part, the_input, another_type)


class SharedNorm(nn.Module):
    """One batch norm used twice, so that its statistics and its counter are written twice."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.norm(x).relu() * 2)


class Counts(nn.Module):
    """Adds to a counter, and reads it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1)
        return x * self.calls


def assert_traced_as_it_computes(use: Use) -> None:
    model, x = Uses(use).eval(), torch.rand(3, 4) * 2 - 1
    expected = model(x.clone())
    for graph in trace(model, torch.rand(3, 4)).graphs:
        inputs = {node.name: x.clone() for node in graph.nodes if node.op == INPUT}
        found = execute(graph, tensors_of(model), inputs)[graph.outputs[-1]]
        assert found.dtype == expected.dtype
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("use", [*PLAIN, *SHARED])
def test_the_graph_computes_what_the_model_does(use: Use) -> None:
    assert_traced_as_it_computes(use)


@pytest.mark.parametrize("use", PLAIN)
def test_values_that_nobody_shares_need_no_second_pass_of_the_exporter(
    use: Use, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ExportedProgram, "run_decompositions", None)
    assert_traced_as_it_computes(use)


def test_a_norm_used_twice_needs_no_second_pass_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ExportedProgram, "run_decompositions", None)
    model, x = SharedNorm(), torch.rand(3, 4)
    (graph,) = trace(model, x).in_mode("train")
    inputs = {node.name: x for node in graph.nodes if node.op == INPUT}
    found = execute(graph, {name: value.clone() for name, value in tensors_of(model).items()}, inputs)
    torch.testing.assert_close(found[graph.outputs[-1]], model.train()(x))


def test_a_counter_that_is_read_is_data() -> None:
    (graph,) = trace(Counts(), torch.rand(3, 4)).in_mode("eval")
    inputs = {node.name: torch.ones(3, 4) for node in graph.nodes if node.op == INPUT}
    found = execute(graph, {"calls": torch.tensor(4)}, inputs)
    assert float(found[graph.outputs[-1]].max()) == 5.0
