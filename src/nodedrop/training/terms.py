"""The penalty of a layer: which form it has, and what bounds the inputs of the layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from .. import functional
from ..bounds import Interval
from ..errors import InputError
from ..functional.penalties import (
    check_constant,
    unit_penalties,
    unit_penalties_bn,
    unit_penalties_gn,
    unit_penalties_ln,
)
from ..functional.spared import check_multiple, sum_units
from ..functional.units import check_count
from .targets import Behind, Target

BatchCount = Literal["elements", "batch", "channels"] | float
_Names = tuple[str | None, ...]
_Places = tuple[Tensor | None, Tensor | None, int]


@dataclass(frozen=True)
class Penalties:
    """What the penalties of all layers have in common; see `NodeDrop` for the values."""

    C: float
    form: str
    norm_form: str
    m: BatchCount
    multiple: int

    def __post_init__(self) -> None:
        check_constant(self.C)
        check_multiple(self.multiple)
        if isinstance(self.m, int | float):
            check_count(self.m)
        elif self.m not in ("elements", "batch", "channels"):
            raise InputError(f"m must be 'elements', 'batch', 'channels' or a number, not {self.m!r}")
        if self.form not in functional.PENALTY_FORMS:
            raise InputError(f"form must be one of {', '.join(functional.PENALTY_FORMS)}, not {self.form!r}")
        if self.norm_form not in functional.NORM_PENALTY_FORMS:
            names = ", ".join(functional.NORM_PENALTY_FORMS)
            raise InputError(f"norm_form must be one of {names}, not {self.norm_form!r}")

    def term(
        self, target: Target, tensors: Mapping[str, Tensor], batch: int, domain: Mapping[str, Interval]
    ) -> partial[Tensor]:
        """One layer's, but for `spare`, for training batches of this size and inputs of the network in this domain."""
        names, parts = list[str | None](), list[_Part]()
        for own, each, units in self._forms(target, tensors, batch, domain):
            parts.append(_Part(slice(len(names), len(names) + len(own)), each, *units))
            names += own
        given = [None if name is None else tensors[name] for name in names]
        return partial(_sum, *given, parts=parts, multiple=self.multiple)

    def _forms(
        self, target: Target, tensors: Mapping[str, Tensor], batch: int, domain: Mapping[str, Interval]
    ) -> Iterator[tuple[_Names, Callable[..., Tensor], _Places]]:
        """What counts for a layer's units: names of tensors, the penalties of single units, which of them are whose."""
        order = {unit: place for place, unit in enumerate(target.pressed)}
        if target.direct:
            names, each = self._own(target, tensors, domain)
            rows = {unit: order[unit] for unit in target.direct}
            yield names, each, _places(rows, target.units(tensors[target.weight]), len(order))
        for norm in target.norms:
            count = self._count(norm, tensors, batch)
            each = partial(unit_penalties_bn, m=count, C=self.C, form=self.norm_form)
            rows = {row: order[unit] for row, unit in norm.units.items()}
            yield (norm.scale, norm.shift), each, _places(rows, len(tensors[norm.scale]), len(order))

    def _own(
        self, target: Target, tensors: Mapping[str, Tensor], domain: Mapping[str, Interval]
    ) -> tuple[_Names, Callable[..., Tensor]]:
        """By weight and bias, where no batch norm follows the layer."""
        norm, own, weight = target.reads, (target.weight, target.bias), tensors[target.weight]
        if norm is None:
            lo, hi = _ends(target, weight, domain)
            each = partial(
                _own_units, each=unit_penalties, C=self.C, form=self.form, lo=lo, hi=hi, groups=target.groups,
                transposed=target.transposed,
            )  # fmt: skip
            plain = isinstance(lo, float) and (lo, hi) == (0.0, 1.0) and weight.dtype in (torch.float32, torch.float64)
            return own, each if plain else _again(each)
        names = (*own, norm.scale, norm.shift)
        if norm.kind == "group":
            each = partial(
                _own_units, each=unit_penalties_gn, count=norm.count, C=self.C, form=self.norm_form,
                rectified=norm.rectified, groups=target.groups,
            )  # fmt: skip
        else:
            each = partial(_own_units, each=unit_penalties_ln, C=self.C, form=self.norm_form, rms=norm.kind == "rms")
        return names, _again(each)

    def _count(self, norm: Behind, tensors: Mapping[str, Tensor], batch: int) -> float:
        if self.m == "elements":
            return float(batch * norm.positions)
        if self.m == "batch":
            return float(batch)
        if self.m == "channels":
            return float(len(tensors[norm.scale]))
        return float(self.m)


@dataclass(frozen=True)
class _Part:
    """Some of a term's tensors, what they say of single units, and of these `rows` the `places` among the layer's."""

    tensors: slice
    each: Callable[..., Tensor]
    rows: Tensor | None
    places: Tensor | None
    size: int


def _places(rows: Mapping[int, int], size: int, units: int) -> _Places:
    """Rows and their places; None if all are in order, as behind a norm that no other layer has."""
    if list(rows.items()) == [(k, k) for k in range(size)] and size == units:
        return None, None, units
    return torch.tensor(list(rows)), torch.tensor(list(rows.values())), units


def _sum(*tensors: Tensor | None, parts: Sequence[_Part], spare: float, multiple: int) -> Tensor:
    """Over the units that are not spared; what a unit meets at several places is added before they are chosen."""
    total: Tensor | None = None
    for part in parts:
        each = part.each(*tensors[part.tensors])
        if part.rows is not None and part.places is not None:
            rows, places = part.rows.to(each.device), part.places.to(each.device)
            each = each.new_zeros(part.size).index_add(0, places, each[rows])
        total = each if total is None else total + each
    assert total is not None
    return sum_units(total, spare, multiple)


def _again(each: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Computed once more for backward: what is scaled or widened on the way would be kept, a copy of all weights."""
    return partial(checkpoint, each, use_reentrant=False, preserve_rng_state=False)


def _own_units(
    weight: Tensor, bias: Tensor | None, *norm: Tensor | None, each: Callable[..., Tensor], **options: Any
) -> Tensor:
    """A bias that is added by hand may have axes of one beside it."""
    return each(weight, None if bias is None else bias.flatten(), *norm, **options)


def _ends(target: Target, weight: Tensor, domain: Mapping[str, Interval]) -> tuple[Any, Any]:
    """What a layer's inputs lie between: the domain if they are the network's, else 0 and 1, as in the paper."""
    box = domain.get(target.source or "")
    if box is None or not bool(box.lo.isfinite().all() and box.hi.isfinite().all()):
        return 0.0, 1.0
    inputs = weight.shape[0] if target.transposed else weight.shape[1] * target.groups
    if box.lo.numel() == inputs > 1 and not target.left:
        return box.lo.flatten(), box.hi.flatten()
    return float(box.lo.min()), float(box.hi.max())
