"""Repositories without the Hub: a folder as a remote, and one served as the Hub serves its own."""

import hashlib
import json
import re
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

from orderone.trajectory.hub_client import RemoteFile

NAME = "someone/model"


def commit_of(revision: str) -> str:
    return hashlib.sha1(revision.encode()).hexdigest()


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Repository:
    """A repository whose revisions are folders; what was asked of it is counted."""

    def __init__(self, folder: Path, *, cache: Path | None = None, known: bool = True) -> None:
        self.folder = folder
        self.cache = cache
        self.known = known  # whether equal files are known to be
        self.fetched: list[tuple[str, str]] = []
        self.reads: list[tuple[str, str, int, int]] = []
        self.fail: Callable[[str, str, int], None] = lambda revision, name, first: None

    @property
    def names(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir())

    def _revision(self, commit: str) -> str:
        return next(name for name in ["main", *self.names] if commit_of(name) == commit)

    def revisions(self, repository: str) -> dict[str, str]:
        assert repository == NAME
        return {name: commit_of(name) for name in ["main", *self.names]}

    def files(self, repository: str, commit: str) -> dict[str, RemoteFile]:
        place = self.folder / self._revision(commit)
        return {
            path.name: RemoteFile(
                size=path.stat().st_size, content=digest(path) if self.known else None
            )
            for path in place.iterdir()
        }

    def fetch(self, repository: str, commit: str, name: str) -> Path:
        revision = self._revision(commit)
        self.fetched.append((revision, name))
        if self.cache is None:
            return self.folder / revision / name
        (self.cache / commit).mkdir(parents=True, exist_ok=True)
        return Path(shutil.copy(self.folder / revision / name, self.cache / commit / name))

    def read(
        self, repository: str, commit: str, name: str, size: int, first: int, into: memoryview
    ) -> None:
        revision = self._revision(commit)
        self.fail(revision, name, first)
        self.reads.append((revision, name, first, len(into)))
        with (self.folder / revision / name).open("rb") as file:
            file.seek(first)
            assert file.readinto(into) == len(into)

    @property
    def bytes_read(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for revision, _, _, count in self.reads:
            found[revision] += count
        return found


@dataclass
class Answers:
    """How the server misbehaves: told by a request's path, range and number, or well (None)."""

    wrong: Callable[[str, str | None, int], str | int | None] = lambda path, wanted, count: None
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)  # method, path, range
    headers: list[dict[str, str]] = field(default_factory=list)
    sent: Counter[str] = field(default_factory=Counter)  # bytes of weights by revision
    lock: threading.Lock = field(default_factory=threading.Lock)


@contextmanager
def served(folder: Path, *, elsewhere: bool = False) -> Iterator[tuple[str, Answers]]:
    """The Hub's answers over the folders of ``folder``: its address, and a record of requests.

    What is answered: refs, the tree of a commit, and files, whole or in part. ``elsewhere``: large
    files are answered with a redirection to another address, as weights are on the Hub.
    """
    answers = Answers()
    handler = type("Handler", (_Handler,), {"folder": folder, "answers": answers})
    servers = [_Server(("127.0.0.1", 0), handler) for _ in range(1 + elsewhere)]
    if elsewhere:
        handler.other = f"http://127.0.0.1:{servers[1].server_port}"
    threads = [threading.Thread(target=each.serve_forever, daemon=True) for each in servers]
    for thread in threads:
        thread.start()
    try:
        yield f"http://127.0.0.1:{servers[0].server_port}", answers
    finally:
        handler.gone = True  # connections that a client keeps open outlive the server
        for server, thread in zip(servers, threads, strict=True):
            server.shutdown()
            server.server_close()
            thread.join()


