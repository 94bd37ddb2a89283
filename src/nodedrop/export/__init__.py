"""A trained module as a file that runs without nodedrop: ONNX, or torch's own .pt2."""

from .extras import MissingExtraError, missing, needed
from .int8 import Quantized, quantize
from .onnx import FAST, write_onnx
from .program import TOLERANCE, DifferenceError, Exported, write_pt2

__all__ = [
    "FAST",
    "TOLERANCE",
    "DifferenceError",
    "Exported",
    "MissingExtraError",
    "Quantized",
    "missing",
    "needed",
    "quantize",
    "write_onnx",
    "write_pt2",
]
