"""Random networks, compacted: the same results in both modes, no certificate that a sample refutes, and each derived
again by the checker.

Here the same 300 each time, each chunk of them drawn from a seed of its own; `make fuzz` tries 10,000 others.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import nodedrop as nd
from nodedrop.verify import verify

from ..exactness import assert_accounted, corners, difference, run, scales, widths
from .generator import Block, Description, Networks, Residual, Unit, descriptions, example

TOGETHER = 15
WANTED = 300
FIRST = 20_010  # the first seed here; those of `make fuzz` begin with 0
TOLERANCE = 1e-12
STEP = 1e-9

# Up to where an activation is exactly zero.
ZERO_UP_TO: dict[type[nn.Module], float] = {
    nn.ReLU: 0.0, nn.ReLU6: 0.0, nn.Hardtanh: 0.0, nd.ClampedReLU: 0.0, nd.SoftClampedReLU: 0.0, nn.Threshold: 0.1,
    nn.Hardswish: -3.0, nn.Hardsigmoid: -3.0,
}  # fmt: skip

Seen = dict[str, tuple[Tensor, Tensor]]


def inputs_of(drawn: list[Description], generator: torch.Generator) -> Iterator[tuple[Tensor, ...]]:
    """Random inputs and corners of the domains."""
    domain = [description.domain for description in drawn]
    for _ in range(2):
        inputs = tuple(example(description, generator) for description in drawn)
        yield inputs
        yield from corners(inputs, domain, generator)


def watched(model: nn.Module) -> dict[str, tuple[nn.Module, int]]:
    """Layers with the activation that their units meet first, and the axis of units there."""
    found: dict[str, tuple[nn.Module, int]] = {}
    for path, module in model.named_modules():
        if isinstance(module, Unit) and not isinstance(module.act, nn.Identity):
            found[f"{path}.layer"] = (module.act, module.axis)
        if isinstance(module, Residual) and module.behind and not isinstance(module.act, nn.Identity):
            found[f"{path}.second.layer"] = (module.act, module.axis)
    return found


def watch(model: nn.Module) -> Seen:
    """Fills up, run by run, with the largest value that entered each unit's activation and |value| that left it."""
    seen: Seen = {}

    def record(name: str, axis: int, entering: Tensor, leaving: Tensor) -> None:
        tops = [t.movedim(axis, 0).flatten(1).amax(1) for t in (entering.detach(), leaving.detach().abs())]
        if name in seen:
            tops = [torch.maximum(old, new) for old, new in zip(seen[name], tops, strict=True)]
        seen[name] = (tops[0], tops[1])

    for name, (act, axis) in watched(model).items():
        act.register_forward_hook(lambda _, args, out, name=name, axis=axis: record(name, axis, args[0], out))
    return seen


def assert_certificates_hold(ledger: nd.Ledger, seen: Seen, model: nn.Module) -> None:
    """What entered an activation never exceeds its bound, and what is bounded by its zero region is exactly zero."""
    edges = {name: ZERO_UP_TO.get(type(act), -math.inf) for name, (act, _) in watched(model).items()}
    for unit in ledger.units:
        if unit.layer not in seen or unit.bound is None:
            continue
        entered, left = (float(top[unit.index]) for top in seen[unit.layer])
        assert entered <= unit.bound, f"{unit.layer}[{unit.index}] reached {entered}, bound {unit.bound}"
        if unit.bound <= edges[unit.layer]:
            assert left == 0.0, f"{unit.layer}[{unit.index}] has bound {unit.bound} and gave {left}"


def sensitivity(model: nn.Module, inputs: tuple[Tensor, ...], mode: str, scale: list[float]) -> float:
    """How much relative changes of inputs and parameters grow on their way to the outputs.

    A norm over a few values that are nearly equal makes much of any rounding at all.
    """
    generator, found = torch.Generator().manual_seed(0), 0.0

    def moved(value: Tensor) -> Tensor:
        return value * (1 + STEP * (2 * torch.rand(value.shape, generator=generator, dtype=value.dtype) - 1))

    old = run(model, inputs, mode)
    for _ in range(4):
        other = copy.deepcopy(model)
        for parameter in other.parameters():
            parameter.copy_(moved(parameter))
        found = max(found, difference(old, run(other, tuple(moved(x) for x in inputs), mode), scale) / STEP)
    return found


