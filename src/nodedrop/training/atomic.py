"""A file appears complete or not at all, and is still there after a power failure."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..errors import InputError

SUFFIX = ".tmp"


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """A temporary file to write to, flushed and renamed to the target at the end; gone if anything fails."""
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}{SUFFIX}")
    try:
        temporary.touch()
        yield temporary
        flush(temporary)
        os.replace(temporary, target)
        flush(target.parent)
    except OSError as error:
        raise InputError(f"'{target}' cannot be written: {reason(error)}") from None
    finally:
        with suppress(OSError):
            temporary.unlink()


def flush(path: Path) -> None:
    """Bring a file, or the names in a folder, to the disk."""
    if path.is_dir() and os.name != "posix":
        return
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def reason(error: BaseException) -> str:
    """What went wrong, in one line."""
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).splitlines()[0]
