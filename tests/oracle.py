"""The oracle that every bound rule faces: no value of a graph may leave its interval.

Inputs are drawn from the declared box at random, at its corners, and by gradient ascent towards the ends of the
bounds; the graph runs operator by operator in the precision it was made for, and every value is compared.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from nodedrop.bounds import Bounds, Interval, bound
from nodedrop.bounds.domain import boxes
from nodedrop.tracing import Graph, Node, Ref, tensors_of, trace
from nodedrop.tracing.execute import execute, resolve
from nodedrop.tracing.graph import BUFFER, CONSTANT, INPUT, PARAMETER

INF = float("inf")
HALVES = (torch.float16, torch.bfloat16)
PRECISIONS = (torch.float64, torch.float32, *HALVES)


class Violation(AssertionError):
    """A value outside its interval, or an interval that is none."""


@dataclass
class Tape:
    """A graph written operator by operator: shapes and types come from running each one.

    Inputs are either boxes (the oracle draws from them) or given tensors (indices, masks); parameters are known.
    """

    dtype: torch.dtype
    seed: int = 0
    nodes: list[Node] = field(default_factory=list)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    domain: dict[str, Any] = field(default_factory=dict)
    given: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.random = torch.Generator().manual_seed(self.seed)

    def normal(self, *shape: int, scale: float = 1.0) -> Tensor:
        """Weights of real scale."""
        return (torch.randn(shape, generator=self.random, dtype=torch.float64) * scale).to(self.dtype)

    def input(self, *shape: int, lo: Any = -1.0, hi: Any = 1.0) -> Ref:
        """An input anywhere in a box."""
        name = f"x{len(self.nodes)}"
        low, high = ends_in(lo, hi, shape, self.dtype)
        self.domain[name] = (torch.as_tensor(lo, dtype=torch.float64), torch.as_tensor(hi, dtype=torch.float64))
        return self._leaf(name, INPUT, between(low, high, torch.full(shape, 0.5, dtype=torch.float64), self.dtype))

    def tensor_input(self, value: Tensor) -> Ref:
        """An input without a domain: indices, lengths, masks."""
        name = f"x{len(self.nodes)}"
        self.domain[name] = None
        self.given[name] = value
        return self._leaf(name, INPUT, value)

    def parameter(self, value: Tensor) -> Ref:
        """A known tensor; floating ones take the precision of the graph."""
        name = f"p{len(self.nodes)}"
        self.tensors[name] = value.to(self.dtype) if value.is_floating_point() else value
        return self._leaf(name, PARAMETER, self.tensors[name])

    def _leaf(self, name: str, op: str, value: Tensor) -> Ref:
        self.nodes.append(Node(name, op, (), {}, (tuple(value.shape),), (value.dtype,), target=name))
        self.values[name] = value
        return Ref(name)

    def __call__(self, op: str, *args: Any, **kwargs: Any) -> Ref:
        """Apply one operator."""
        name = f"v{len(self.nodes)}"
        with torch.no_grad():
            result = resolve(op)(*self._known(args), **self._known(kwargs))
        items = result if isinstance(result, list | tuple) else (result,)
        shapes = tuple(tuple(item.shape) if isinstance(item, Tensor) else None for item in items)
        dtypes = tuple(item.dtype if isinstance(item, Tensor) else None for item in items)
        self.nodes.append(Node(name, op, _frozen(args), _frozen(kwargs), shapes, dtypes))
        self.values[name] = result
        return Ref(name)

    def item(self, value: Ref, index: int) -> Ref:
        """One of several results."""
        name, result = f"v{len(self.nodes)}", self.values[value.name][index]
        self.nodes.append(Node(name, "getitem", (value, index), {}, (tuple(result.shape),), (result.dtype,)))
        self.values[name] = result
        return Ref(name)

    def _known(self, value: Any) -> Any:
        if isinstance(value, Ref):
            found = self.values[value.name]
            return found.clone() if isinstance(found, Tensor) else found
        if isinstance(value, Mapping):
            return {key: self._known(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._known(item) for item in value]
        return value

    def graph(self, mode: Any = "eval") -> Graph:
        """What was written so far."""
        return Graph(mode, tuple(self.nodes), (self.nodes[-1].name,))


def _frozen(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _frozen(item) for key, item in value.items()}
    return tuple(_frozen(item) for item in value) if isinstance(value, list | tuple) else value


def neighbour(value: Tensor, up: bool) -> Tensor:
    """The next float of the same precision, computed on its bits (nextafter does not know the half precisions)."""
    ints = {8: torch.int64, 4: torch.int32, 2: torch.int16}[value.element_size()]
    bits = value.contiguous().view(ints)
    away = (value > 0) == up
    moved = (bits + torch.where(away, 1, -1).to(ints)).view(value.dtype)
    smallest = torch.ones_like(bits).view(value.dtype)
    return torch.where(value == 0, smallest if up else -smallest, moved)


def ends_in(lo: Any, hi: Any, shape: Sequence[int], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The outermost floats inside a box; open sides end at large numbers."""
    far = min(1e6, float(torch.finfo(dtype).max) / 4)
    low, high = (torch.as_tensor(end, dtype=torch.float64).expand(shape) for end in (lo, hi))
    low = torch.where(low == -INF, torch.minimum(torch.full_like(high, -far), high - far), low)
    high = torch.where(high == INF, torch.maximum(torch.full_like(low, far), low + far), high)
    first, last = low.to(dtype), high.to(dtype)
    first = torch.where(first.double() < low, neighbour(first, up=True), first)
    last = torch.where(last.double() > high, neighbour(last, up=False), last)
    if bool((first > last).any()):
        raise ValueError(f"no {dtype} number lies in the box")
    return first, last


