"""Downloads from a server on loopback: whole, broken off, wrong, resumed."""

import hashlib
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import ClassVar

import numpy as np
import pytest

from nodedrop.errors import InputError
from nodedrop.experiments.data import SOURCES, load
from nodedrop.experiments.data.download import Remote, fetch

from .writing import TEST, TRAIN, content, files, pack

CONTENT = bytes(range(256)) * 4096
PATH = "some/file.tar.gz"


@dataclass
class Behaviour:
    """What the server does: `breaks` are the bytes after which it hangs up, request by request."""

    content: bytes = CONTENT
    breaks: list[int] = field(default_factory=list)
    ranges: bool = True
    length: bool = True
    statuses: list[int] = field(default_factory=list)
    offset: int = 0
    asked: list[str | None] = field(default_factory=list)


class Handler(BaseHTTPRequestHandler):
    behaviour: ClassVar[Behaviour]

    def do_GET(self) -> None:
        does, wanted = self.behaviour, self.headers.get("Range")
        does.asked.append(wanted)
        if self.path != f"/mirror/{PATH}":
            self.send_error(404)
            return
        if does.statuses and (status := does.statuses.pop(0)) != 200:
            self.send_error(status)
            return
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and does.ranges else 0
        if start >= len(does.content):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(does.content)}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        body = does.content[start:]
        self.send_response(206 if start else 200)
        if start:
            first = start + does.offset
            self.send_header("Content-Range", f"bytes {first}-{len(does.content) - 1}/{len(does.content)}")
        if does.length:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: does.breaks.pop(0)] if does.breaks else body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@dataclass
class Server:
    address: str
    behaviour: Behaviour


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "*")
    behaviour = Behaviour()
    handler = type("Handler", (Handler,), {"behaviour": behaviour})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as listening:
        thread = Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield Server(f"http://127.0.0.1:{listening.server_address[1]}/mirror", behaviour)
        listening.shutdown()
        thread.join()


def remote(raw: bytes = CONTENT) -> Remote:
    return Remote("http://127.0.0.1:9", PATH, hashlib.md5(raw).hexdigest())


def get(server: Server, folder: Path, wanted: Remote | None = None, attempts: int = 3) -> Path:
    return fetch(wanted or remote(), folder, mirror=server.address, attempts=attempts, pause=0.0, timeout=5)


def refusal(server: Server, folder: Path, wanted: Remote | None = None) -> str:
    with pytest.raises(InputError) as caught:
        get(server, folder, wanted)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_a_good_file(server: Server, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int | None]] = []
    target = fetch(remote(), tmp_path, mirror=server.address, progress=lambda *args: seen.append(args))
    assert target == tmp_path / PATH
    assert target.read_bytes() == CONTENT
    assert names(tmp_path) == ["file.tar.gz"]
    assert seen[-1] == ("file.tar.gz", len(CONTENT), len(CONTENT))
    assert [done for _, done, _ in seen] == sorted({done for _, done, _ in seen})


def test_a_file_that_is_there_is_not_asked_for(server: Server, tmp_path: Path) -> None:
    get(server, tmp_path)
    get(server, tmp_path)
    assert server.behaviour.asked == [None]


def test_a_wrong_file_that_is_there_is_replaced(server: Server, tmp_path: Path) -> None:
    (tmp_path / PATH).parent.mkdir()
    (tmp_path / PATH).write_bytes(CONTENT[:-1])
    assert get(server, tmp_path).read_bytes() == CONTENT


def test_a_server_that_says_no_length(server: Server, tmp_path: Path) -> None:
    server.behaviour.length = False
    assert get(server, tmp_path).read_bytes() == CONTENT


def test_a_wrong_checksum(server: Server, tmp_path: Path) -> None:
    server.behaviour.content = CONTENT[:-1] + b"?"
    said = refusal(server, tmp_path)
    assert re.fullmatch(rf"{server.address}/{PATH} has the checksum \w+ instead of {remote().md5} .*", said)
    assert names(tmp_path) == []


def test_a_truncated_file(server: Server, tmp_path: Path) -> None:
    server.behaviour.content = CONTENT[:1000]
    assert "has the checksum" in refusal(server, tmp_path)
    assert names(tmp_path) == []


def test_a_dropped_connection_is_taken_up_again(server: Server, tmp_path: Path) -> None:
    server.behaviour.breaks = [300_000, 1, 300_000]
    assert get(server, tmp_path).read_bytes() == CONTENT
    assert server.behaviour.asked == [None, "bytes=300000-", "bytes=300001-", "bytes=600001-"]


def test_progress_counts_from_the_whole_file(server: Server, tmp_path: Path) -> None:
    server.behaviour.breaks = [300_000]
    seen: list[tuple[int, int | None]] = []
    fetch(
        remote(), tmp_path, mirror=server.address, pause=0.0, progress=lambda _, done, total: seen.append((done, total))
    )
    assert {total for _, total in seen} == {len(CONTENT)}
    assert seen[-1][0] == len(CONTENT)


def test_a_connection_that_always_drops(server: Server, tmp_path: Path) -> None:
    server.behaviour.breaks = [1000] + [0] * 20
    said = refusal(server, tmp_path)
    assert said.startswith(f"the download of {server.address}/{PATH} broke off after 1,000 bytes (")
    assert said.endswith("; try again, and it goes on from there")
    assert names(tmp_path) == ["file.tar.gz.part"]
    assert len(server.behaviour.asked) == 1 + 3


