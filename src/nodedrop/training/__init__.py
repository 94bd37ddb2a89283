"""Shrink while training: penalties, schedules, the NodeDrop object, files and checkpoints."""

from .checkpoint import Checkpoints
from .files import load, save
from .journal import Journal
from .nodedrop import DropEvent, NodeDrop
from .pace import Pace

__all__ = ["Checkpoints", "DropEvent", "Journal", "NodeDrop", "Pace", "load", "save"]
