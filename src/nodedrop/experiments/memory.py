"""Memory that one step frees stays for the next, where the C library lets a program ask for it."""

from __future__ import annotations

import ctypes
import os

# glibc's names for what mallopt sets.
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
_NEVER = 2**31 - 1
_VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_")
_TUNABLES = ("malloc.trim_threshold", "malloc.mmap_max", "malloc.mmap_threshold")


def keep_memory() -> bool:
    """Ask glibc to give nothing back to the system while this process lives; whether it will.

    A training step takes and frees the same hundreds of megabytes each time. Left to itself, glibc returns them when
    a step ends, and the next one fetches them page by page, which may take longer than what is computed in them.
    Whoever chose these limits in the environment is left alone.
    """
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    if any(name in os.environ for name in _VARIABLES) or any(name in tunables for name in _TUNABLES):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library
        return False
    return bool(mallopt(_MMAP_MAX, 0) and mallopt(_TRIM_THRESHOLD, _NEVER))
