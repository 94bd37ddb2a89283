"""The independent checker. It shares no code with what makes certificates: numpy, torch and the standard library."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:  # the checker itself is read when it is first used
    from .check import Verdict

__all__ = ["Verdict", "verify"]


def verify(
    before: nn.Module,
    after: nn.Module,
    example_inputs: Any,
    domain: Any = None,
    *,
    ledger: str | os.PathLike[str] | None = None,
    modes: str | Sequence[str] = ("eval", "train"),
    batch_size: int | None = None,
    dtype: torch.dtype | None = None,
    tries: int = 64,
) -> Verdict:
    """Prove or refute that two modules compute the same for every input of the domain, up to rounding.

    `after` must be `before` without some units. With a `ledger`, every certificate in it is derived again as well, and
    domain, modes, batch size and lowest precision are those it states; those but modes that are given must be the same.
    Without, units are matched by their numbers, and the domain is [0, 1] unless given.

    >>> before = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    >>> _ = nn.init.constant_(before[0].bias[:1], -9.0)
    >>> after = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1))
    >>> with torch.no_grad():
    ...     for new, old in zip(after.parameters(), before.parameters()):
    ...         _ = new.copy_(old[tuple(slice(-n, None) for n in new.shape)])
    >>> print(verify(before, after, torch.rand(1, 2)).status)
    proved
    """
    from .check import check

    _require_sensible(before, after, example_inputs, ledger, batch_size)
    chosen = {"both": ("eval", "train")}.get(modes, (modes,)) if isinstance(modes, str) else tuple(modes)
    return check(before, after, example_inputs, domain, ledger, chosen, batch_size, dtype, tries)


def _require_sensible(before: Any, after: Any, example_inputs: Any, ledger: Any, batch_size: Any) -> None:
    """Refuse what is no question."""
    for name, model in (("before", before), ("after", after)):
        if not isinstance(model, nn.Module):
            raise TypeError(f"{name} must be an nn.Module, not {type(model).__name__}")
    if not isinstance(example_inputs, torch.Tensor | Mapping | list | tuple):
        kind = type(example_inputs).__name__
        raise TypeError(f"example_inputs must be a tensor, a tuple or a dict of keyword inputs, not {kind}")
    if ledger is not None and not os.path.isfile(ledger):
        raise ValueError(f"there is no ledger '{os.fspath(ledger)}'")
    if batch_size is not None and batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, not {batch_size}")


def __getattr__(name: str) -> Any:
    if name == "Verdict":
        from .check import Verdict

        return Verdict
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