def between(low: Tensor, high: Tensor, fraction: Tensor, dtype: torch.dtype) -> Tensor:
    """low + fraction·(high − low), in the precision and never outside."""
    wide = low.double() + fraction * (high.double() - low.double())
    return torch.minimum(torch.maximum(wide.to(dtype), low), high)


@dataclass(frozen=True)
class Source:
    """Where inputs come from: the box of every floating input, and the given ones."""

    low: Mapping[str, Tensor]
    high: Mapping[str, Tensor]
    given: Mapping[str, Any]

    def at(self, fractions: Mapping[str, Tensor]) -> dict[str, Any]:
        """The inputs at a place in the box, 0 being its lower corner and 1 its upper one."""
        made = {n: between(self.low[n], self.high[n], f, self.low[n].dtype) for n, f in fractions.items()}
        return {**self.given, **made}

    def fractions(self, random: torch.Generator, *, corner: bool) -> dict[str, Tensor]:
        """A place drawn at random, or a random corner."""
        made = {}
        for name, low in self.low.items():
            place = torch.rand(low.shape, generator=random, dtype=torch.float64)
            made[name] = place.round() if corner else place
        return made


def source_of(graph: Graph, domain: Any, given: Mapping[str, Any]) -> Source:
    """The box of a graph's inputs, in the precision of each."""
    low, high = {}, {}
    declared = boxes(graph, domain)
    for node in graph.inputs:
        if node.name not in given and node.dtype is not None and node.dtype.is_floating_point:
            interval = declared[node.name]
            low[node.name], high[node.name] = ends_in(interval.lo, interval.hi, node.shape, node.dtype)
    return Source(low, high, given)


def draws(source: Source, random: torch.Generator, samples: int) -> Iterator[dict[str, Any]]:
    """Random places, all corners of a small box or some of a large one, and lone spikes."""
    for _ in range(samples):
        yield source.at(source.fractions(random, corner=False))
    sizes = [low.numel() for low in source.low.values()]
    if sum(sizes) <= 5:
        for bits in itertools.product((0.0, 1.0), repeat=sum(sizes)):
            parts = torch.tensor(bits, dtype=torch.float64).split(sizes)
            yield source.at({n: p.reshape(low.shape) for (n, low), p in zip(source.low.items(), parts, strict=True)})
    for _ in range(samples):
        yield source.at(source.fractions(random, corner=True))
    for level in (0.0, 1.0):
        flat = {name: torch.full(low.shape, level, dtype=torch.float64) for name, low in source.low.items()}
        yield source.at(flat)
        for fraction in flat.values():
            if fraction.numel():
                fraction.view(-1)[int(torch.randint(fraction.numel(), (), generator=random))] = 1 - level
        yield source.at(flat)


