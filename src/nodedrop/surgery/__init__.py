"""A Plan in, a smaller module and optimizer out, in place and reversibly."""

from .check import compare, outputs
from .cut import cut_, sliced
from .transaction import Transaction

__all__ = ["Transaction", "compare", "cut_", "outputs", "sliced"]
