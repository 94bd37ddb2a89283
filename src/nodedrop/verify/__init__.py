"""The independent checker. It shares no code with what makes certificates: numpy, torch and the standard library."""

from .check import Verdict, verify

__all__ = ["Verdict", "verify"]
