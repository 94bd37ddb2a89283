"""What is said of units that stay: dead ones that the model's own code does not let go, batch norm without a bound."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

_CHANGED = "an output changes by"
_WRITTEN = "Mostly a size is written into forward(), such as view(-1, 64), where flatten(1) takes any"
_SMALL = "Behind batch norm, rounding counts for much if the example has few rows: give one of a training batch's size"

ANY_BATCH = (
    "nothing was cut, and in train mode batch norm has hardly any bound for batches of any size: give batch_size=, the "
    "largest batch you train with"
)


def warn_refused(news: Mapping[str, str]) -> None:
    """One warning for all layers of which dead units have just been refused, with the reasons."""
    if not news:
        return
    layers: dict[str, list[str]] = {}
    for layer, why in news.items():
        layers.setdefault(why, []).append(f"'{layer}'")
    told = "; ".join(f"{', '.join(names)}: {why}" for why, names in layers.items())
    hint = _SMALL if all(_CHANGED in why for why in layers) else _WRITTEN
    warnings.warn(
        f"dead units stay in the model. {told}. {hint}; NodeDrop.refused lists these layers, which are left alone from "
        "now on",
        stacklevel=3,
    )
