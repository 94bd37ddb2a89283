"""The penalty of a layer: which form it has, and what bounds the inputs of the layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from torch import Tensor

from .. import functional
from ..bounds import Interval
from ..errors import InputError
from .norms import Norm
from .targets import Target

BatchCount = Literal["elements", "batch", "channels"] | float


@dataclass(frozen=True)
class Penalties:
    """What the penalties of all layers have in common; see `NodeDrop` for the values."""

    C: float
    form: str
    norm_form: str
    m: BatchCount
    multiple: int

    def __post_init__(self) -> None:
        if not self.C > 0:
            raise InputError(f"C must be above 0, not {self.C}")
        if not isinstance(self.m, int | float) and self.m not in ("elements", "batch", "channels"):
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
        return partial(self._form(target, tensors, batch, domain), C=self.C, multiple=self.multiple)

    def _form(
        self, target: Target, tensors: Mapping[str, Tensor], batch: int, domain: Mapping[str, Interval]
    ) -> partial[Tensor]:
        if target.scale is not None and target.shift is not None:
            affine, count = (tensors[target.scale], tensors[target.shift]), self._count(target, tensors, batch)
            return partial(functional.penalty_bn, *affine, count, form=self.norm_form)
        weight, bias = tensors[target.weight], tensors[target.bias] if target.bias is not None else None
        if target.reads is not None:
            return partial(_reading(target.reads, target, tensors), form=self.norm_form)
        lo, hi = _ends(target, weight, domain)
        return partial(
            functional.penalty, weight, bias, form=self.form, lo=lo, hi=hi, groups=target.groups,
            transposed=target.transposed,
        )  # fmt: skip

    def _count(self, target: Target, tensors: Mapping[str, Tensor], batch: int) -> float:
        if self.m == "elements":
            return float(batch * target.positions)
        if self.m == "batch":
            return float(batch)
        if self.m == "channels":
            return float(len(tensors[target.scale or target.weight]))
        return float(self.m)


def _reading(norm: Norm, target: Target, tensors: Mapping[str, Tensor]) -> partial[Tensor]:
    """The penalty of a layer whose inputs a norm bounds."""
    weight = tensors[target.weight]
    bias, scale, shift = (None if name is None else tensors[name] for name in (target.bias, norm.scale, norm.shift))
    if norm.kind == "group":
        return partial(
            functional.penalty_gn, weight, bias, scale, shift, count=norm.count, rectified=norm.rectified,
            groups=target.groups,
        )  # fmt: skip
    return partial(functional.penalty_ln, weight, bias, scale, shift, rms=norm.kind == "rms")


def _ends(target: Target, weight: Tensor, domain: Mapping[str, Interval]) -> tuple[Any, Any]:
    """What a layer's inputs lie between: the domain if they are the network's, else 0 and 1, as in the paper."""
    box = domain.get(target.source or "")
    if box is None or not bool(box.lo.isfinite().all() and box.hi.isfinite().all()):
        return 0.0, 1.0
    inputs = weight.shape[0] if target.transposed else weight.shape[1] * target.groups
    if box.lo.numel() == inputs > 1:
        return box.lo.flatten(), box.hi.flatten()
    return float(box.lo.min()), float(box.hi.max())
