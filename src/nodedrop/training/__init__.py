"""Shrink while training: penalties, schedules, the NodeDrop object."""

from .nodedrop import DropEvent, NodeDrop

__all__ = ["DropEvent", "NodeDrop"]
