"""The independent checker. It shares no code with what makes certificates: numpy, torch and the standard library."""

from __future__ import annotations

import os
from collections.abc import Sequence
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
    modes: Sequence[str] = ("eval", "train"),
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

    return check(before, after, example_inputs, domain, ledger, modes, batch_size, dtype, tries)


def __getattr__(name: str) -> Any:
    if name == "Verdict":
        from .check import Verdict

        return Verdict
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
