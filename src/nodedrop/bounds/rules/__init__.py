"""The rules, by kind of operator. Importing this package registers them all."""

from . import contraction, creation, movement, normalisation, pointwise, recurrent, reduction

__all__ = ["contraction", "creation", "movement", "normalisation", "pointwise", "recurrent", "reduction"]
