"""Shrink while training: penalties, schedules, the NodeDrop object, files and checkpoints."""

from .checkpoint import Checkpoints
from .events import DropEvent
from .files import load, save
from .journal import Journal
from .nodedrop import NodeDrop
from .pace import Pace

__all__ = ["Checkpoints", "DropEvent", "Journal", "NodeDrop", "Pace", "load", "save"]
