"""The paper's numbers, as printed in its tables and text."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

# From its text: MNIST error rises above this λ; on CIFAR-10, epochs until accuracy is stable, and for size after that.
LOSS_ABOVE = 1e-4
STABLE_AFTER, SHRINKS_FOR = 100, 400


@dataclass(frozen=True)
class Row:
    """A row of its CIFAR tables. `lam` is None for the baseline, `factor` where nothing was left."""

    lam: float | None
    test_error: float
    parameters: float
    removed: float
    factor: float | None
    units: int
    units_removed: float


@cache
def content() -> dict[str, Any]:
    """Everything in `paper.json`."""
    found: dict[str, Any] = json.loads(files(__package__).joinpath("paper.json").read_text(encoding="utf-8"))
    return found


def rows(data: str, network: str, *, batch_norm: bool) -> tuple[Row, ...]:
    """What the paper prints for a network, baseline first; nothing if it does not have it.

    >>> [row.removed for row in rows("cifar10", "vgg16", batch_norm=False)]
    [0.0, 97.0, 97.96, 99.12, 100.0]
    >>> rows("cifar100", "vgg16", batch_norm=False)
    ()
    """
    key = f"{network}_{'bn' if batch_norm else 'no_bn'}"
    found = content().get(data, {}).get(key, [])
    return tuple(Row(lam, error, 1e6 * millions, *rest) for lam, error, millions, *rest in found)


def best(found: tuple[Row, ...], tolerance: float) -> Row | None:
    """The smallest network whose error is within `tolerance` points of the baseline's.

    With one point, these are the rows that the paper prints in bold.

    >>> best(rows("cifar100", "vgg16", batch_norm=True), 1.0).removed
    87.82
    """
    if not found:
        return None
    allowed = [row for row in found[1:] if row.test_error <= found[0].test_error + tolerance]
    return max(allowed, key=lambda row: row.removed, default=None)


def mnist_removed() -> float:
    """Per cent of the parameters, the best of its MNIST runs; which network and λ is not said."""
    return float(content()["mnist_recipe"]["best_parameters_pruned_percent"])
