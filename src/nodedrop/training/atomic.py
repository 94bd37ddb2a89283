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
    if not target.name or target.is_dir():
        raise InputError(f"'{target}' is a folder; name a file in it")
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


def made(folder: Path) -> Path:
    """The folder, made if it is not there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"the folder '{folder}' cannot be made: {reason(error)}; take another") from None
    return folder


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
