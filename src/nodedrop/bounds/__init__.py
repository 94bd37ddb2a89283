"""Graph and input domain in, an interval for every value out."""

from .domain import Box
from .interval import Interval
from .propagate import Bounds, bound
from .registry import Result

__all__ = ["Bounds", "Box", "Interval", "Result", "bound"]