def test_the_next_call_resumes(server: Server, tmp_path: Path) -> None:
    server.behaviour.breaks = [500_000] + [0] * 3
    refusal(server, tmp_path)
    assert get(server, tmp_path).read_bytes() == CONTENT
    assert server.behaviour.asked[-1] == "bytes=500000-"


def test_a_server_that_ignores_ranges_starts_over(server: Server, tmp_path: Path) -> None:
    server.behaviour.ranges, server.behaviour.breaks = False, [500_000]
    assert get(server, tmp_path).read_bytes() == CONTENT


def test_a_server_that_ignores_ranges_and_always_drops(server: Server, tmp_path: Path) -> None:
    server.behaviour.ranges, server.behaviour.breaks = False, [5000] * 20
    assert "broke off after 5,000 bytes" in refusal(server, tmp_path)


def test_a_part_that_is_complete(server: Server, tmp_path: Path) -> None:
    part = tmp_path / f"{PATH}.part"
    part.parent.mkdir()
    part.write_bytes(CONTENT)
    assert get(server, tmp_path).read_bytes() == CONTENT
    assert names(tmp_path) == ["file.tar.gz"]


def test_a_part_that_is_too_long(server: Server, tmp_path: Path) -> None:
    part = tmp_path / f"{PATH}.part"
    part.parent.mkdir()
    part.write_bytes(CONTENT + b"more")
    assert get(server, tmp_path).read_bytes() == CONTENT


def test_a_part_of_another_file(server: Server, tmp_path: Path) -> None:
    part = tmp_path / f"{PATH}.part"
    part.parent.mkdir()
    part.write_bytes(b"x" * 1000)
    assert "has the checksum" in refusal(server, tmp_path)
    assert get(server, tmp_path).read_bytes() == CONTENT


def test_a_server_that_sends_another_part(server: Server, tmp_path: Path) -> None:
    server.behaviour.breaks, server.behaviour.offset = [500_000], 7
    assert get(server, tmp_path).read_bytes() == CONTENT
    assert server.behaviour.asked == [None, "bytes=500000-", None]


def test_an_overloaded_server_is_asked_again(server: Server, tmp_path: Path) -> None:
    server.behaviour.statuses = [503, 500]
    assert get(server, tmp_path).read_bytes() == CONTENT
    server.behaviour.statuses = [503] * 20
    assert "503 Service Unavailable" in refusal(server, tmp_path / "other")


def test_a_missing_file_is_not_asked_for_again(server: Server, tmp_path: Path) -> None:
    assert refusal(server, tmp_path, replace(remote(), path="else.gz")) == (
        f"{server.address}/else.gz is not available (404 Not Found); try a mirror"
    )
    assert len(server.behaviour.asked) == 1


def test_nobody_listens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(InputError, match="broke off after 0 bytes"):
            fetch(remote(), tmp_path, mirror=address, attempts=2, pause=0.0)


@pytest.mark.parametrize(
    ("mirror", "message"),
    [
        ("file:///etc", "a mirror's address begins with http:// or https://, got 'file:///etc'"),
        ("http://[", "'http://[/some/file.tar.gz' is no address"),
        ("http://host:port", "'http://host:port/some/file.tar.gz' is no address"),
    ],
)
def test_a_strange_address(mirror: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        fetch(remote(), tmp_path, mirror=mirror)
    assert str(caught.value).startswith(message)


def test_a_folder_that_cannot_be_written(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    assert "cannot be written" in refusal(server, tmp_path / "file")


def test_the_mirror_comes_from_the_environment(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NODEDROP_MIRROR", f"{server.address}/")
    assert fetch(remote(), tmp_path).read_bytes() == CONTENT


def test_authors_keep_their_files_in_one_folder() -> None:
    assert replace(remote(), base="https://example.org/data").address(None) == "https://example.org/data/file.tar.gz"


def test_a_data_set_is_downloaded_once_and_only_if_asked(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "made" / "cifar-100-binary.tar.gz"
    pack(archive, files("cifar100", "binary", content("cifar100")))
    raw = server.behaviour.content = archive.read_bytes()
    binary, *_ = SOURCES["cifar100"].layouts
    layout = replace(
        binary, train=replace(binary.train, count=TRAIN), test=replace(binary.test, count=TEST), archive=PATH
    )
    source = replace(SOURCES["cifar100"], layouts=(layout,), remotes=(remote(raw),))
    monkeypatch.setitem(SOURCES, "cifar100", source)
    folder = tmp_path / "data"
    with pytest.raises(InputError, match="ask for its download"):
        load("cifar100", folder, mirror=server.address)
    for _ in range(2):
        data = load("cifar100", folder, download=True, mirror=server.address)
        assert np.array_equal(data.test_images.numpy(), content("cifar100")[2])
    assert len(server.behaviour.asked) == 1


@pytest.mark.parametrize("name", [name for name, source in SOURCES.items() if source.remotes])
def test_what_is_downloaded_is_what_a_layout_looks_for(name: str) -> None:
    source = SOURCES[name]
    paths = {remote.path for remote in source.remotes}
    archives = {layout.archive for layout in source.layouts}
    in_folders = [{f"{folder}/{f}.gz" for f in layout.files} for layout in source.layouts for folder in layout.folders]
    assert paths <= archives or paths in in_folders
    assert all(re.fullmatch("[0-9a-f]{32}", remote.md5) for remote in source.remotes)
