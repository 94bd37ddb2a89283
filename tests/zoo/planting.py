"""Plants dead units in a network and knows which units must go because of them.

A plant edits parameters so that some units provably never fire (or are constant, or are never read), and
names the layers that lose units as a consequence. What follows from a plant is written down by hand, per
network: it is the specification that analysis and surgery are held against.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvTransposeNd


@dataclass(frozen=True)
class Plant:
    """Units killed together, and the layers that lose units for it.

    `how` is one of `VERBS`. `level` is what the unit computes at most, below the edge of the activation's
    zero region. `stays` names layers whose units are dead at these indices and must be kept nevertheless,
    because removing them would change the result or the shapes.
    """

    kill: tuple[str, ...]  # modules, or raw parameters by their full name, whose values are edited
    removed: tuple[str, ...]  # layers that must lose units, named by the weight's module or the raw parameter
    indices: tuple[int, ...]  # units, in every killed and removed layer unless `removed_at` says otherwise
    removed_at: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    how: str = "auto"
    level: float = -0.5
    box: tuple[object, object] | None = None  # "bound", "saturate": what the layer reads; default, the domain
    norm: str = ""  # "norm": path of the norm in front of the layer
    fed: tuple[int, ...] = ()  # "follows": the dead inputs
    spread: int = 1  # "unread": columns of the reader per unit (H·W after a flatten)
    axis: int = 0  # unit axis of a raw parameter
    stays: tuple[str, ...] = ()

    def at(self, layer: str) -> tuple[int, ...]:
        """The units of `layer` that this plant concerns."""
        return tuple(self.removed_at.get(layer, self.indices))


@dataclass(frozen=True)
class Entry:
    """A network, what it may be fed, and what is planted in it.

    `domain` is (lo, hi), or a list / dict with one per input; lo and hi are numbers, or tensors that
    broadcast against one sample; None for token inputs. Units of `pinned_layers` must all be reported as
    pinned.
    """

    name: str
    build: Callable[[], nn.Module]  # deterministic given torch.manual_seed
    inputs: Callable[[torch.Generator], tuple[Tensor, ...] | dict[str, Tensor]]
    domain: object
    plants: tuple[Plant, ...]
    pinned_layers: tuple[str, ...] = ()
    tags: frozenset[str] = frozenset()


Target = nn.Module | nn.Parameter


def find(model: nn.Module, path: str) -> Target:
    """The module at `path`, or the raw parameter of that full name."""
    parent, _, last = path.rpartition(".")
    found = getattr(model.get_submodule(parent), last)
    if not isinstance(found, nn.Module | nn.Parameter):
        raise TypeError(f"{path} is a {type(found).__name__}, expected a module or a parameter")
    return found


def row(target: Target, unit: int, axis: int = 0) -> Tensor:
    """A view of the weights that make `unit`: editing it edits the model."""
    if isinstance(target, nn.Parameter):
        return target.data.select(axis, unit)
    weight = target.weight.data
    if isinstance(target, _ConvTransposeNd):  # weight is [in, out / groups, ...]
        group, column = divmod(unit, weight.shape[1])
        fan_in = weight.shape[0] // target.groups
        return weight[group * fan_in : (group + 1) * fan_in, column]
    if (
        isinstance(target, nn.Embedding) or type(target).__name__ == "Conv1D"
    ):  # the latter, of transformers, is [in, out]
        return weight[:, unit]
    return weight[unit]


def set_bias(target: Target, unit: int, value: float | Tensor) -> None:
    bias = getattr(target, "bias", None)
    if bias is not None:
        bias.data[unit] = value


def zero(model: nn.Module, target: Target, unit: int, plant: Plant) -> None:
    """Row zero, bias `level`: the unit computes `level` whatever it reads. Also γ = 0, β = `level`."""
    if isinstance(target, nn.Parameter) and target.ndim == 1:
        target.data[unit] = plant.level
        return
    row(target, unit, plant.axis).zero_()
    set_bias(target, unit, plant.level)


def null(model: nn.Module, target: Target, unit: int, plant: Plant) -> None:
    """Row and bias zero: dead without any activation."""
    row(target, unit, plant.axis).zero_()
    set_bias(target, unit, 0.0)


def faint(model: nn.Module, target: Target, unit: int, plant: Plant) -> None:
    """|γ| tiny instead of zero: training mode needs |x̂| ≤ √(m−1), or |x̂| ≤ (hi−lo)/√ε for any batch."""
    row(target, unit, plant.axis).mul_(1e-5)
    set_bias(target, unit, plant.level)


def nonpositive(model: nn.Module, target: Target, unit: int, plant: Plant) -> None:
    """No positive weight: dead for every input ≥ 0."""
    weights = row(target, unit, plant.axis)
    weights.copy_(-weights.abs() - 0.01)
    if isinstance(target, nn.Embedding):
        weights.add_(plant.level)
    set_bias(target, unit, plant.level)


def box_edges(weights: Tensor, plant: Plant) -> tuple[Tensor, Tensor]:
    """Smallest and largest Σ w·x over the box, with 0 in it for the sake of zero padding."""
    assert plant.box is not None, "a single (lo, hi) domain or an explicit box is needed"
    lo, hi = (torch.as_tensor(edge, dtype=weights.dtype) for edge in plant.box)
    ends = torch.stack([weights * lo.clamp(max=0), weights * hi.clamp(min=0)])
    return ends.amin(0).sum(), ends.amax(0).sum()


def bound(model: nn.Module, target: Target, unit: int, plant: Plant) -> None:
    """The interval condition: Σ max(w·lo, w·hi) + b = `level`."""
    _, top = box_edges(row(target, unit), plant)
    set_bias(target, unit, plant.level - top)


def saturate(model: nn.Module, target: Target, unit: int, plant: Plant) -> None:
    """Never below 1.5: the constant 1 behind an activation clamped at 1."""
    bottom, _ = box_edges(row(target, unit), plant)
    set_bias(target, unit, 1.5 - bottom)


def norm(model: nn.Module, target: Target, unit: int, plant: Plant) -> None:
    """Below the norm's ball, ‖x̂‖₂ ≤ √d: √d·‖w∘g‖₂ + w·β + b ≤ `level`."""
    source = find(model, plant.norm)
    weights = row(target, unit)
    reach = weights.numel() ** 0.5 * (weights * source.weight.data).norm()
    shift = getattr(source, "bias", None)
    if shift is not None:
        reach = reach + weights @ shift.data
    set_bias(target, unit, plant.level - reach)


