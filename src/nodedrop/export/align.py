"""Units of convolutions filled up with zeros, in an ONNX file, to the multiples that fast kernels ask for.

A cut leaves any number of units, and runtimes have their best kernels for multiples of 8 or 16. What is added has one
value for all inputs, and is read with weights of 0, so that the file computes the same; were that value not finite, the
comparison that follows would show it on any input.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

# What works on each channel by itself, if a second operand is a number.
_EACH = frozenset(
    ["Relu", "Clip", "Exp", "Log", "Neg", "Abs", "Sigmoid", "Tanh", "Softplus", "LeakyRelu", "Elu", "Identity", "Add",
     "Sub", "Mul", "Max", "Min", "MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"]
)  # fmt: skip


@dataclass
class _Readers:
    """What reads the units of one convolution: weights to be widened along an axis, by so many elements a unit, and
    shapes of values that are flattened on the way, by the place of their width."""

    weights: list[tuple[str, int, int]] = field(default_factory=list)
    shapes: list[tuple[Any, int]] = field(default_factory=list)


def align(model: Any, multiple: int) -> int:
    """Fill up every convolution whose units only convolutions and dense layers read; how many there were.

    None is more than doubled: on so few units fast kernels gain nothing.
    """
    from onnx import numpy_helper

    graph = model.graph
    numbers = {item.name: numpy_helper.to_array(item) for item in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            numbers[node.output[0]] = numpy_helper.to_array(node.attribute[0].t)
    changed: dict[str, Array] = {}
    count = 0
    for node in graph.node:
        if node.op_type != "Conv" or _attribute(node, "group", 1) != 1 or not set(node.input[1:]) <= set(numbers):
            continue
        weight = changed.get(node.input[1], numbers[node.input[1]])
        extra = -len(weight) % multiple
        found = _readers(graph, numbers, node.output[0], len(weight))
        own = [(name, 0, 1) for name in node.input[1:]]
        names = [name for name, _, _ in own + (found.weights if found else [])]
        if not 0 < extra <= len(weight) or found is None or any(_uses(graph, name) > 1 for name in names):
            continue
        for name, axis, times in own + found.weights:
            changed[name] = _widened(changed.get(name, numbers[name]), axis, extra * times)
        for reshape, place in found.shapes:
            shape = numbers[reshape.input[1]].copy()
            shape[place] += extra * (shape[place] // len(weight))
            reshape.input[1] = f"{reshape.input[1]}_of_{reshape.name or reshape.output[0]}"
            graph.initializer.append(numpy_helper.from_array(shape, reshape.input[1]))
        count += 1
    for item in graph.initializer:
        if item.name in changed:
            item.CopyFrom(numpy_helper.from_array(changed[item.name], item.name))
    del graph.value_info[:]  # shapes that were
    return count


def _readers(graph: Any, numbers: Mapping[str, Array], value: str, units: int) -> _Readers | None:
    """All that reads a value with these units; None if something does that cannot be widened."""
    found, waiting = _Readers(), [value]
    while waiting:
        value = waiting.pop()
        if value in {item.name for item in graph.output}:
            return None
        for node in (node for node in graph.node if value in node.input):
            rest = [name for name in node.input if name != value and name]
            if node.op_type in _EACH and all(numbers.get(n, np.zeros(2)).size == 1 for n in rest):
                waiting.append(node.output[0])
            elif node.op_type == "Conv" and node.input[0] == value and _attribute(node, "group", 1) == 1:
                found.weights.append((node.input[1], 1, 1))
            elif node.op_type == "Reshape" and _flattens(graph, numbers, node, units, found):
                continue
            else:
                return None
    return found if all(name in numbers for name, _, _ in found.weights) else None


def _flattens(graph: Any, numbers: Mapping[str, Array], node: Any, units: int, found: _Readers) -> bool:
    """Whether a value is flattened, unit after unit, for dense layers alone; these are noted then."""
    shape = numbers.get(node.input[1], np.zeros(0))
    readers = [reader for reader in graph.node if node.output[0] in reader.input]
    dense = [reader for reader in readers if reader.op_type == "Gemm" and reader.input[0] == node.output[0]]
    plain = shape.size == 2 and shape[1] > 0 and shape[1] % units == 0
    if not plain or not dense or len(dense) < len(readers) or any(_attribute(r, "transA", 0) for r in dense):
        return False
    found.shapes.append((node, 1))
    found.weights += [(r.input[1], 1 if _attribute(r, "transB", 0) else 0, int(shape[1]) // units) for r in dense]
    return True


def _widened(array: Array, axis: int, extra: int) -> Array:
    return np.pad(array, [(0, extra if d == axis else 0) for d in range(array.ndim)])


def _uses(graph: Any, name: str) -> int:
    return sum(name in node.input for node in graph.node)


def _attribute(node: Any, name: str, default: int) -> int:
    return next((int(item.i) for item in node.attribute if item.name == name), default)
