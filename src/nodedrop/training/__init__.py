"""Shrink while training: penalties, schedules, the NodeDrop object, files."""

from .files import load, save
from .nodedrop import DropEvent, NodeDrop

__all__ = ["DropEvent", "NodeDrop", "load", "save"]
