"""Data sets: each format read as it was written, anything else refused with a sentence."""

import hashlib
import io
import os
import pickle
import re
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from nodedrop.errors import InputError
from nodedrop.experiments.data import SOURCES, default_folder, load, sources
from nodedrop.experiments.data.sources import Source

from .writing import TEST, TRAIN, Halves, cifar_python, content, files, pack, store


def small(source: Source) -> Source:
    layouts = (
        replace(layout, train=replace(layout.train, count=TRAIN), test=replace(layout.test, count=TEST))
        for layout in source.layouts
    )
    return replace(source, layouts=tuple(layouts), begins=())


@pytest.fixture(autouse=True)
def small_sources(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Data sets of a few images, but for tests that ask for the real ones."""
    if "real" not in request.fixturenames:
        for name, source in SOURCES.items():
            monkeypatch.setitem(SOURCES, name, small(source))


@pytest.fixture
def real() -> None:
    """Asks for the data sets as they are."""


def check(name: str, folder: Path, halves: Halves) -> None:
    data = load(name, folder)
    assert (data.name, data.classes) == (name, 100 if name == "cifar100" else 10)
    found: tuple[Tensor, ...] = (data.train_images, data.train_labels, data.test_images, data.test_labels)
    assert [x.dtype for x in found] == [torch.uint8, torch.int64] * 2
    for ours, theirs in zip(found, halves, strict=True):
        assert np.array_equal(ours.numpy(), theirs)


FOLDERS = [
    ("mnist", "idx", "MNIST/raw"),
    ("mnist", "idx", "mnist"),
    ("mnist", "idx", ""),
    ("fashion-mnist", "idx", "FashionMNIST/raw"),
    ("fashion-mnist", "idx", "fashion-mnist"),
    ("cifar10", "binary", "cifar-10-batches-bin"),
    ("cifar10", "binary", ""),
    ("cifar10", "python", "cifar-10-batches-py"),
    ("cifar100", "binary", "cifar-100-binary"),
    ("cifar100", "python", "cifar-100-python"),
]
ARCHIVES = [
    ("cifar10", "binary", "cifar-10-binary.tar.gz"),
    ("cifar10", "python", "cifar-10-python.tar.gz"),
    ("cifar100", "binary", "cifar-100-binary.tar.gz"),
    ("cifar100", "python", "cifar-100-python.tar.gz"),
]


@pytest.mark.parametrize(("name", "kind", "folder"), FOLDERS)
def test_files_in_a_folder(name: str, kind: str, folder: str, tmp_path: Path) -> None:
    store(tmp_path / folder, files(name, kind, content(name)))
    check(name, tmp_path, content(name))


@pytest.mark.parametrize(("name", "kind", "archive"), ARCHIVES)
def test_archives_are_read_where_they_lie(name: str, kind: str, archive: str, tmp_path: Path) -> None:
    pack(tmp_path / archive, {"readme.html": b"hello", **files(name, kind, content(name))})
    check(name, tmp_path, content(name))
    assert [path.name for path in tmp_path.iterdir()] == [archive]


def test_compressed_files(tmp_path: Path) -> None:
    store(tmp_path, files("mnist", "idx", content("mnist")), ".gz")
    check("mnist", tmp_path, content("mnist"))


def test_file_names_with_a_dot(tmp_path: Path) -> None:
    written = files("mnist", "idx", content("mnist"))
    store(tmp_path, {file.replace("-idx", ".idx"): raw for file, raw in written.items()})
    check("mnist", tmp_path, content("mnist"))


@pytest.mark.parametrize("protocol", [3, 4])
def test_python_batches_written_again_by_python_3(protocol: int, tmp_path: Path) -> None:
    a, a_labels, b, b_labels = content("cifar100")
    written = {
        "train": cifar_python(a, a_labels, True, lambda value: pickle.dumps(value, protocol)),
        "test": cifar_python(b, b_labels, True, lambda value: pickle.dumps(value, protocol)),
    }
    store(tmp_path / "cifar-100-python", written)
    check("cifar100", tmp_path, content("cifar100"))


def test_the_folder_comes_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NODEDROP_DATA", str(tmp_path))
    store(tmp_path, files("cifar10", "binary", content("cifar10")))
    assert len(load("cifar10").train_images) == 5 * TRAIN
    monkeypatch.delenv("NODEDROP_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert default_folder() == tmp_path / "cache" / "nodedrop"


@pytest.mark.usefixtures("real")
def test_the_embedded_files_are_the_original_ones() -> None:
    note = (Path(sources.__file__).with_name("mnist.md")).read_text()
    published = dict(re.findall(r"^\| (\S+-ubyte) \| .* \| (\w{64}) \|$", note, re.M))
    with tarfile.open(Path(sources.__file__).with_name("mnist.tar.xz")) as tar:
        found = {}
        for member in tar:
            stream = tar.extractfile(member)
            assert stream is not None
            found[member.name] = stream.read()
    assert {file: hashlib.sha256(raw).hexdigest() for file, raw in found.items()} == published
    assert {file: hashlib.md5(raw).hexdigest() for file, raw in found.items()} == {
        "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
        "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
        "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
        "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
    }
    assert "by-sa/3.0" in note


@pytest.mark.usefixtures("real")
def test_mnist_needs_no_folder() -> None:
    data = load("mnist")
    assert (data.train_images.shape, data.test_images.shape) == ((60_000, 1, 28, 28), (10_000, 1, 28, 28))
    assert data.train_labels.bincount().tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert 0.1306 < data.train_images.float().mean() / 255 < 0.1307


@pytest.mark.usefixtures("real")
def test_mnist_is_not_taken_for_fashion_mnist(tmp_path: Path) -> None:
    with tarfile.open(Path(sources.__file__).with_name("mnist.tar.xz")) as tar:
        for member in tar:
            stream = tar.extractfile(member)
            assert stream is not None
            (tmp_path / member.name).write_bytes(stream.read())
    with pytest.raises(InputError, match="another data set of the same format than fashion-mnist"):
        load("fashion-mnist", tmp_path)


@pytest.mark.usefixtures("real")
def test_cifar_has_fifty_and_ten_thousand_images(tmp_path: Path) -> None:
    for file in ("train.bin", "test.bin"):
        with (tmp_path / file).open("wb") as stream:
            stream.truncate(3074 * (50_000 if file == "train.bin" else 10_000))
    data = load("cifar100", tmp_path)
    assert (data.train_images.shape, data.test_images.shape) == ((50_000, 3, 32, 32), (10_000, 3, 32, 32))


def refusal(name: str, folder: Path) -> str:
    with pytest.raises(InputError) as caught:
        load(name, folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_an_unknown_name_gets_the_list() -> None:
    assert refusal("cifar", Path()) == (
        "there is no data set 'cifar'; there are mnist, fashion-mnist, cifar10, cifar100, pydoc"
    )


def test_an_empty_folder(tmp_path: Path) -> None:
    assert refusal("cifar10", tmp_path) == (
        f"cifar10 is not in {tmp_path}, which holds none of cifar-10-batches-bin/, cifar-10-binary.tar.gz, "
        "cifar-10-batches-py/, cifar-10-python.tar.gz; name another folder or ask for its download"
    )
    assert "leave the folder out" in refusal("mnist", tmp_path)
    assert "is not in" in refusal("mnist", tmp_path / "missing")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    store(tmp_path, files("cifar10", "binary", content("cifar10")))
    (tmp_path / "data_batch_3.bin").unlink()
    assert f"{tmp_path} lacks data_batch_3.bin" in refusal("cifar10", tmp_path)


def test_a_missing_member_is_named(tmp_path: Path) -> None:
    written = files("cifar100", "binary", content("cifar100"))
    pack(tmp_path / "cifar-100-binary.tar.gz", {"train.bin": written["train.bin"]})
    assert "lacks test.bin" in refusal("cifar100", tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda raw: raw[:-1], "should hold 3 bytes in IDX format, but ends after 2 of 3 bytes"),
        (lambda raw: raw + b"!", "should hold 3 bytes in IDX format, but goes on after that"),
        (lambda raw: b"<html>" + raw, "but begins with 3c 68 74 6d"),
        (lambda raw: raw[:7] + b"\x04" + raw[8:], "but declares 4"),
        (lambda raw: raw[:4] + b"\xff" * 4 + raw[8:], "but declares 4294967295"),
        (lambda raw: raw[:-1] + b"\x0a", "should hold labels below 10, but has a label 10"),
        (lambda raw: b"", "but ends after 0 of 8 bytes"),
    ],
)
def test_a_changed_idx_file(change: Callable[[bytes], bytes], message: str, tmp_path: Path) -> None:
    written = files("mnist", "idx", content("mnist"))
    file = "train-labels-idx1-ubyte"
    store(tmp_path, {**written, file: change(written[file])})
    said = refusal("mnist", tmp_path)
    assert said.startswith(str(tmp_path / file))
    assert message in said


@pytest.mark.parametrize(("name", "kind", "folder"), [row for row in FOLDERS if row[2]])
def test_truncated_and_swapped_files(name: str, kind: str, folder: str, tmp_path: Path) -> None:
    written = files(name, kind, content(name))
    place = tmp_path / folder
    for file, raw in written.items():
        for cut in {0, 1, len(raw) // 2, len(raw) - 1} | {k * len(raw) // 7 for k in range(7)}:
            store(place, {**written, file: raw[:cut]})
            assert str(place / file) in refusal(name, tmp_path)
        store(place, {**written, file: b"PK\x03\x04 an archive of another kind"})
        assert str(place / file) in refusal(name, tmp_path)
    first, *_, last = written
    store(place, {**written, first: written[last]})
    assert str(place / first) in refusal(name, tmp_path)


@pytest.mark.parametrize(("name", "kind", "archive"), ARCHIVES)
def test_truncated_and_foreign_archives(name: str, kind: str, archive: str, tmp_path: Path) -> None:
    pack(tmp_path / archive, files(name, kind, content(name)))
    whole = (tmp_path / archive).read_bytes()
    for cut in (0, 5, 100, len(whole) // 2, len(whole) * 9 // 10):
        (tmp_path / archive).write_bytes(whole[:cut])
        assert str(tmp_path / archive) in refusal(name, tmp_path)
    (tmp_path / archive).write_bytes(b"<!DOCTYPE html><title>404</title>" * 50)
    assert "is damaged or no archive" in refusal(name, tmp_path)


def test_truncated_gzip(tmp_path: Path) -> None:
    written = files("mnist", "idx", content("mnist"))
    store(tmp_path, written, ".gz")
    file = tmp_path / "train-images-idx3-ubyte.gz"
    whole = file.read_bytes()
    for cut in (2, 9, 20, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:cut])
        assert refusal("mnist", tmp_path).startswith(f"{file} should hold 3×28×28 bytes in IDX format, but")


def test_an_archive_may_not_link_out_or_fill_the_memory(tmp_path: Path) -> None:
    written = files("cifar100", "binary", content("cifar100"))
    secret = tmp_path / "secret"
    secret.write_bytes(written["test.bin"])
    archive = tmp_path / "cifar-100-binary.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        member = tarfile.TarInfo("train.bin")
        member.size = len(written["train.bin"])
        tar.addfile(member, io.BytesIO(written["train.bin"]))
        link = tarfile.TarInfo("test.bin")
        link.type, link.linkname = tarfile.SYMTYPE, str(secret)
        tar.addfile(link)
        huge = tarfile.TarInfo("test.bin")
        huge.size = 1 << 40
        tar.fileobj.write(huge.tobuf())  # type: ignore[union-attr]
    assert str(archive) in refusal("cifar100", tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser reads everything")
def test_a_file_without_permission(tmp_path: Path) -> None:
    store(tmp_path, files("mnist", "idx", content("mnist")))
    (tmp_path / "train-labels-idx1-ubyte").chmod(0)
    assert "cannot be opened" in refusal("mnist", tmp_path)
