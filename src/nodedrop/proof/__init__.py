"""Bounds in, certificates out."""

from .certificate import Certificate, Certificates, Evidence, Kind, observe, prove

__all__ = ["Certificate", "Certificates", "Evidence", "Kind", "observe", "prove"]
