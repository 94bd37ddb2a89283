"""What inputs lie in, as commands are told: a pair of numbers, or the mean and deviation that they are scaled by."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

HELP = "What an input lies in, LO,HI, or mean=M,M,M:std=S,S,S of values in [0, 1]; repeated, one per input, or none."
DomainOption = Annotated[list[str] | None, typer.Option("--domain", metavar="LO,HI", help=HELP)]


def domain_of(texts: Sequence[str] | None) -> Any:
    """One domain for all inputs, or a list with one for each; [0, 1] if nothing was said.

    >>> domain_of(None), domain_of(["-1,1"]), domain_of(["0,1", "none"])
    ((0.0, 1.0), (-1.0, 1.0), [(0.0, 1.0), None])
    """
    found = [_one(text) for text in texts or ["0,1"]]
    return found[0] if len(found) == 1 else found


def part_of(domain: Any, number: int) -> Any:
    """The domain of one input."""
    return (domain[number] if number < len(domain) else None) if isinstance(domain, list) else domain


def _one(text: str) -> Any:
    if text == "none":
        return None
    if text.startswith("mean="):
        return _normalised(text)
    try:
        lo, hi = map(float, text.split(","))
    except ValueError:
        lo, hi = 1.0, 0.0
    if not -math.inf < lo < hi < math.inf:
        raise InputError(
            f"--domain needs two numbers such as 0,1, the smaller one first, or mean=0.5,0.5,0.5:std=0.2,0.2,0.2, and "
            f"got '{text}'"
        )
    return lo, hi


def _normalised(text: str) -> Any:
    from ..bounds import Box

    try:
        mean, std = ([float(n) for n in part.partition("=")[2].split(",")] for part in text.split(":"))
        fine = len(mean) == len(std) and text.split(":")[1].startswith("std=")
    except ValueError:
        fine = False
    if not fine:
        raise InputError(f"--domain needs as many numbers for mean as for std, and got '{text}'")
    return Box.normalised(mean, std)


def ends(domain: Any, shape: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Both ends of an input's domain, along the channels or features of its shape; [0, 1] where none is declared."""
    import torch

    from ..bounds.domain import along

    lo, hi = (0.0, 1.0) if domain is None else domain if isinstance(domain, tuple) else (domain.lo, domain.hi)
    low, high = (torch.as_tensor(end, dtype=torch.float64) for end in (lo, hi))
    spread = along(low, shape), along(high, shape)
    if spread[0] is None or spread[1] is None:
        raise InputError(
            f"--domain has {len(low)} means and deviations, and an input of shape {tuple(shape)} has no {len(low)} "
            "channels or features"
        )
    return spread[0], spread[1]


def drawn(shape: Sequence[int], domain: Any, seed: int) -> Tensor:
    """Numbers somewhere in the domain."""
    import torch

    low, high = ends(domain, shape)
    share = torch.rand(list(shape), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (share * (high - low) + low).clamp(low, high)


def outside(values: Tensor, domain: Any) -> str | None:
    """How values leave their domain, in words; None if they do not."""
    low, high = ends(domain, values.shape)
    if domain is None or bool(((values >= low) & (values <= high)).all()):
        return None
    least, most = float(values.min()), float(values.max())
    return f"lie between {least:.6g} and {most:.6g}, outside the domain [{float(low.min()):g}, {float(high.max()):g}]"