def ascend(
    graph: Graph, tensors: Mapping[str, Tensor], source: Source, random: torch.Generator, *, steps: int, up: bool
) -> Iterator[dict[str, Any]]:
    """Signed-gradient steps that push one element of a value to its largest or smallest, projected to the box."""
    fractions = source.fractions(random, corner=False)
    picked: tuple[str, int] | None = None
    for step in range(steps):
        inputs = source.at(fractions)
        leaves = [inputs[name].requires_grad_() for name in fractions]
        try:
            values = execute(graph, tensors, inputs)
            picked = picked or _target(graph, values, random)
            if picked is None:
                return
            aim = values[picked[0]].reshape(-1)[picked[1]]
            grads = torch.autograd.grad(aim, leaves, allow_unused=True)
        except RuntimeError as error:
            if "derivative" in str(error):
                return
            raise
        size = 0.5 * 0.7**step
        for name, grad in zip(fractions, grads, strict=True):
            if grad is not None:
                move = grad.double().nan_to_num().sign() * (size if up else -size)
                fractions[name] = (fractions[name] + move).clamp(0, 1)
        yield source.at(fractions)


def _target(graph: Graph, values: Mapping[str, Any], random: torch.Generator) -> tuple[str, int] | None:
    able = [
        name for name, value in values.items()
        if isinstance(value, Tensor) and value.requires_grad and value.numel() and graph.by_name[name].op != INPUT
    ]
    if not able:
        return None
    name = able[int(torch.randint(len(able), (), generator=random))]
    return name, int(torch.randint(values[name].numel(), (), generator=random))


def compare(bounds: Bounds, values: Mapping[str, Any]) -> None:
    """Every value of one run against its interval; what a later operator overwrote in place is gone."""
    for node in checked(bounds.graph):
        for item, interval in results(bounds, node, values[node.name]):
            value, lo, hi = item.detach().double(), interval.lo, interval.hi
            bad = ~((value >= lo) & (value <= hi))
            if bool(bad.any()) and bool((bad := bad & ~((lo == -INF) & (hi == INF))).any()):
                at = tuple(bad.nonzero()[0].tolist())
                low, high = (float(end.expand(value.shape)[at]) for end in (lo, hi))
                raise Violation(
                    f"{node.op} ({item.dtype}) at {at}: {float(value[at])!r} is outside [{low!r}, {high!r}]"
                )
            _rows_hold(node, value, interval, item.dtype)


def checked(graph: Graph) -> list[Node]:
    """Nodes that compute something and still hold it at the end."""
    names = {node.name: node.op.split(".")[1] if "." in node.op else "" for node in graph.nodes}
    overwritten = {node.inputs[0] for node in graph.nodes if names[node.name].endswith("_")}
    given = (INPUT, PARAMETER, BUFFER, CONSTANT)
    return [node for node in graph.nodes if node.op not in given and node.name not in overwritten]


def results(bounds: Bounds, node: Node, value: Any) -> list[tuple[Tensor, Interval]]:
    """Pairs of a result and its interval."""
    found = bounds.values[node.name]
    items = value if isinstance(value, list | tuple) else (value,)
    intervals = found if isinstance(found, tuple) else (found,)
    if len(items) != len(intervals):
        raise Violation(f"{node.op}: {len(intervals)} intervals for {len(items)} results")
    return [(t, i) for t, i in zip(items, intervals, strict=True) if isinstance(t, Tensor) and not t.is_complex()]


def well_formed(bounds: Bounds, values: Mapping[str, Any]) -> None:
    """Intervals are compact tensors of the value's rank, in double or as known, and lo ≤ hi."""
    for node in checked(bounds.graph):
        for item, interval in results(bounds, node, values[node.name]):
            for end in (interval.lo, interval.hi):
                if end.dim() != item.dim() or any(n not in (1, m) for n, m in zip(end.shape, item.shape, strict=True)):
                    raise Violation(f"{node.op}: ends of shape {tuple(end.shape)} for a value of {tuple(item.shape)}")
            if not bool((interval.lo <= interval.hi).all()):
                ends = interval.lo.reshape(-1)[:8].tolist(), interval.hi.reshape(-1)[:8].tolist()
                raise Violation(f"{node.op} ({item.dtype}): the interval is empty or NaN: lo={ends[0]}, hi={ends[1]}")