@contextmanager
def exported_once() -> Iterator[None]:
    """Networks of equal sizes, in one mode, are exported once: that is nearly all of the checker's time.

    Of an exported program, the checker takes what is computed; the weights are those of the network it is given.
    """
    export, made = torch.export.export, dict[Any, Any]()

    def again(module: nn.Module, *arguments: Any, **options: Any) -> Any:
        key = (module.training, *((name, value.shape) for name, value in module.state_dict().items()))
        if key not in made:
            made[key] = export(copy.deepcopy(module), *arguments, **options)  # the module's own weights will be cut
        return made[key]

    torch.export.export = again
    try:
        yield
    finally:
        torch.export.export = export


def check(drawn: list[Description]) -> nd.Ledger:
    """Compact some networks together and compare each with what it was."""
    model, domains = Networks(drawn), [description.domain for description in drawn]
    before = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(0)
    samples = list(inputs_of(drawn, generator))
    with exported_once(), TemporaryDirectory() as folder:
        file = Path(folder) / "ledger.jsonl"
        ledger = nd.compact_(model, samples[0], domains, on_collapse="keep", ledger=file)
        if ledger.removed:
            verdict = verify(before, model, samples[0], domains, ledger=file)
            assert verdict.status == "proved", verdict
            verdict = verify(before, model, samples[0], domains, tries=4)
            assert verdict.status != "refuted", verdict
    assert_accounted(ledger, widths(before), widths(model))
    seen = watch(before)
    for mode in ("eval", "train"):
        with torch.no_grad():
            olds, news = ([run(each, inputs, mode) for inputs in samples] for each in (before, model))
        for old, new, inputs in zip(olds, news, samples, strict=True):
            gap = difference(old, new, scales(olds))
            if gap > TOLERANCE:
                with torch.no_grad():
                    growth = sensitivity(before, inputs, mode, scales(olds))
                allowed = 50 * growth * torch.finfo(torch.float64).eps
                assert gap <= allowed, f"{mode} mode: outputs differ by {gap:.1e}, rounding explains {allowed:.1e}"
    assert_certificates_hold(ledger, seen, before)
    return ledger


def drawn_from(number: int) -> list[Description]:
    """Some networks, from a seed.

    The first that Hypothesis draws are the simplest there are, the same for every seed: they are left out.
    """
    drawn: list[list[Description]] = []
    once = settings(
        max_examples=3, database=None, deadline=None, phases=(Phase.generate,), suppress_health_check=list(HealthCheck)
    )
    wanted = st.lists(descriptions(), min_size=TOGETHER, max_size=TOGETHER)

    def draw(these: list[Description]) -> None:
        drawn.append(these)

    seed(number)(once(given(wanted)(draw)))()
    return drawn[-1]


def outcome(number: int) -> tuple[int, list[str]]:
    """Compact the networks of a seed together: how many certificates hold, and what fails."""
    drawn = drawn_from(number)
    try:
        return len(check(drawn).removed), []
    except Exception as problem:
        found = []
        for description in drawn:
            try:
                check([description])
            except Exception as error:
                found.append(f"{description}: {error}")
        return 0, found or [f"together only, chunk {number}: {problem}"]


@pytest.mark.parametrize("number", range(FIRST, FIRST + WANTED // TOGETHER))
def test_random_networks(number: int) -> None:
    assert outcome(number)[1] == []


def test_every_chunk_is_another_one() -> None:
    chunks = [tuple(map(str, drawn_from(number))) for number in (0, 1, FIRST, FIRST + 1)]
    assert len({network for chunk in chunks for network in chunk}) == len(chunks) * TOGETHER


def test_a_unit_goes_by_the_larger_bound_of_its_gate() -> None:
    """Its gate may fire a little, and what both make is dead at the next activation; the checker once refuted that."""
    gate, scaled = Block("gate", 4, "none", "batch", 2), Block("scaled", 4, "relu6", "batch", 9)
    drawn = Description((gate, scaled, Block("pool", 6, "leaky", "batch", 3)), False, (-2.0, -0.5), False, 3.0, 957)
    assert len(check([drawn]).removed) == 4


def test_many_planted_units_go() -> None:
    """The check above can only fail where something is removed."""
    blocks = [Block(kind, 8, "relu", "none", 1) for kind in ("dense", "residual", "gate", "shared")]
    drawn = [Description((block,), True, (-1.0, 1.0), False, 1.0, seed) for seed, block in enumerate(blocks)]
    ledger = check(drawn)
    assert {certificate.kind for certificate in ledger.removed} == {"dead", "constant", "unread"}
    assert len(ledger.removed) >= 8
