"""Networks with planted dead units: what analysis and surgery are tested on."""

from __future__ import annotations

from . import (
    attention,
    dense_cat,
    mobile,
    recurrent,
    residual,
    structures_flow,
    structures_join,
    structures_shape,
    transformers_like,
    vision_plain,
)
from .planting import Entry, Plant, plant

__all__ = ["ZOO", "Entry", "Plant", "plant"]

FAMILIES = (
    vision_plain,
    residual,
    mobile,
    dense_cat,
    transformers_like,
    attention,
    recurrent,
    structures_join,
    structures_shape,
    structures_flow,
)

ZOO: dict[str, Entry] = {}
for family in FAMILIES:
    for entry in family.ENTRIES:
        if entry.name in ZOO:
            raise ValueError(f"two networks are named {entry.name}")
        ZOO[entry.name] = entry
