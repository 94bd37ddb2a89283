"""One process at a time works in a run folder; the lock goes with the process, however that ends."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from ..errors import InputError

NAME = "lock"


class InUseError(InputError):
    """Another process works in the folder."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep the folder, which is made if need be, to this process. A folder kept by another one is an error."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / NAME).open("a+", encoding="utf-8")
    except OSError as error:
        raise InputError(f"the folder '{folder}' cannot be written to: {error.strerror}; take another one") from None
    with file:
        if not _taken(file):
            file.seek(0)
            raise InUseError(f"process {file.read().strip() or '?'} is at work in '{folder}'; wait for its end")
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


def held(folder: Path) -> bool:
    """Whether a process works in the folder."""
    try:
        with (folder / NAME).open("r+", encoding="utf-8") as file:
            return not _taken(file)
    except OSError:
        return False


def _taken(file: IO[str]) -> bool:
    """Lock an open file; closing it, as the system does for a killed process, gives the lock back."""
    try:
        if sys.platform == "win32":
            import msvcrt

            file.seek(1 << 20)  # bytes within the lock could not be read
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
