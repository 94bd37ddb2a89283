"""Label rules, by kind of operator. Importing this package registers them all."""

from . import contraction, elementwise, movement, reduction

__all__ = ["contraction", "elementwise", "movement", "reduction"]
