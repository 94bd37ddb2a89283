"""Small data sets written in each of the standard formats."""

import gzip
import io
import pickle
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from nodedrop.experiments.data import SOURCES

TRAIN, TEST = 3, 2
"""Images per file in the small data sets that the tests write."""


class Python2Pickler(pickle._Pickler):
    """Writes byte strings as Python 2 wrote its `str`, as in the official CIFAR batches."""

    dispatch = dict(pickle._Pickler.dispatch)  # noqa: RUF012

    def save_string(self, value: bytes | str) -> None:
        raw = value.encode() if isinstance(value, str) else value
        short = len(raw) < 256
        self.write(
            (pickle.SHORT_BINSTRING if short else pickle.BINSTRING) + len(raw).to_bytes(1 if short else 4, "little")
        )
        self.write(raw)
        self.memoize(value)

    dispatch[bytes] = dispatch[str] = save_string


def python2_pickle(value: Any) -> bytes:
    stream = io.BytesIO()
    Python2Pickler(stream, protocol=2).dump(value)
    return stream.getvalue().replace(b"cnumpy._core.", b"cnumpy.core.")


def idx(values: np.ndarray) -> bytes:
    return bytes([0, 0, 8, values.ndim]) + b"".join(n.to_bytes(4, "big") for n in values.shape) + values.tobytes()


def cifar_binary(images: np.ndarray, labels: np.ndarray, coarse: bool) -> bytes:
    columns = [labels[:, None] // 5, labels[:, None]] if coarse else [labels[:, None]]
    return np.concatenate([*columns, images.reshape(len(images), -1)], 1).astype(np.uint8).tobytes()


def cifar_python(images: np.ndarray, labels: np.ndarray, coarse: bool, dump: Callable[[Any], bytes]) -> bytes:
    keys = (
        {"fine_labels": labels.tolist(), "coarse_labels": (labels // 5).tolist()}
        if coarse
        else {"labels": labels.tolist()}
    )
    names = [f"image_{k}.png" for k in range(len(labels))]
    return dump({"batch_label": "batch", **keys, "data": images.reshape(len(images), -1), "filenames": names})


Halves = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def content(name: str) -> Halves:
    """Images and labels of a small data set, five files of training images in the case of CIFAR-10."""
    rng, shape = np.random.default_rng(0), (1, 28, 28) if "mnist" in name else (3, 32, 32)
    train, classes = TRAIN * (5 if name == "cifar10" else 1), SOURCES[name].classes
    draw = [rng.integers(0, 256, (n, *shape), np.uint8) for n in (train, TEST)]
    labels = [rng.integers(0, classes, n, np.uint8) for n in (train, TEST)]
    return draw[0], labels[0], draw[1], labels[1]


def files(name: str, kind: str, halves: Halves) -> dict[str, bytes]:
    """The files of a data set by name."""
    a, a_labels, b, b_labels = halves
    if kind == "idx":
        return {
            "train-images-idx3-ubyte": idx(a[:, 0]),
            "train-labels-idx1-ubyte": idx(a_labels),
            "t10k-images-idx3-ubyte": idx(b[:, 0]),
            "t10k-labels-idx1-ubyte": idx(b_labels),
        }
    coarse, end = name == "cifar100", ".bin" if kind == "binary" else ""

    def write(images: np.ndarray, labels: np.ndarray) -> bytes:
        if kind == "binary":
            return cifar_binary(images, labels, coarse)
        return cifar_python(images, labels, coarse, python2_pickle)

    if coarse:
        return {f"train{end}": write(a, a_labels), f"test{end}": write(b, b_labels)}
    batches = {f"data_batch_{k + 1}{end}": slice(k * TRAIN, (k + 1) * TRAIN) for k in range(5)}
    return {file: write(a[part], a_labels[part]) for file, part in batches.items()} | {
        f"test_batch{end}": write(b, b_labels)
    }


def store(folder: Path, found: Mapping[str, bytes], end: str = "") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for file, raw in found.items():
        (folder / f"{file}{end}").write_bytes(gzip.compress(raw) if end == ".gz" else raw)


def pack(archive: Path, found: Mapping[str, bytes], folder: str = "any/") -> None:
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive, "w:gz") as tar:
        for file, raw in found.items():
            member = tarfile.TarInfo(folder + file)
            member.size = len(raw)
            tar.addfile(member, io.BytesIO(raw))
