"""A Plan in, a smaller module and optimizer out, in place and reversibly."""

from .check import change, compare, outputs, ran
from .cut import cut_, sliced
from .transaction import Transaction

__all__ = ["Transaction", "change", "compare", "cut_", "outputs", "ran", "sliced"]
