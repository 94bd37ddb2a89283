"""Label rules, by kind of operator. Importing this package registers them all."""

from . import contraction, convolution, elementwise, movement, recurrent, reduction

__all__ = ["contraction", "convolution", "elementwise", "movement", "recurrent", "reduction"]
