"""Readers of the standard formats: IDX, and CIFAR's binary and python batches.

A reader knows how many images of which shape its file must hold, so that it never takes more memory than that. Whatever
else a file holds, the answer is an InputError of one sentence.
"""

from __future__ import annotations

import io
import lzma
import pickle
import tarfile
import zlib
from dataclasses import dataclass
from math import prod
from typing import Any, BinaryIO

import torch
from torch import Tensor

from ...errors import InputError

PIXELS = (3, 32, 32)
UNREADABLE = (OSError, EOFError, zlib.error, lzma.LZMAError, tarfile.TarError)
"""What a damaged or compressed file may raise when it is read."""


@dataclass(frozen=True)
class Part:
    """One file, or a member of an archive: its content, and its name for messages."""

    stream: BinaryIO
    where: str

    def refuse(self, expected: str, found: str) -> InputError:
        return InputError(f"{self.where} should hold {expected}, but {found}; get the original file again")

    def take(self, count: int, expected: str) -> bytearray:
        """Exactly `count` bytes."""
        content = bytearray(count)
        view, filled = memoryview(content), 0
        while filled < count:
            chunk = self.read(min(count - filled, 1 << 22), expected)
            if not chunk:
                raise self.refuse(expected, f"ends after {filled:,} of {count:,} bytes")
            view[filled : filled + len(chunk)] = chunk
            filled += len(chunk)
        return content

    def end(self, expected: str) -> None:
        if self.read(1, expected):
            raise self.refuse(expected, "goes on after that")

    def read(self, count: int, expected: str) -> bytes:
        """At most `count` bytes."""
        try:
            return self.stream.read(count)
        except UNREADABLE as error:
            raise self.refuse(expected, f"cannot be read to its end ({reason(error)})") from None


def read_idx(part: Part, shape: tuple[int, ...]) -> Tensor:
    """Unsigned bytes behind a header: two zeros, type 8, the number of axes, then each length as four bytes.

    >>> from io import BytesIO
    >>> read_idx(Part(BytesIO(bytes([0, 0, 8, 1, 0, 0, 0, 3, 5, 0, 4])), "labels"), (3,))
    tensor([5, 0, 4], dtype=torch.uint8)
    """
    expected = f"{'×'.join(map(str, shape))} bytes in IDX format"
    header = part.take(4 + 4 * len(shape), expected)
    if header[:3] != b"\0\0\x08" or header[3] != len(shape):
        raise part.refuse(expected, f"begins with {header[:4].hex(' ')}")
    found = tuple(int.from_bytes(header[k : k + 4], "big") for k in range(4, len(header), 4))
    if found != shape:
        raise part.refuse(expected, f"declares {'×'.join(map(str, found))}")
    values = torch.frombuffer(part.take(prod(shape), expected), dtype=torch.uint8).view(shape)
    part.end(expected)
    return values


def read_cifar_binary(part: Part, count: int, label_bytes: int) -> tuple[Tensor, Tensor]:
    """Records of a label and 3072 pixels; of CIFAR-100's two labels the second, finer one counts."""
    expected = f"{count:,} CIFAR records"
    size = label_bytes + prod(PIXELS)
    records = torch.frombuffer(part.take(count * size, expected), dtype=torch.uint8).view(count, size)
    part.end(expected)
    return records[:, label_bytes:].reshape(count, *PIXELS), records[:, label_bytes - 1].clone()


def read_cifar_python(part: Part, count: int, label_key: str) -> tuple[Tensor, Tensor]:
    """A pickled dictionary with an array under "data" and a list of labels."""
    expected = f"a CIFAR python batch of {count:,} images"
    content = _unpickle(part, count, expected)
    array, labels = _entry(content, "data"), _entry(content, label_key)
    if not isinstance(array, _Stand) or not isinstance(labels, list):
        raise part.refuse(expected, f"has no array 'data' or no list '{label_key}'")
    raw = array.bytes_of((count, prod(PIXELS)))
    if raw is None:
        raise part.refuse(expected, "its array has another shape or type")
    if len(labels) != count or not all(type(label) is int and 0 <= label < 256 for label in labels):
        raise part.refuse(expected, f"its {len(labels)} labels are not {count:,} small whole numbers")
    images = torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(count, *PIXELS)
    return images, torch.tensor(labels, dtype=torch.uint8)


class _Stand:
    """Takes the place of whatever object a pickle wants built, and keeps what it is told."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def bytes_of(self, shape: tuple[int, ...]) -> bytes | None:
        """The content of an array of unsigned bytes: numpy's state is (version, shape, dtype, Fortran order, bytes)."""
        match self.state:
            case (_, found, _Stand(arguments=(b"u1" | "u1", *_)), 0, bytes(raw)):
                return raw if found == shape and len(raw) == prod(shape) else None
        return None


class _Unpickler(pickle._Unpickler):
    """Builds numbers, strings, lists and dictionaries. Nothing that a file names is imported or called.

    The one written in Python, since the other takes as much memory as a file asks for; and of its operations those
    alone that a CIFAR batch needs.
    """

    dispatch = {  # noqa: RUF012
        code[0]: pickle._Unpickler.dispatch[code[0]]
        for code in (
            *(pickle.PROTO, pickle.FRAME, pickle.STOP, pickle.MARK, pickle.NONE, pickle.NEWTRUE, pickle.NEWFALSE),
            *(pickle.BININT, pickle.BININT1, pickle.BININT2, pickle.SHORT_BINSTRING, pickle.BINSTRING),
            *(pickle.SHORT_BINBYTES, pickle.BINBYTES, pickle.SHORT_BINUNICODE, pickle.BINUNICODE),
            *(pickle.EMPTY_TUPLE, pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3),
            *(pickle.EMPTY_LIST, pickle.APPEND, pickle.APPENDS, pickle.EMPTY_DICT, pickle.SETITEM, pickle.SETITEMS),
            *(pickle.BINPUT, pickle.LONG_BINPUT, pickle.MEMOIZE, pickle.BINGET, pickle.LONG_BINGET),
            *(pickle.GLOBAL, pickle.STACK_GLOBAL, pickle.REDUCE, pickle.BUILD),
        )
    }

    def find_class(self, module: str, name: str) -> type[_Stand]:
        if (module, name) not in _STANDS:
            raise pickle.UnpicklingError(f"it asks for {f'{module}.{name}'!r}")
        return _Stand


_STANDS = {
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
}


def _unpickle(part: Part, count: int, expected: str) -> Any:
    # Beside its pixels an image has a label and a file name.
    content = part.read(count * (prod(PIXELS) + 200) + 10_000, expected)
    part.end(expected)
    try:
        return _Unpickler(io.BytesIO(content), encoding="bytes").load()
    except Exception as error:  # a damaged pickle may raise anything
        raise part.refuse(expected, f"cannot be read ({reason(error)})") from None


def _entry(content: Any, key: str) -> Any:
    if not isinstance(content, dict):
        return None
    return content.get(key.encode(), content.get(key))


def reason(error: BaseException) -> str:
    """An error's first line, for a message in parentheses."""
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
