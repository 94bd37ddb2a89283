"""A Plan in, a smaller module and optimizer out, in place and reversibly."""

from .check import change, compare, outputs, same_operators
from .cut import cut_, sliced
from .transaction import Transaction

__all__ = ["Transaction", "change", "compare", "cut_", "outputs", "same_operators", "sliced"]
