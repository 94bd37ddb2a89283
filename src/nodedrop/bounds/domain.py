"""The declared input domain: a box per input, per channel where that is wanted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..errors import InputError
from ..tracing.graph import Graph, Node
from .interval import INF, Interval, unbounded


@dataclass(frozen=True)
class Box:
    """lo ≤ x ≤ hi for one input; numbers, or tensors that broadcast against the input.

    >>> Box(0.0, 1.0)
    Box(lo=0.0, hi=1.0)
    >>> mean, std = torch.tensor([0.49, 0.48, 0.45]), torch.tensor([0.25, 0.24, 0.26])
    >>> box = Box.normalised(mean, std)          # images in [0, 1], then (x - mean) / std
    >>> tuple(box.lo.shape)
    (3,)

    One number for each channel or feature lies along the second axis of an input of three or more, if that is as long,
    and along the last one otherwise.
    """

    lo: float | Tensor
    hi: float | Tensor

    @classmethod
    def normalised(cls, mean: Any, std: Any, lo: float = 0.0, hi: float = 1.0) -> Box:
        """The box of values in [lo, hi] after `(x - mean) / std`, per channel of images or per feature of a table.

        Raw values that do not lie in [0, 1] need `lo` and `hi`; for a table there is `Box(x.amin(0), x.amax(0))`, too.
        """
        mean, std = (torch.as_tensor(v, dtype=torch.float64) for v in (mean, std))
        if not bool((std > 0).all()):
            raise InputError("std must be above 0 for every channel")
        slack = 4 * 2.0**-24 * (abs(lo) + abs(hi) + mean.abs()) / std  # data is normalised in single
        return cls((lo - mean) / std - slack, (hi - mean) / std + slack)

    def interval(self, node: Node) -> Interval:
        """The box as bounds of one input, checked against its shape."""
        ends = []
        for name, end in (("lo", self.lo), ("hi", self.hi)):
            try:
                tensor = torch.as_tensor(end, dtype=torch.float64).detach().cpu()
            except (TypeError, ValueError, RuntimeError):
                raise InputError(f"domain of input '{node.target}': {name} is {end!r}, not a number") from None
            if tensor.isnan().any():
                raise InputError(f"domain of input '{node.target}': {name} is NaN")
            if _reads_both_ways(tensor, node.shape):
                raise InputError(
                    f"domain of input '{node.target}': {name} of shape {tuple(tensor.shape)} fits the second and the "
                    f"last axis of the input's shape {node.shape}; say which, by {name}.view(-1, "
                    f"{', '.join('1' * (len(node.shape) - 2))}) or {name}.view(1, -1)"
                )
            spread = along(tensor, node.shape)
            if spread is None:
                raise InputError(
                    f"domain of input '{node.target}': {name} of shape {tuple(tensor.shape)} does not fit the input's "
                    f"shape {node.shape}; give a number, one value per channel or feature, as nd.Box(lo, hi), or a "
                    "tensor that broadcasts"
                )
            ends.append(spread)
        lo, hi = torch.broadcast_tensors(*ends)
        if (lo == INF).any() or (hi == -INF).any():
            raise InputError(f"domain of input '{node.target}': lo must be below and hi above infinity")
        if (lo > hi).any():
            raise InputError(f"domain of input '{node.target}': lo > hi ({float(lo.max()):g} > {float(hi.min()):g})")
        return Interval(lo.contiguous(), hi.contiguous(), node.shape)


def _reads_both_ways(end: Tensor, shape: Sequence[int]) -> bool:
    """Whether one number for each of something may be meant for either of two axes, and that makes a difference."""
    both = end.dim() == 1 and len(shape) > 2 and len(end) == shape[1] == shape[-1]
    return both and bool((end != end[0]).any())


def along(end: Tensor, shape: Sequence[int]) -> Tensor | None:
    """One end of a box with as many axes as an input has, one value per channel along the channels; None if none fits.

    >>> along(torch.zeros(3), (2, 3, 8, 8)).shape, along(torch.zeros(3), (2, 3)).shape, along(torch.zeros(3), (2, 4))
    (torch.Size([1, 3, 1, 1]), torch.Size([1, 3]), None)
    """
    if end.dim() == 1 and len(shape) > 2 and len(end) == shape[1]:
        end = end.reshape(-1, *([1] * (len(shape) - 2)))
    if end.dim() > len(shape):
        return None
    end = end.reshape((1,) * (len(shape) - end.dim()) + tuple(end.shape))
    return end if all(own in (1, size) for own, size in zip(end.shape, shape, strict=True)) else None


def as_box(domain: Any, name: str) -> Box | None:
    """A Box from `(lo, hi)`, a Box, or None for an input without a domain (token indices)."""
    if domain is None or isinstance(domain, Box):
        return domain
    if isinstance(domain, Sequence) and len(domain) == 2 and not any(isinstance(end, Box | str) for end in domain):
        try:
            return Box(*(end if isinstance(end, Tensor) else float(end) for end in domain))
        except (TypeError, ValueError):
            pass
    raise InputError(f"domain of input '{name}' must be (lo, hi), a Box or None, not {domain!r}")


def boxes(graph: Graph, domain: Any) -> dict[str, Interval]:
    """Bounds of every input. One domain serves all floating inputs; a dict or list gives one per input."""
    tensors = [node for node in graph.inputs if node.is_tensor]
    if graph.part:
        return {node.name: unbounded(node.shape) for node in tensors}
    per_input: dict[str, Any]
    if isinstance(domain, Mapping):
        known = {node.target for node in tensors}
        if strange := sorted(set(domain) - known, key=str):
            raise InputError(f"domain names input '{strange[0]}', but the model's inputs are {sorted(known)}")
        per_input = {node.name: domain.get(node.target) for node in tensors}
    elif _one_per_input(domain):
        if len(domain) != len(tensors):
            raise InputError(f"domain has {len(domain)} entries, but the model has {len(tensors)} tensor inputs")
        per_input = {node.name: item for node, item in zip(tensors, domain, strict=True)}
    else:
        floating = {node.name for node in tensors if node.dtype is not None and _is_data(node.dtype)}
        per_input = {node.name: domain if node.name in floating else None for node in tensors}
    found = {}
    for node in tensors:
        box = as_box(per_input[node.name], node.target)
        found[node.name] = unbounded(node.shape) if box is None else box.interval(node)
    return found


def described(box: Interval) -> str:
    """A box in a few words.

    >>> described(Interval(torch.zeros(1), torch.ones(1), (3,))), described(unbounded((3,)))
    ('[0, 1]', '(-∞, ∞)')
    """
    lo, hi = float(box.lo.min()), float(box.hi.max())
    ends = f"{f'[{lo:.4g}' if lo > -INF else '(-∞'}, {f'{hi:.4g}]' if hi < INF else '∞)'}"
    return ends if box.lo.numel() == 1 else f"a box within {ends}"


def _is_data(dtype: torch.dtype) -> bool:
    """Pixels and numbers have a range; wider integers are indices."""
    return dtype.is_floating_point or dtype is torch.uint8


def _one_per_input(domain: Any) -> bool:
    if isinstance(domain, Box) or domain is None or not isinstance(domain, Sequence):
        return False
    numbers = any(isinstance(item, int | float | Tensor) for item in domain)
    return not numbers and any(item is None or isinstance(item, Box | list | tuple) for item in domain)