def unread(model: nn.Module, target: Target, unit: int, plant: Plant) -> None:
    """`target` is the reader: its weights on the unit are zero."""
    target.weight.data[:, unit * plant.spread : (unit + 1) * plant.spread] = 0


def follows(model: nn.Module, target: Target, unit: int, plant: Plant) -> None:
    """Positive weights on dead inputs only: dead as soon as those are known to be."""
    nonpositive(model, target, unit, plant)
    weights = row(target, unit)
    weights[list(plant.fed)] = weights[list(plant.fed)].abs() + 1.0


VERBS: Mapping[str, Callable[[nn.Module, Target, int, Plant], None]] = {
    "auto": zero,
    "zero": zero,
    "null": null,
    "faint": faint,
    "nonpositive": nonpositive,
    "bound": bound,
    "saturate": saturate,
    "norm": norm,
    "unread": unread,
    "follows": follows,
}


def is_box(domain: object) -> bool:
    """True for one (lo, hi) that holds for every input."""
    return isinstance(domain, tuple) and len(domain) == 2 and not isinstance(domain[0], tuple)


def resolve(plant: Plant, entry: Entry) -> Plant:
    """`plant` with the box it leaves open taken from the entry's domain."""
    if plant.box is not None or not is_box(entry.domain):
        return plant
    return Plant(**{**vars(plant), "box": entry.domain})


@torch.no_grad()
def plant(model: nn.Module, entry: Entry) -> dict[str, set[int]]:
    """Kill the planted units of `entry` in `model`; returns the units that must go, per layer."""
    expected: dict[str, set[int]] = {}
    for item in entry.plants:
        item = resolve(item, entry)
        for path in item.kill:
            for unit in item.indices:
                VERBS[item.how](model, find(model, path), unit, item)
        for layer in item.removed:
            expected.setdefault(layer, set()).update(item.at(layer))
    return expected
