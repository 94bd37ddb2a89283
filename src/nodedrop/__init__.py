"""nodedrop: prove which units of a network can never fire, and remove exactly those."""

from . import functional
from .activations import ClampedReLU, SoftClampedReLU
from .analysis import Analysis, Ledger
from .api import analyze, compact_
from .bounds import Box
from .errors import NodeDropError
from .training import Checkpoints, Journal, NodeDrop, load, save
from .verify import verify

__version__ = "0.1.0"

__all__ = [
    "Analysis",
    "Box",
    "Checkpoints",
    "ClampedReLU",
    "Journal",
    "Ledger",
    "NodeDrop",
    "NodeDropError",
    "SoftClampedReLU",
    "__version__",
    "analyze",
    "compact_",
    "functional",
    "load",
    "save",
    "verify",
]