def _rows_hold(node: Node, value: Tensor, interval: Interval, dtype: torch.dtype) -> None:
    """What an interval says about rows: softmax sums, and the norm of normalised rows."""
    if interval.mix is not None and value.numel():
        total = float(value.sum(-1).max())
        if float(value.min()) < 0 or total > interval.mix:
            raise Violation(f"{node.op} ({dtype}): a row sums to {total!r}, more than the mix of {interval.mix!r}")
    if interval.ball is not None and interval.ball.slack < INF and bool((interval.ball.scale != 0).all()):
        ball, width = interval.ball, value.size(-1)
        eps = float(torch.finfo(dtype).eps)
        largest = float(((value - ball.shift) / ball.scale).norm(dim=-1).max())
        error = float((ball.shift.abs() / ball.scale.abs()).max()) + 128
        reach = math.sqrt(width) * (math.hypot(1, ball.slack) + error * eps) + float((ball.error / ball.scale).norm())
        if largest > reach:
            raise Violation(f"{node.op} ({dtype}): a row of norm {largest!r}, above {reach!r}")


def check_graph(
    graph: Graph,
    tensors: Mapping[str, Tensor],
    domain: Any,
    *,
    given: Mapping[str, Any] | None = None,
    samples: int = 4,
    climbs: int = 1,
    batch_limit: float = INF,
    autocast: torch.dtype | None = None,
    seed: int = 0,
    linear: bool = False,
) -> Bounds:
    """Bound a graph, run it on many inputs of the domain, and raise `Violation` if a value leaves its interval."""
    bounds = bound(graph, tensors, domain, batch_limit=batch_limit, dtype=autocast, linear=linear)
    source = source_of(graph, domain, given or {})
    random = torch.Generator().manual_seed(seed)
    cast = torch.autocast("cpu", autocast) if autocast is not None else nullcontext()
    fixed = {name: tensor.detach() for name, tensor in tensors.items()}
    adversaries: Iterable[dict[str, Any]] = itertools.chain.from_iterable(
        ascend(graph, fixed, source, random, steps=5, up=k % 2 == 0) for k in range(2 * climbs if source.low else 0)
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        fresh = True
        for inputs in itertools.chain(draws(source, random, samples), adversaries):
            copies = {name: value.detach().clone() for name, value in inputs.items()}
            with torch.no_grad(), cast:
                values = execute(graph, fixed, copies)
            if fresh:
                well_formed(bounds, values)
                fresh = False
            compare(bounds, values)
    return bounds


def check_tape(write: Any, dtype: torch.dtype, **options: Any) -> Bounds:
    """Write a graph in one precision and check it; `write` is called with the tape."""
    tape = Tape(dtype)
    write(tape)
    return check_graph(tape.graph(), tape.tensors, tape.domain, given=tape.given, **options)


def check_bounds(
    module: nn.Module,
    shapes: Sequence[Any],
    domain: Any = (0.0, 1.0),
    *,
    dtypes: Sequence[torch.dtype] = (torch.float64, torch.float32),
    **options: Any,
) -> dict[tuple[str, torch.dtype], Bounds]:
    """Trace a module and check its eval and its train graph in every precision.

    `shapes` holds one entry per input: a shape for a floating one, a tensor for one without a domain.
    """
    found = {}
    for dtype in dtypes:
        own = copy.deepcopy(module).to(dtype)
        example = tuple(s if isinstance(s, Tensor) else torch.zeros(s, dtype=dtype) for s in shapes)
        for graph in trace(own, example).graphs:
            given = {n.name: s for n, s in zip(graph.inputs, shapes, strict=True) if isinstance(s, Tensor)}
            bounds = check_graph(graph, tensors_of(own), domain, given=given, **options)
            found |= {(mode, dtype): bounds for mode in graph.modes}
    return found
