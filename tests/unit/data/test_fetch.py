"""Downloads from a real server that breaks off, lies, redirects or never ends."""

from __future__ import annotations

import fcntl
import resource
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from atlas.data import load
from atlas.data.fetch import TRIES, fetch
from atlas.data.store import SOURCES, File, Form, Source
from atlas.errors import DataError, DiskError, LockError, UsageError

Answer = Callable[[BaseHTTPRequestHandler, bytes], None]


class Server:
    """Serves `files`; the first folder of an address says how (see the answers below)."""

    def __init__(self, files: dict[str, bytes], answers: dict[str, Answer]) -> None:
        self.requests: list[tuple[str, str | None]] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                _, how, name = self.path.split("/")
                server.requests.append((f"{how}/{name}", self.headers.get("Range")))
                self.close_connection = True
                answers[how](self, files[name])

            def log_message(self, *_: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()

    def mirrors(self, *hows: str) -> list[str]:
        return [f"http://127.0.0.1:{self.http.server_port}/{how}/" for how in hows]


def send(request: BaseHTTPRequestHandler, status: int, body: bytes, **headers: object) -> None:
    request.send_response(status)
    for name, value in ({"Content_Length": len(body)} | headers).items():
        if value is not None:
            request.send_header(name.replace("_", "-"), str(value))
    request.end_headers()
    request.wfile.write(body)


def offset(request: BaseHTTPRequestHandler) -> int:
    return int(request.headers.get("Range", "bytes=0-")[6:-1])


def good(request: BaseHTTPRequestHandler, data: bytes) -> None:
    start = offset(request)
    if start >= len(data):
        send(request, 416, b"", Content_Range=f"bytes */{len(data)}")
    elif start:
        send(request, 206, data[start:], Content_Range=f"bytes {start}-{len(data) - 1}/{len(data)}")
    else:
        send(request, 200, data)


def breaks(request: BaseHTTPRequestHandler, data: bytes) -> None:
    """Promises everything and gives 40 % of what is left."""
    start = offset(request)
    rest = data[start:]
    headers: dict[str, object] = {"Content_Length": len(rest)}
    if start:
        headers["Content_Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
    send(request, 206 if start else 200, rest[: 2 * len(rest) // 5], **headers)


def breaks_with_lies(request: BaseHTTPRequestHandler, data: bytes) -> None:
    send(request, 200, bytes(len(data) // 2), Content_Length=len(data))


def endless(request: BaseHTTPRequestHandler, data: bytes) -> None:
    request.send_response(200)
    request.end_headers()
    try:
        while True:
            request.wfile.write(bytes(1 << 16))
    except OSError:
        pass


def moves_on_elsewhere(request: BaseHTTPRequestHandler, data: bytes) -> None:
    if offset(request):
        send(request, 206, data[1:], Content_Range=f"bytes 1-{len(data) - 1}/{len(data)}")
    else:
        send(request, 200, data)


ANSWERS: dict[str, Answer] = {
    "good": good,
    "breaks": breaks,
    "breaks-with-lies": breaks_with_lies,
    "no-range": lambda request, data: send(request, 200, data),
    "no-length": lambda request, data: send(request, 200, data, Content_Length=None),
    "flipped": lambda request, data: send(request, 200, data[:-1] + bytes([data[-1] ^ 1])),
    "short": lambda request, data: send(request, 200, data[:-1]),
    "long": lambda request, data: send(request, 200, data + b"x"),
    "missing": lambda request, data: send(request, 404, b"no"),
    "busy": lambda request, data: send(request, 503, b"no"),
    "never-satisfied": lambda request, data: send(request, 416, b""),
    "nonsense": lambda request, data: request.wfile.write(b"\0\1\2nonsense\r\n\r\n") and None,
    "hangs-up": lambda request, data: None,
    "bad-length": lambda request, data: send(request, 200, data, Content_Length="many"),
    "endless": endless,
    "elsewhere": moves_on_elsewhere,
    "redirect": lambda request, data: send(
        request, 302, b"", Location=request.path.replace("redirect", "good")
    ),
    "downgrade": lambda request, data: send(request, 302, b"", Location="http://mirror.invalid/file"),
    "to-a-file": lambda request, data: send(request, 302, b"", Location="file:///etc/hostname"),
}


@pytest.fixture
def server(idx_toy: Any) -> Iterator[Server]:
    files = {Path(name).name: data for name, data in idx_toy.files["gz"].items()}
    running = Server(files, ANSWERS)
    yield running
    running.http.shutdown()
    running.http.server_close()


def names(root: Path) -> list[str]:
    return sorted(path.name for path in root.rglob("*") if path.is_file())


ALL = [
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
]


@pytest.mark.parametrize(
    "hows",
    [
        ["good"],
        ["no-range"],
        ["no-length"],
        ["redirect"],
        *([bad, "good"] for bad in ANSWERS if bad not in ("good", "no-range", "no-length", "redirect")),
        ["breaks", "breaks", "good"],
        ["breaks-with-lies", "breaks", "good"],
        ["breaks", "elsewhere", "good"],
        ["breaks", "no-range"],
    ],
    ids="+".join,
)
def test_one_good_mirror_is_enough(idx_toy: Any, server: Server, hows: list[str]) -> None:
    paths = fetch("idx-toy", idx_toy.root, mirrors=server.mirrors(*hows))
    assert sorted(path.name for path in paths) == names(idx_toy.root) == ALL
    for train in (True, False):
        assert idx_toy.holds(load("idx-toy", train, idx_toy.root), train)


WORDS = {
    "flipped": "expected sha256",
    "short": "bytes, found",
    "long": "bytes, found",
    "endless": "found more",
    "missing": "HTTP 404",
    "busy": "HTTP 503",
    "hangs-up": "",
    "nonsense": "",
    "downgrade": "expected an https address",
    "to-a-file": "",
    "breaks-with-lies": "bytes, found",
}


@pytest.mark.parametrize("how", WORDS)
def test_when_all_fail_each_reason_is_told_and_nothing_gets_the_name(
    idx_toy: Any, server: Server, how: str
) -> None:
    with pytest.raises(DataError) as caught:
        fetch("idx-toy", idx_toy.root, mirrors=server.mirrors(how, "missing"))
    words = str(caught.value)
    assert f"/{how}/train-images-idx3-ubyte.gz: " in words
    assert WORDS[how] in words
    assert "/missing/train-images-idx3-ubyte.gz: HTTP 404" in words
    assert "Run the command again" in words
    left = names(idx_toy.root)
    assert left in ([], ["train-images-idx3-ubyte.gz.part"])
    assert bool(left) == (how == "breaks-with-lies")


def test_a_mirror_is_tried_again_only_where_that_can_help(idx_toy: Any, server: Server) -> None:
    for how, tries in (("missing", 1), ("flipped", 1), ("busy", TRIES), ("hangs-up", TRIES)):
        server.requests.clear()
        with pytest.raises(DataError):
            fetch("idx-toy", idx_toy.root, mirrors=server.mirrors(how))
        assert len(server.requests) == tries


def test_a_broken_download_continues_where_it_was(idx_toy: Any, server: Server) -> None:
    size = len(idx_toy.files["gz"]["Toy/raw/train-images-idx3-ubyte.gz"])
    with pytest.raises(DataError):
        fetch("idx-toy", idx_toy.root, mirrors=server.mirrors("breaks"))
    asked = [header for name, header in server.requests]
    part = idx_toy.root / "Toy" / "raw" / "train-images-idx3-ubyte.gz.part"
    first = 2 * size // 5
    assert asked[:2] == [None, f"bytes={first}-"]
    assert len(asked) == TRIES
    kept = part.stat().st_size
    assert first < kept < size
    server.requests.clear()
    fetch("idx-toy", idx_toy.root, mirrors=server.mirrors("good"))
    assert server.requests[0] == ("good/train-images-idx3-ubyte.gz", f"bytes={kept}-")
    assert idx_toy.holds(load("idx-toy", True, idx_toy.root), True)


@pytest.mark.parametrize("content", [b"", b"wrong beginning", b"x" * 10_000, "whole", "as long but wrong"])
def test_whatever_is_left_of_an_earlier_download(idx_toy: Any, server: Server, content: bytes | str) -> None:
    whole = idx_toy.files["gz"]["Toy/raw/train-images-idx3-ubyte.gz"]
    part = idx_toy.root / "Toy" / "raw" / "train-images-idx3-ubyte.gz.part"
    part.parent.mkdir(parents=True)
    special = {"whole": whole, "as long but wrong": bytes(len(whole))}
    part.write_bytes(content if isinstance(content, bytes) else special[content])
    fetch("idx-toy", idx_toy.root, mirrors=server.mirrors("good"))
    assert names(idx_toy.root) == ALL
    asked = [name for name, _ in server.requests if "train-images" in name]
    assert len(asked) == (0 if content == "whole" else 2 if content == b"wrong beginning" else 1)


def test_files_that_are_there_are_tested_and_left_alone(idx_toy: Any, server: Server, snapshot: Any) -> None:
    paths = idx_toy.write("gz")
    before = snapshot()
    assert sorted(fetch("idx-toy", idx_toy.root, mirrors=server.mirrors("good"))) == sorted(paths)
    assert server.requests == []
    assert snapshot() == before
    paths[1].write_bytes(b"my own file")
    before = snapshot()
    with pytest.raises(DataError, match="found 11; nothing was changed: move it away, then fetch again"):
        fetch("idx-toy", idx_toy.root, mirrors=server.mirrors("good"))
    assert server.requests == []
    assert snapshot() == before


def test_only_what_is_missing_is_fetched(idx_toy: Any, server: Server) -> None:
    idx_toy.write("gz")[2].unlink()
    fetch("idx-toy", idx_toy.root, mirrors=server.mirrors("good"))
    assert [name for name, _ in server.requests] == ["good/t10k-images-idx3-ubyte.gz"]


def test_another_form_of_the_set_is_enough(idx_toy: Any, server: Server) -> None:
    paths = idx_toy.write("open")
    assert fetch("idx-toy", idx_toy.root, mirrors=server.mirrors("good")) == paths
    assert server.requests == []


def test_an_archive_is_fetched_to_the_root(cifar_toy: Any) -> None:
    archive = cifar_toy.files["python-tar"]
    running = Server(dict(archive), ANSWERS)
    paths = fetch("cifar-toy", cifar_toy.root, mirrors=running.mirrors("breaks", "good"))
    running.http.shutdown()
    running.http.server_close()
    assert paths == [cifar_toy.root / "toy-py.tar.gz"]
    assert names(cifar_toy.root) == ["toy-py.tar.gz"]
    assert cifar_toy.holds(load("cifar-toy", True, cifar_toy.root), True)


def test_progress_is_reported_to_the_end(idx_toy: Any, server: Server) -> None:
    heard: dict[str, list[int]] = {}

    def report(file: File, done: int) -> None:
        heard.setdefault(file.name, []).append(done)

    fetch("idx-toy", idx_toy.root, report, server.mirrors("good"))
    assert sorted(heard) == ALL
    for name, counts in heard.items():
        assert counts == sorted(counts)
        assert counts[-1] == len(idx_toy.files["gz"][f"Toy/raw/{name}"])


def test_a_second_process_is_refused(idx_toy: Any, server: Server) -> None:
    part = idx_toy.root / "Toy" / "raw" / "train-images-idx3-ubyte.gz.part"
    part.parent.mkdir(parents=True)
    with part.open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(LockError, match="another process is downloading it"):
            fetch("idx-toy", idx_toy.root, mirrors=server.mirrors("good"))
    fetch("idx-toy", idx_toy.root, mirrors=server.mirrors("good"))


def test_a_disk_that_cannot_be_written_is_an_error_of_the_disk(idx_toy: Any, server: Server) -> None:
    idx_toy.root.write_text("a file where the folder should be")
    with pytest.raises(DiskError, match="cannot be written"):
        fetch("idx-toy", idx_toy.root, mirrors=server.mirrors("good"))


def test_a_disk_that_is_full_is_an_error_of_the_disk(idx_toy: Any, server: Server) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(DiskError, match=r"train-images-idx3-ubyte\.gz\.part: cannot be written"):
            fetch("idx-toy", idx_toy.root, mirrors=server.mirrors("good"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    fetch("idx-toy", idx_toy.root, mirrors=server.mirrors("good"))


@pytest.mark.parametrize(
    "mirror", ["http://mirror.invalid/", "ftp://127.0.0.1/", "file:///tmp/", "//127.0.0.1/"]
)
def test_only_https_is_spoken(idx_toy: Any, mirror: str) -> None:
    with pytest.raises(DataError, match="expected an https address"):
        fetch("idx-toy", idx_toy.root, mirrors=[mirror])


def test_the_table_says_where_to_fetch_from(
    idx_toy: Any, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    form: Form = SOURCES["idx-toy"].forms[0]
    source = Source("a toy", "none", 10, (form,), tuple(server.mirrors("missing", "good")))
    monkeypatch.setitem(SOURCES, "idx-toy", source)
    fetch("idx-toy", idx_toy.root)
    assert names(idx_toy.root) == ALL


def test_the_embedded_set_is_fetched_from_nowhere(tmp_path: Path) -> None:
    assert [path.name for path in fetch("mnist-mini", tmp_path, mirrors=[])] == ["mnist_mini.tar.xz"]
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_name_offers_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="did you mean 'mnist'"):
        fetch("mnst", tmp_path)
