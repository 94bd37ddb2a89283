"""The declared domain: one for all inputs, one per input, per channel; and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from nodedrop.bounds import Box, Interval
from nodedrop.bounds.domain import as_box, boxes
from nodedrop.errors import InputError
from nodedrop.tracing.graph import INPUT, Graph, Node

INF = float("inf")


def graph_of(*inputs: tuple[str, tuple[int, ...], torch.dtype], part: str = "") -> Graph:
    nodes = tuple(Node(f"node_{name}", INPUT, (), {}, (shape,), (dtype,), target=name) for name, shape, dtype in inputs)
    return Graph("eval", nodes, (), part=part)


IMAGE = ("image", (2, 3, 8, 8), torch.float32)
TOKENS = ("tokens", (2, 5), torch.int64)
VECTOR = ("vector", (2, 4), torch.float32)


def found(domain: Any, *inputs: Any) -> list[Interval]:
    return list(boxes(graph_of(*inputs), domain).values())


def ends(interval: Interval) -> tuple[list[float], list[float]]:
    return interval.lo.reshape(-1).tolist(), interval.hi.reshape(-1).tolist()


@pytest.mark.parametrize("domain", [(0.0, 1.0), [0, 1], Box(0.0, 1.0), (torch.tensor(0.0), torch.tensor(1.0))])
def test_one_domain_serves_every_floating_input(domain: Any) -> None:
    image, tokens, vector = found(domain, IMAGE, TOKENS, VECTOR)
    assert ends(image) == ends(vector) == ([0.0], [1.0])
    assert ends(tokens) == ([-INF], [INF])
    assert image.shape == (2, 3, 8, 8)
    assert image.lo.dim() == 4


def test_bounds_of_inputs_are_double_and_compact() -> None:
    (image,) = found((0.1, 0.3), IMAGE)
    assert image.lo.dtype == image.hi.dtype == torch.float64
    assert ends(image) == ([0.1], [0.3])


@pytest.mark.parametrize(
    "domain",
    [
        [(0.0, 1.0), None, (-2.0, 2.0)],
        ((0.0, 1.0), None, Box(-2.0, 2.0)),
        {"image": (0.0, 1.0), "vector": Box(-2.0, 2.0)},
        {"vector": (-2.0, 2.0), "image": Box(0.0, 1.0), "tokens": None},
    ],
)
def test_one_domain_per_input(domain: Any) -> None:
    image, tokens, vector = found(domain, IMAGE, TOKENS, VECTOR)
    assert ends(image) == ([0.0], [1.0])
    assert ends(tokens) == ([-INF], [INF])
    assert ends(vector) == ([-2.0], [2.0])


def test_an_input_that_is_not_named_has_no_domain() -> None:
    assert ends(found({"image": (0.0, 1.0)}, IMAGE, VECTOR)[1]) == ([-INF], [INF])
    assert ends(found(None, VECTOR)[0]) == ([-INF], [INF])


def test_a_part_of_a_model_has_no_domain() -> None:
    (interval,) = boxes(graph_of(VECTOR, part="head."), (0.0, 1.0)).values()
    assert ends(interval) == ([-INF], [INF])


@pytest.mark.parametrize("shape", [(3,), (3, 1, 1), (1, 3, 1, 1)])
def test_one_value_per_channel(shape: tuple[int, ...]) -> None:
    lo = torch.tensor([-1.0, -2.0, 0.0]).reshape(shape)
    (image,) = found(Box(lo, 3.0), IMAGE)
    assert image.lo.shape == (1, 3, 1, 1)
    assert ends(image) == ([-1.0, -2.0, 0.0], [3.0, 3.0, 3.0])


def test_one_value_per_feature_of_a_vector() -> None:
    (vector,) = found(Box(torch.arange(4.0), 9.0), VECTOR)
    assert vector.lo.shape == (1, 4)
    assert ends(vector)[0] == [0.0, 1.0, 2.0, 3.0]


def test_one_value_per_element() -> None:
    (vector,) = found(Box(torch.zeros(2, 4), torch.ones(2, 4)), VECTOR)
    assert vector.lo.shape == (2, 4)


def test_open_sides() -> None:
    assert ends(found((0.0, INF), VECTOR)[0]) == ([0.0], [INF])


def test_a_point() -> None:
    assert ends(found((0.5, 0.5), VECTOR)[0]) == ([0.5], [0.5])


def test_normalised_images() -> None:
    box = Box.normalised([0.5, 0.4, 0.25], [0.25, 0.2, 0.5])
    (image,) = found(box, IMAGE)
    assert image.lo.shape == (1, 3, 1, 1)
    lows, highs = ends(image)
    assert lows == pytest.approx([-2.0, -2.0, -0.5], rel=3e-6)
    assert highs == pytest.approx([2.0, 3.0, 1.5], rel=3e-6)


def test_normalised_images_of_another_range() -> None:
    (image,) = found(Box.normalised([127.5] * 3, [127.5] * 3, 0.0, 255.0), IMAGE)
    lows, highs = ends(image)
    assert lows == pytest.approx([-1.0] * 3, rel=1e-6)
    assert highs == pytest.approx([1.0] * 3, rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("mean", "std"),
    [
        ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        ([0.4914, 0.4822, 0.4465], [0.2023, 0.1994, 0.2010]),
        ([0.5071, 0.4867, 0.4408], [0.2675, 0.2565, 0.2761]),
        ([0.1307] * 3, [0.3081] * 3),
    ],
)
def test_black_and_white_as_the_data_loader_normalises_them_lie_inside(
    mean: list[float], std: list[float], dtype: torch.dtype
) -> None:
    """The box is of real numbers, the loader rounds: its ends must leave room for that."""
    (image,) = found(Box.normalised(mean, std), IMAGE)
    centre, spread = (torch.tensor(v, dtype=dtype).reshape(3, 1, 1) for v in (mean, std))
    for pixel in (0.0, 1.0):
        x = (torch.full((3, 2, 2), pixel, dtype=dtype) - centre) / spread
        assert bool((x.double() >= image.lo[0]).all())
        assert bool((x.double() <= image.hi[0]).all())


@pytest.mark.parametrize(
    ("domain", "message"),
    [
        ((1.0, 0.0), "lo > hi"),
        (Box(torch.tensor([0.0, 2.0, 0.0]), 1.0), "lo > hi"),
        ((float("nan"), 1.0), "lo is NaN"),
        ((0.0, float("nan")), "hi is NaN"),
        (Box(torch.zeros(5), 1.0), "does not fit"),
        (Box(torch.zeros(1, 2, 3, 8, 8), 1.0), "does not fit"),
        ((0.0,), "must be"),
        ((0.0, 1.0, 2.0), "must be"),
        ("ab", "must be"),
        (1.0, "must be"),
        ((None, None), "2 entries"),
        ([(0.0, 1.0), (0.0, 1.0)], "2 entries"),
        ({"picture": (0.0, 1.0)}, "'picture'"),
        ({"image": "wide"}, "must be"),
        ({"image": (0.0, "x")}, "must be"),
        ((object(), 1.0), "must be"),
    ],
)
def test_a_bad_domain_gets_one_clear_sentence(domain: Any, message: str) -> None:
    with pytest.raises(InputError, match=message) as raised:
        found(domain, IMAGE)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("std", [[0.2, 0.0, 0.2], [0.2, -0.1, 0.2]])
def test_a_standard_deviation_must_be_positive(std: list[float]) -> None:
    with pytest.raises(InputError):
        found(Box.normalised([0.5, 0.5, 0.5], std), IMAGE)


def test_an_empty_box_on_one_side_of_infinity() -> None:
    """No finite number lies in [∞, ∞]."""
    with pytest.raises(InputError):
        found((INF, INF), VECTOR)


def test_as_box_keeps_tensors() -> None:
    lo = torch.zeros(3)
    box = as_box((lo, 1), "image")
    assert box is not None
    assert box.lo is lo
    assert box.hi == 1.0
    assert as_box(None, "image") is None
