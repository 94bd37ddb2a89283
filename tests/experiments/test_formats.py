"""Pickled batches: plain data is read, nothing is ever run."""

import io
import os
import pickle
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from nodedrop.errors import InputError
from nodedrop.experiments.data.formats import Part, read_cifar_python

from .writing import TRAIN, cifar_python, content, python2_pickle


class Touch:
    """Unpickled carelessly, leaves a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.path}",)


def unpickled(raw: bytes) -> tuple[Tensor, Tensor]:
    return read_cifar_python(Part(io.BytesIO(raw), "batch"), TRAIN, "labels")


HOSTILE = {
    "calls a builtin": b"\x80\x02cbuiltins\neval\nX\x05\x00\x00\x001+1+1\x85R.",
    "numpy, but not an array": b"\x80\x02cnumpy\nload\nX\x01\x00\x00\x00x\x85R.",
    "asks for a huge memo": b"\x80\x02]r\xff\xff\xff\x7f.",
    "asks for a huge byte string": b"\x80\x04\x8e" + (1 << 60).to_bytes(8, "little") + b".",
    "asks for a huge array of bytes": b"\x80\x05\x96" + (1 << 60).to_bytes(8, "little") + b".",
    "asks for a huge frame": b"\x80\x04\x95" + (1 << 62).to_bytes(8, "little") + b".",
    "a persistent id": b"\x80\x02Pmine\n.",
    "the old way to build": b"(cos\nsystem\nX\x02\x00\x00\x00idi.",
    "sets state on a class": b"\x80\x02cnumpy\nndarray\n}X\x04\x00\x00\x00nameX\x01\x00\x00\x00xsb.",
    "nests deeply": b"\x80\x02" + b"]" * 5000 + b"a" * 4999 + b".",
    "no dictionary": b"\x80\x02]q\x00.",
    "an empty dictionary": b"\x80\x02}q\x00.",
    "stops early": b"\x80\x02.",
}


@pytest.mark.parametrize("raw", HOSTILE.values(), ids=list(HOSTILE))
def test_a_hostile_pickle_is_refused(raw: bytes) -> None:
    with pytest.raises(InputError, match=r"^batch should hold a CIFAR python batch of 3 images, but") as caught:
        unpickled(raw)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_runs_nothing(protocol: int, tmp_path: Path) -> None:
    labels = content("cifar100")[1]
    mark = tmp_path / "mark"
    for bomb in (Touch(mark), {"data": Touch(mark), "labels": labels.tolist()}):
        with pytest.raises(InputError):
            unpickled(pickle.dumps(bomb, protocol))
    assert not mark.exists()


@pytest.mark.parametrize(
    "change",
    [
        {"data": np.zeros((TRAIN, 3072), np.int8)},
        {"data": np.zeros((TRAIN, 3072), np.float32)},
        {"data": np.zeros((TRAIN + 1, 3072), np.uint8)},
        {"data": np.asfortranarray(np.zeros((TRAIN, 3072), np.uint8))},
        {"data": np.zeros((TRAIN, 3, 32, 32), np.uint8)},
        {"data": [0] * 3072},
        {"data": np.array([{}] * TRAIN)},
        {"labels": [0, 1]},
        {"labels": [0, 1, -1]},
        {"labels": [0, 1, 2.0]},
        {"labels": [0, 1, 1000]},
        {"labels": "abc"},
    ],
)
def test_a_pickle_of_something_else_is_refused(change: dict[str, Any]) -> None:
    good = {"data": np.zeros((TRAIN, 3072), np.uint8), "labels": [0, 1, 2]}
    assert unpickled(python2_pickle(good))[1].tolist() == [0, 1, 2]
    with pytest.raises(InputError):
        unpickled(python2_pickle(good | change))


def test_changed_bytes_of_a_pickle_never_escape() -> None:
    images, labels, _, _ = content("cifar100")
    good = bytearray(cifar_python(images, labels, False, python2_pickle))
    places = [k for k in range(len(good)) if not 200 < k < len(good) - 300]
    rng = random.Random(0)
    for _ in range(2000):
        raw = bytearray(good)
        for place in rng.sample(places, rng.randint(1, 4)):
            raw[place] = rng.randrange(256)
        with suppress(InputError):
            assert unpickled(bytes(raw))[0].shape == (TRAIN, 3, 32, 32)
