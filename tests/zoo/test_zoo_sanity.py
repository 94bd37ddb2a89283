"""The zoo against itself: planted units are dead and all others are alive, seen without the library's help.

Two views that share nothing with the analysis. The values: what a killed layer computes never exceeds the
planted level. The gradients: the weights of a unit that must go have gradient exactly zero on every input in
both modes, the weights of every other unit do not. So the expectation names all dead units, and no other.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from . import ZOO, Entry, Plant, plant
from .blocks import WEIGHTED
from .external import external_entries
from .planting import Target, find, is_box, row

LARGEST = 60_000
FEW, MANY = 2, 10  # it takes many to see every unit alive
ENTRIES = {**ZOO, **external_entries()}


def every_entry(test):  # type: ignore[no-untyped-def]
    return pytest.mark.parametrize("entry", ENTRIES.values(), ids=ENTRIES)(test)


def built(entry: Entry, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return entry.build()


def corner(value: Tensor, domain: object, generator: torch.Generator, whole: bool) -> Tensor:
    """`value` at the ends of its intervals, chosen for each element or for a whole channel at once."""
    if domain is None:
        return value
    lo, hi = (torch.as_tensor(end, dtype=value.dtype).expand(value.shape) for end in domain)
    shape = (*value.shape[:2], *[1 if whole else size for size in value.shape[2:]])
    return torch.where(torch.rand(shape, generator=generator) < 0.5, lo, hi)


def domains(entry: Entry, names: list[object]) -> dict[object, object]:
    if entry.domain is None or is_box(entry.domain):
        return dict.fromkeys(names, entry.domain)
    return {name: entry.domain[name] for name in names}  # type: ignore[index]


def samples(entry: Entry, batches: int) -> Iterator[tuple[Tensor, ...] | dict[str, Tensor]]:
    """Random inputs of the entry, and corners of its domain."""
    generator = torch.Generator().manual_seed(1)
    for batch in range(batches):
        inputs = entry.inputs(generator)
        yield inputs
        named = inputs if isinstance(inputs, dict) else dict(enumerate(inputs))
        box = domains(entry, list(named))
        ends = {name: corner(value, box[name], generator, batch % 2 == 0) for name, value in named.items()}
        yield ends if isinstance(inputs, dict) else tuple(ends.values())


def run(model: nn.Module, inputs: tuple[Tensor, ...] | dict[str, Tensor]) -> list[Tensor]:
    """All floating-point outputs."""
    out = model(**inputs) if isinstance(inputs, dict) else model(*inputs)
    values = out.values() if isinstance(out, dict) else out if isinstance(out, tuple) else (out,)
    return [value for value in values if isinstance(value, Tensor) and value.is_floating_point()]


def layers(model: nn.Module, entry: Entry) -> dict[str, tuple[Target, int]]:
    """Every weighted module by path, and what plants name besides, with the unit axis of raw parameters."""
    found: dict[str, tuple[Target, int]] = {}
    seen: set[int] = set()
    for path, module in model.named_modules():
        if isinstance(module, WEIGHTED) and id(module.weight) not in seen:
            seen.add(id(module.weight))
            found[path] = (module, 0)
    for item in entry.plants:
        for path in item.removed:
            found.setdefault(path, (find(model, path), item.axis))
    return found


def unit_gradients(target: Target, axis: int) -> Tensor:
    """Largest |gradient| over the weights of each unit."""
    weight = target if isinstance(target, nn.Parameter) else target.weight
    assert weight.grad is not None
    holder = nn.Parameter(weight.grad.abs()) if isinstance(target, nn.Parameter) else target
    if isinstance(holder, nn.Parameter):
        return torch.stack([row(holder, unit, axis).amax() for unit in range(holder.shape[axis])])
    kept, weight.data = weight.data, weight.grad.abs()
    try:
        return torch.stack([row(target, unit).amax() for unit in range(width(target))])
    finally:
        weight.data = kept


def width(module: nn.Module) -> int:
    """Number of units."""
    for name in ("out_channels", "out_features", "embedding_dim"):
        if hasattr(module, name):
            return int(getattr(module, name))
    return int(module.weight.shape[-1 if type(module).__name__ == "Conv1D" else 0])


def gradients(model: nn.Module, entry: Entry) -> dict[str, Tensor]:
    """Largest |gradient| of random functionals of the outputs, per layer and unit, over samples and modes."""
    top: dict[str, Tensor] = {}
    for training in (True, False):
        model.train(training)
        for inputs in samples(entry, MANY):
            model.zero_grad()
            sum((value * torch.randn_like(value)).sum() for value in run(model, inputs)).backward()
            for path, (target, axis) in layers(model, entry).items():
                weight = target if isinstance(target, nn.Parameter) else target.weight
                if weight.grad is not None:
                    found = unit_gradients(target, axis)
                    top[path] = torch.maximum(top[path], found) if path in top else found
    return top


@every_entry
def test_builds_alike_and_runs_in_both_modes(entry: Entry) -> None:
    model, again = built(entry), built(entry)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    if entry.name in ZOO:
        assert sum(p.numel() for p in model.parameters()) < LARGEST
    for training in (True, False):
        model.train(training)
        for inputs in samples(entry, FEW):
            for value in run(model, inputs):
                assert value.shape[0] >= 2
                assert value.isfinite().all()


@every_entry
def test_names_in_the_expectation_exist(entry: Entry) -> None:
    model = built(entry)
    expected = plant(model, entry)
    for path in (*entry.pinned_layers, *(layer for item in entry.plants for layer in item.stays)):
        find(model, path)
    for path, units in expected.items():
        target, axis = layers(model, entry)[path]
        count = target.shape[axis] if isinstance(target, nn.Parameter) else width(target)
        assert units, path
        assert max(units) < count
        assert len(units) < count, f"{path} would be emptied"
    assert not set(entry.pinned_layers) & expected.keys()


def values_of_killed(model: nn.Module, entry: Entry) -> Iterator[tuple[Plant, str, Tensor]]:
    """For each sample what the killed units compute, as (unit, rest)."""
    caught: list[tuple[Plant, str, Tensor]] = []

    def hook(item: Plant, path: str):  # type: ignore[no-untyped-def]
        def catch(module: nn.Module, args: object, out: Tensor) -> None:
            last = isinstance(module, nn.Linear | nn.Embedding) or type(module).__name__ == "Conv1D"
            units = out.movedim(-1 if last else 1, 0)[list(item.indices)]
            caught.append((item, path, units.detach().flatten(1)))

        return catch

    for item in entry.plants:
        for path in item.kill:
            module = find(model, path)
            if isinstance(module, nn.Module) and item.how != "unread":
                module.register_forward_hook(hook(item, path))
    for training in (True, False):
        model.train(training)
        for inputs in samples(entry, FEW):
            run(model, inputs)
            yield from caught
            caught.clear()


@every_entry
def test_killed_units_stay_where_they_were_put(entry: Entry) -> None:
    model = built(entry)
    plant(model, entry)
    for item, path, values in values_of_killed(model, entry):
        if item.how == "null":
            assert (values == 0).all(), path
        elif item.how == "saturate":
            assert (values >= 1.4).all(), path
        elif item.how == "faint":
            assert (values < 0).all(), path
        else:
            edge = item.level if getattr(find(model, path), "bias", None) is not None else 0.0
            assert (values <= edge + 1e-4).all(), path


@every_entry
def test_expected_units_are_dead_and_all_others_alive(entry: Entry) -> None:
    model = built(entry)
    expected = plant(model, entry)
    spared: dict[str, set[int]] = {}
    for item in entry.plants:
        for layer in item.stays:
            spared.setdefault(layer, set()).update(item.at(layer))
        if item.how == "null":  # zero without an activation: its own weights could wake it
            for layer in item.kill:
                spared.setdefault(layer, set()).update(item.indices)
    for path, found in gradients(model, entry).items():
        gone, unsure = expected.get(path, set()), spared.get(path, set())
        moving = set(found.nonzero().flatten().tolist())
        assert not moving & (gone - unsure), f"{path}: alive {sorted(moving & gone)}"
        still = set(range(len(found))) - moving
        assert still <= gone | unsure, f"{path}: dead but not expected {sorted(still - gone - unsure)}"
