"""Measurements behind the figures in the documentation, each run by `nodedrop bench`."""