class _Server(ThreadingHTTPServer):
    request_queue_size = 64

    def handle_error(self, request: object, client_address: object) -> None:
        """Nothing: a client that hangs up in the middle is what some tests are about."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    folder: Path
    answers: Answers
    other: str | None = None
    gone = False

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: tests look at ``answers``."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path, wanted = unquote(urlsplit(self.path).path), self.headers.get("Range")
        if self.gone:
            self.close_connection = True
            return None
        with self.answers.lock:
            self.answers.requests.append((self.command, path, wanted))
            self.answers.headers.append({k.lower(): v for k, v in self.headers.items()})
            count = len(self.answers.requests)
        wrong = self.answers.wrong(path, wanted, count)
        if isinstance(wrong, int):
            return self._send(wrong, b"server's own trouble", {})
        if path == f"/api/models/{NAME}/refs":
            return self._json(self._refs())
        tree = re.fullmatch(rf"/api/models/{NAME}/tree/(\w+)", path)
        if tree:
            return self._json(self._tree(tree[1]))
        file = re.fullmatch(rf"/(?:direct/)?{NAME}/resolve/(\w+)/(.+)", path)
        place = self.folder / self._name(file[1]) / file[2] if file else None
        if place is None or not place.is_file():
            return self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"})
        return self._file(place, file[1], wanted, wrong, direct=path.startswith("/direct/"))

    def _name(self, commit: str) -> str:
        return next((p.name for p in self.folder.iterdir() if commit_of(p.name) == commit), "none")

    def _refs(self) -> dict[str, object]:
        branches = [
            {
                "name": each.name,
                "ref": f"refs/heads/{each.name}",
                "targetCommit": commit_of(each.name),
            }
            for each in sorted(self.folder.iterdir())
        ]
        return {"branches": branches, "converts": [], "tags": []}

    def _tree(self, commit: str) -> list[dict[str, object]]:
        found: list[dict[str, object]] = [{"type": "directory", "oid": "0" * 40, "path": "runs"}]
        for path in sorted((self.folder / self._name(commit)).iterdir()):
            size, sha = path.stat().st_size, digest(path)
            entry = {"type": "file", "oid": sha[:40], "size": size, "path": path.name}
            if path.suffix != ".json":
                entry["lfs"] = {"oid": sha, "size": size, "pointerSize": 134}
            found.append(entry)
        return found

    def _file(
        self, place: Path, commit: str, wanted: str | None, wrong: object, *, direct: bool
    ) -> None:
        size, sha = place.stat().st_size, digest(place)
        told = {
            "X-Repo-Commit": commit,
            "ETag": f'"{sha}"',
            "X-Linked-Etag": f'"{sha}"',
            "X-Linked-Size": str(size),
            "Accept-Ranges": "bytes",
        }
        if self.other is not None and not direct and place.suffix != ".json":
            return self._send(302, b"", {**told, "Location": f"{self.other}/direct{self.path}"})
        first, last, status = 0, size, 200
        if wanted is not None and wrong != "whole":
            match = re.fullmatch(r"bytes=(\d+)-(\d+)?", wanted)
            first, last = int(match[1]), min(size, int(match[2] or size - 1) + 1)
            if first >= size:
                return self._send(416, b"", {"Content-Range": f"bytes */{size}"})
            status = 206
            moved = first + (wrong == "other range")
            total = size + (wrong == "other size")
            told["Content-Range"] = f"bytes {moved}-{moved + last - first - 1}/{total}"
        if wrong == "coded":
            told["Content-Encoding"] = "gzip"
        with place.open("rb") as file:
            file.seek(first)
            content = file.read(last - first) + b"more" * (wrong == "long")
        with self.answers.lock:
            self.answers.sent[place.parent.name] += len(content) * (self.command == "GET")
        cut = 100_000 if wrong == "cut" and len(content) > 100_000 else None
        return self._send(status, content, told, cut=cut)

    def _json(self, value: object) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _send(
        self, status: int, content: bytes, headers: dict[str, str], *, cut: int | None = None
    ) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "HEAD":
            return
        self.wfile.write(content[:cut])
        if cut is not None:
            self.close_connection = True
