"""One file of tensors and plain data: safetensors, with a JSON document and a digest in its metadata.

Any reader of safetensors opens it. The digest is SHA-256 over the whole file with its own 64 digits set to zero, so
that no byte can be lost or changed unnoticed.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from torch import Tensor

from ..errors import InputError
from .atomic import reason, replacing
from .packing import pack, unpack

FORMAT, VERSION = "nodedrop model", 1
_DOCUMENT, _DIGEST = "nodedrop", "nodedrop.sha256"
# Inside the document quotes are escaped, so this is found only where it is meant.
_STATED = re.compile(rb'"nodedrop\.sha256":"([0-9a-f]{64})"')
_ZEROS = b"0" * 64
_LONGEST = 100_000_000  # bytes of header that readers of safetensors accept


def write(path: Path, tensors: Mapping[str, Tensor], document: Mapping[str, Any]) -> None:
    """Write tensors under their names, and a document that may hold tensors of its own; all or nothing."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    everything = dict(tensors)
    text = json.dumps(pack({"format": FORMAT, "version": VERSION, **document}, everything))
    metadata = {"format": "pt", _DOCUMENT: text, _DIGEST: _ZEROS.decode()}
    with replacing(path) as temporary:
        mode = temporary.stat().st_mode
        try:
            save_file(_separate(everything), temporary, metadata)
        except (SafetensorError, ValueError) as error:
            raise InputError(f"'{path}' cannot be written: {reason(error)}") from None
        temporary.chmod(mode)  # safetensors lets nobody but the owner read
        with temporary.open("rb+") as file:
            stated, digest = _digests(file)
            if stated is None:
                raise InputError(f"'{path}' cannot be written: its plain data is longer than {_LONGEST:,} bytes")
            file.seek(stated.start(1))
            file.write(digest)


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any] | None]:
    """Tensors and document of a file, found to be what was written; a file of other origin has no document."""
    from safetensors import SafetensorError, safe_open

    try:
        with path.open("rb") as raw:
            stated, digest = _digests(raw)
        if stated is not None and stated[1] != digest:
            raise InputError(f"'{path}' is no complete safetensors file: its content is not what was written")
        with safe_open(path, framework="pt", device="cpu") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            text = (file.metadata() or {}).get(_DOCUMENT)
    except (OSError, SafetensorError) as error:
        raise InputError(f"'{path}' is no complete safetensors file: {reason(error)}") from None
    if text is None and stated is None:
        return tensors, None
    try:
        document = unpack(json.loads(text or ""), tensors)
        known, version = document["format"] == FORMAT, document["version"]
    except (ValueError, KeyError, TypeError, AttributeError):
        known, version = False, VERSION
    if version != VERSION:
        raise InputError(f"'{path}' has version {version} of the format, and this nodedrop reads version {VERSION}")
    if not known or stated is None:
        raise InputError(f"the metadata of '{path}' is damaged; use another copy, or write the file again")
    return tensors, document


def _digests(file: IO[bytes]) -> tuple[re.Match[bytes] | None, bytes]:
    """The digest a file states, by its place there, and the one its content has."""
    start = file.read(8)
    length = int.from_bytes(start, "little")
    start += file.read(length) if length <= _LONGEST else b""
    if (stated := _STATED.search(start)) is None:
        return None, b""
    found = hashlib.sha256(start[: stated.start(1)] + _ZEROS + start[stated.end(1) :])
    while block := file.read(1 << 20):
        found.update(block)
    return stated, found.hexdigest().encode()


def _separate(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Contiguous tensors on the CPU, none in the memory of another."""
    found: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        value = tensor.detach().cpu().contiguous()
        if value.data_ptr() in seen or value.untyped_storage().nbytes() != value.nbytes:
            value = value.clone()
        seen.add(value.data_ptr())
        found[name] = value
    return found
