"""The data sets by name: where their files may lie, and how these are read into memory."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import BinaryIO, cast

import torch
from torch import Tensor

from ...errors import InputError
from .download import Progress, Remote, fetch
from .formats import UNREADABLE, Part, read_cifar_binary, read_cifar_python, read_idx, reason
from .text import topics

Labelled = tuple[Tensor, Tensor]
TEXT = "pydoc"
_LARGEST = 1 << 28


@dataclass(frozen=True, eq=False)
class Data:
    """A data set in memory: images as bytes, sample × channel × row × column; labels as int64.

    Or a text: passages as bytes, sample × place, with a label for each place.
    """

    name: str
    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    classes: int

    @property
    def text(self) -> bool:
        """Whether the samples are passages of a text."""
        return self.train_images.dim() == 2


@dataclass(frozen=True)
class Split:
    """The files that make up one half of a data set, and the number of images in each that holds some."""

    files: tuple[str, ...]
    count: int


@dataclass(frozen=True)
class Layout:
    """One way in which a data set is handed out: in a folder, the most particular name first, or as an archive."""

    read: Callable[[list[Part], int], Labelled]
    train: Split
    test: Split
    folders: tuple[str, ...] = ()
    archive: str | None = None

    @property
    def files(self) -> tuple[str, ...]:
        return self.train.files + self.test.files

    def __str__(self) -> str:
        return self.archive or f"{self.folders[0]}/"


@dataclass(frozen=True)
class Source:
    """A data set: its layouts, the preferred one first; the files to download for one of them.

    `begins` are the first training labels, where another data set has files of the same names and sizes.
    """

    classes: int
    layouts: tuple[Layout, ...]
    remotes: tuple[Remote, ...] = ()
    begins: tuple[int, ...] = ()


def _idx(parts: list[Part], count: int) -> Labelled:
    images, labels = parts
    return read_idx(images, (count, 28, 28)).unsqueeze(1), read_idx(labels, (count,))


def _joined(read: Callable[[Part, int], Labelled]) -> Callable[[list[Part], int], Labelled]:
    def read_all(parts: list[Part], count: int) -> Labelled:
        images, labels = zip(*(read(part, count) for part in parts), strict=True)
        return torch.cat(images), torch.cat(labels)

    return read_all


def _both(layout: Layout, folder: str, archive: str) -> tuple[Layout, Layout]:
    return replace(layout, folders=(folder, "")), replace(layout, archive=archive)


_IDX = Layout(
    _idx,
    Split(("train-images-idx3-ubyte", "train-labels-idx1-ubyte"), 60_000),
    Split(("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"), 10_000),
)
_CIFAR10_BINARY = Layout(
    _joined(partial(read_cifar_binary, label_bytes=1)),
    Split(tuple(f"data_batch_{k}.bin" for k in range(1, 6)), 10_000),
    Split(("test_batch.bin",), 10_000),
)
_CIFAR10_PYTHON = Layout(
    _joined(partial(read_cifar_python, label_key="labels")),
    Split(tuple(f"data_batch_{k}" for k in range(1, 6)), 10_000),
    Split(("test_batch",), 10_000),
)
_CIFAR100_BINARY = Layout(
    _joined(partial(read_cifar_binary, label_bytes=2)),
    Split(("train.bin",), 50_000),
    Split(("test.bin",), 10_000),
)
_CIFAR100_PYTHON = Layout(
    _joined(partial(read_cifar_python, label_key="fine_labels")),
    Split(("train",), 50_000),
    Split(("test",), 10_000),
)
_TORONTO = "https://www.cs.toronto.edu/~kriz"
_ZALANDO = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"

SOURCES: dict[str, Source] = {
    "mnist": Source(
        10,
        (replace(_IDX, folders=("MNIST/raw", "mnist", "")), replace(_IDX, archive="mnist.tar.xz")),
        begins=(5, 0, 4, 1, 9),
    ),
    "fashion-mnist": Source(
        10,
        (replace(_IDX, folders=("FashionMNIST/raw", "fashion-mnist", "")),),
        (
            Remote(_ZALANDO, "fashion-mnist/train-images-idx3-ubyte.gz", "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
            Remote(_ZALANDO, "fashion-mnist/train-labels-idx1-ubyte.gz", "25c81989df183df01b3e8a0aad5dffbe"),
            Remote(_ZALANDO, "fashion-mnist/t10k-images-idx3-ubyte.gz", "bef4ecab320f06d8554ea6380940ec79"),
            Remote(_ZALANDO, "fashion-mnist/t10k-labels-idx1-ubyte.gz", "bb300cfdad3c16e7a12a480ee83cd310"),
        ),
        begins=(9, 0, 0, 3, 0),
    ),
    "cifar10": Source(
        10,
        (
            *_both(_CIFAR10_BINARY, "cifar-10-batches-bin", "cifar-10-binary.tar.gz"),
            *_both(_CIFAR10_PYTHON, "cifar-10-batches-py", "cifar-10-python.tar.gz"),
        ),
        (Remote(_TORONTO, "cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"),),
    ),
    "cifar100": Source(
        100,
        (
            *_both(_CIFAR100_BINARY, "cifar-100-binary", "cifar-100-binary.tar.gz"),
            *_both(_CIFAR100_PYTHON, "cifar-100-python", "cifar-100-python.tar.gz"),
        ),
        (Remote(_TORONTO, "cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8"),),
    ),
}


def load(
    name: str,
    data_dir: str | os.PathLike[str] | None = None,
    download: bool = False,
    *,
    mirror: str | None = None,
    progress: Progress | None = None,
) -> Data:
    """Read a data set into memory; with `download`, from its authors' server if it is not in `data_dir` yet.

    MNIST is part of the package, and comes from there unless a folder is named; "pydoc" is the text of Python's help
    pages, which every Python brings along. For the others the folder is that of
    `data_dir`, of the environment variable NODEDROP_DATA, or `nodedrop` in the user's cache. `mirror`, or the
    variable NODEDROP_MIRROR, is an address under which the same files lie.

    >>> data = load("mnist")
    >>> data.train_images.shape, data.test_labels[:4]
    (torch.Size([60000, 1, 28, 28]), tensor([7, 2, 1, 0]))
    """
    if name == TEXT:
        train, labels, tested, expected, letters = topics()
        return Data(name, train, labels, tested, expected, letters)
    if name not in SOURCES:
        raise InputError(f"there is no data set '{name}'; there are {', '.join((*SOURCES, TEXT))}")
    source = SOURCES[name]
    if data_dir is not None:
        folder = Path(data_dir)
    elif name == "mnist":
        folder = Path(__file__).parent
    else:
        folder = default_folder()
    if download and _find(source, folder, all) is None:
        for remote in source.remotes:
            fetch(remote, folder, mirror=mirror, progress=progress)
    found = _find(source, folder, all) or _find(source, folder, any)
    if found is None:
        layouts = ", ".join(map(str, source.layouts))
        offer = "ask for its download" if source.remotes else "leave the folder out to use the one in the package"
        raise InputError(f"{name} is not in {folder}, which holds none of {layouts}; name another folder or {offer}")
    return _read(name, *found)


def default_folder() -> Path:
    """Where data sets are looked for and stored if no folder is named."""
    if chosen := os.environ.get("NODEDROP_DATA"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nodedrop"


def _read(name: str, layout: Layout, place: Path) -> Data:
    source = SOURCES[name]
    with ExitStack() as stack:
        if layout.archive is None:
            parts = {file: _open(_locate(place, file), stack) for file in layout.files}
        else:
            parts = _unpack(place, layout.files)
        train, test = (_labelled(layout, split, parts, source.classes) for split in (layout.train, layout.test))
    if train[1][: len(source.begins)].tolist() != list(source.begins):
        raise InputError(f"{place} holds another data set of the same format than {name}; name another folder")
    return Data(name, *train, *test, source.classes)


def _labelled(layout: Layout, split: Split, parts: Mapping[str, Part], classes: int) -> Labelled:
    used = [parts[file] for file in split.files]
    images, labels = layout.read(used, split.count)
    if (highest := int(labels.max())) >= classes:
        raise used[-1].refuse(f"labels below {classes}", f"has a label {highest}")
    return images, labels.long()


def _find(source: Source, folder: Path, enough: Callable[[Iterable[object]], bool]) -> tuple[Layout, Path] | None:
    """The first layout of which the folder holds an archive, or enough files: `all` or `any`."""
    for layout in source.layouts:
        if layout.archive is not None and (folder / layout.archive).is_file():
            return layout, folder / layout.archive
        for place in (folder / part for part in layout.folders):
            if enough(_candidates(place, file) for file in layout.files):
                return layout, place
    return None


def _candidates(folder: Path, file: str) -> list[Path]:
    """A file, plain or compressed; some unpackers write a dot before `idx`."""
    names = dict.fromkeys(base + end for base in (file, file.replace("-idx", ".idx")) for end in ("", ".gz"))
    return [folder / name for name in names if (folder / name).is_file()]


def _locate(folder: Path, file: str) -> Path:
    if not (found := _candidates(folder, file)):
        raise InputError(f"{folder} lacks {file}, which belongs to the other files there; get it as well")
    return found[0]


def _open(path: Path, stack: ExitStack) -> Part:
    try:
        plain = stack.enter_context(path.open("rb"))
        compressed = plain.peek(2)[:2] == b"\x1f\x8b"
    except OSError as error:
        raise InputError(f"{path} cannot be opened ({reason(error)}); make it readable") from None
    return Part(cast(BinaryIO, gzip.GzipFile(fileobj=plain)) if compressed else plain, str(path))


def _unpack(archive: Path, files: tuple[str, ...]) -> dict[str, Part]:
    """The wanted members of an archive, read in the order they come in."""
    found: dict[str, Part] = {}
    try:
        with tarfile.open(archive) as members:
            for member in members:
                file = member.name.rpartition("/")[2]
                if file not in files or not member.isreg() or member.size > _LARGEST:
                    continue
                stream = members.extractfile(member)
                assert stream is not None
                found[file] = Part(io.BytesIO(stream.read()), f"{file} in {archive}")
                if len(found) == len(files):
                    break
    except UNREADABLE as error:
        raise InputError(f"{archive} is damaged or no archive ({reason(error)}); get the original again") from None
    if missing := [file for file in files if file not in found]:
        raise InputError(f"{archive} lacks {missing[0]}; get the original archive again")
    return found
