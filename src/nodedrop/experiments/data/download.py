"""Downloads that can be trusted: checked against a published checksum, resumed after a break, complete or not there."""

from __future__ import annotations

import hashlib
import http.client
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ...errors import InputError
from .formats import reason

Progress = Callable[[str, int, int | None], None]
"""Told the file, the bytes it has, and the bytes it will have if the server said so."""

_CHUNK = 1 << 18


@dataclass(frozen=True)
class Remote:
    """A file on a server: the address it lies under, its path in the data folder and on mirrors, its MD5."""

    base: str
    path: str
    md5: str

    def address(self, mirror: str | None) -> str:
        """Authors keep their files in one folder; a mirror keeps them as the data folder does."""
        mirror = mirror or os.environ.get("NODEDROP_MIRROR")
        address = f"{mirror.rstrip('/')}/{self.path}" if mirror else f"{self.base}/{self.path.rpartition('/')[2]}"
        if not address.startswith(("http://", "https://")):
            raise InputError(f"a mirror's address begins with http:// or https://, got '{mirror}'")
        return address


class _Dropped(Exception):
    """The connection failed in a way that another attempt may mend."""


def fetch(
    remote: Remote,
    folder: Path,
    *,
    mirror: str | None = None,
    progress: Progress | None = None,
    attempts: int = 5,
    pause: float = 1.0,
    timeout: float = 30.0,
) -> Path:
    """Download a file into a folder, unless it is there already.

    What has come so far lies beside it under the name `….part`, where the next attempt or call goes on. The file
    takes its own name when its checksum is right. Attempts count from the last one that got further.
    """
    target, address = folder / remote.path, remote.address(mirror)
    if target.is_file() and _md5(target) == remote.md5:
        return target
    part = target.with_name(f"{target.name}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        furthest, failures = _size(part), 0
        while True:
            try:
                _continue(address, part, timeout, progress)
                break
            except _Dropped as error:
                failures = 0 if _size(part) > furthest else failures + 1
                furthest = max(furthest, _size(part))
                if failures >= attempts:
                    raise InputError(
                        f"the download of {address} broke off after {_size(part):,} bytes ({error}); "
                        "try again, and it goes on from there"
                    ) from None
                time.sleep(pause * 2 ** max(failures - 1, 0))
        if (found := _md5(part)) != remote.md5:
            part.unlink()
            raise InputError(
                f"{address} has the checksum {found} instead of {remote.md5} and was removed; try again or use a mirror"
            )
        os.replace(part, target)
    except OSError as error:
        raise InputError(f"{target} cannot be written ({reason(error)}); name another folder") from None
    return target


def _continue(address: str, part: Path, timeout: float, progress: Progress | None) -> None:
    """One request for what is missing; returns when all of it has come."""
    start = _size(part)
    try:
        request = urllib.request.Request(address, headers={"Range": f"bytes={start}-"} if start else {})
        response = urllib.request.urlopen(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        with error:
            if error.code == 416:  # nothing is missing, or the part is no part of this file
                if _total(error.headers.get("Content-Range")) != start:
                    part.unlink()
                    raise _Dropped("the part on disk did not fit") from None
                return
            if error.code < 500:
                raise InputError(f"{address} is not available ({error.code} {error.reason}); try a mirror") from None
            raise _Dropped(f"{error.code} {error.reason}") from None
    except (ValueError, http.client.InvalidURL) as error:
        raise InputError(f"'{address}' is no address ({reason(error)}); correct the mirror's") from None
    except (OSError, http.client.HTTPException) as error:
        raise _Dropped(reason(error)) from None
    with response:
        resumed = response.status == 206 and _first(response.headers.get("Content-Range")) == start
        if response.status == 206 and not resumed:
            part.unlink()
            raise _Dropped("the server sent another part than asked for")
        length = response.headers.get("Content-Length", "")
        done = start if resumed else 0
        total = done + int(length) if length.isdecimal() else None
        with part.open("ab" if resumed else "wb") as file:
            while chunk := _receive(response):
                file.write(chunk)
                done += len(chunk)
                if progress is not None:
                    progress(part.stem, done, total)
            file.flush()
            os.fsync(file.fileno())
    if total is not None and done < total:
        raise _Dropped(f"{done:,} of {total:,} bytes came")


def _receive(response: http.client.HTTPResponse) -> bytes:
    try:
        return response.read(_CHUNK)
    except (OSError, http.client.HTTPException) as error:
        raise _Dropped(reason(error)) from None


def _first(content_range: str | None) -> int | None:
    found = re.match(r"bytes (\d+)-", content_range or "")
    return int(found[1]) if found else None


def _total(content_range: str | None) -> int | None:
    found = re.match(r"bytes \*/(\d+)$", content_range or "")
    return int(found[1]) if found else None


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _md5(path: Path) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
