"""Data sets in memory: MNIST from the package, the others from files or a download."""

from .batches import Batches
from .sources import SOURCES, TEXT, Data, default_folder, load

__all__ = ["SOURCES", "TEXT", "Batches", "Data", "default_folder", "load"]
