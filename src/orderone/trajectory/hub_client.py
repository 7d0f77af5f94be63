"""The Hugging Face Hub through ``huggingface_hub``: names, sizes, and ranges of bytes.

Ranges are read as a stream into memory that is given, so that a server which answers with more
than was asked for (with the whole file, say) cannot fill the memory: it is refused.
"""

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

from orderone.core.errors import MissingPackageError
from orderone.trajectory.findings import UnreadableError

_ATTEMPTS = 6
_LONGEST_WAIT = 8.0
_BUSY = (408, 429, 500, 502, 503, 504)
_BLOCK = 1 << 16


@dataclass(frozen=True, kw_only=True)
class RemoteFile:
    """One file of a commit; files of equal ``content`` have equal bytes, None says nothing."""

    size: int
    content: str | None = None


class Hub:
    """``huggingface_hub``'s API, from 0.34 on: over requests, httpx or httpx2."""

    def __init__(self, endpoint: str | None = None, *, cache: Path | None = None) -> None:
        try:
            import huggingface_hub
            from huggingface_hub import constants, utils
        except ImportError as error:
            needed = "checkpoints on the Hugging Face Hub"
            raise MissingPackageError("huggingface_hub", needed_for=needed) from error
        self._hub: Any = huggingface_hub
        self._utils: Any = utils
        self._timeout: float = constants.HF_HUB_DOWNLOAD_TIMEOUT
        self._endpoint = endpoint
        self._cache = cache
        self._direct: dict[str, str] = {}

    @property
    def _api(self) -> Any:
        return self._hub.HfApi(endpoint=self._endpoint)

    def revisions(self, repository: str) -> dict[str, str]:
        refs = self._api.list_repo_refs(repository)
        # A tag gives way to a branch of its name, as it does when the Hub resolves the name.
        return {ref.name: ref.target_commit for ref in [*refs.tags, *refs.branches]}

    def files(self, repository: str, commit: str) -> dict[str, RemoteFile]:
        entries = self._api.list_repo_tree(repository, revision=commit)
        return {
            entry.path: RemoteFile(
                size=entry.size,
                content=entry.lfs.sha256 if entry.lfs is not None else entry.blob_id,
            )
            for entry in entries
            if isinstance(getattr(entry, "size", None), int)  # folders have none
        }

    def fetch(self, repository: str, commit: str, name: str) -> Path:
        return Path(
            self._hub.hf_hub_download(
                repository, name, revision=commit, endpoint=self._endpoint, cache_dir=self._cache
            )
        )

    def read(
        self, repository: str, commit: str, name: str, size: int, first: int, into: memoryview
    ) -> None:
        """Bytes from ``first`` on; a connection that breaks off is taken up where it broke."""
        url = self._hub.hf_hub_url(repository, name, revision=commit, endpoint=self._endpoint)
        done, failures = 0, 0
        while done < len(into):
            got, broken = self._read(url, name, size, first + done, into[done:])
            done += got
            failures = 0 if got else failures + 1
            if broken is not None and failures >= _ATTEMPTS:
                raise broken
            if broken is not None:
                time.sleep(min(_LONGEST_WAIT, 2.0 ** (failures - 1)))

    def _read(
        self, url: str, name: str, size: int, first: int, into: memoryview
    ) -> tuple[int, Exception | None]:
        """How many bytes came, and what ended it before the last."""
        wanted = f"bytes={first}-{first + len(into) - 1}"
        with self._response(url, wanted) as (response, parts):
            _check(response, name, size, first, len(into))
            done = 0
            try:
                for part in parts:
                    if done + len(part) > len(into):
                        raise UnreadableError(
                            "unreadable", f"'{name}': the server sends more than it was asked for"
                        )
                    into[done : done + len(part)] = part
                    done += len(part)
            except UnreadableError:
                raise
            # The client's own errors may not pass through its context: it would ask once more.
            except Exception as error:
                return done, error
        short = ConnectionError(f"the server sends {done} of {len(into)} bytes")
        return done, None if done == len(into) else short

    @contextmanager
    def _response(self, url: str, wanted: str) -> Generator[tuple[Any, Iterator[bytes]]]:
        """The answer to a request for a range, and its bytes as they come.

        Weights lie elsewhere, at an address that is good for some time: the Hub is asked for it
        only when that is over, since it bounds how often one may ask.
        """
        direct = self._direct.get(url)
        if direct is not None:
            with self._opened(direct, {"Range": wanted}) as answer:
                if answer[0].status_code == 206:
                    yield answer
                    return
            del self._direct[url]
        headers = {**self._utils.build_hf_headers(), "Range": wanted}
        with self._opened(url, headers) as answer:
            self._utils.hf_raise_for_status(answer[0])
            final = str(answer[0].url)
            if urlsplit(final).netloc != urlsplit(url).netloc:
                self._direct[url] = final
            yield answer

    @contextmanager
    def _opened(self, url: str, headers: dict[str, str]) -> Generator[tuple[Any, Iterator[bytes]]]:
        options: dict[str, Any] = {
            "headers": {**headers, "Accept-Encoding": "identity"},
            "timeout": self._timeout,
            "max_retries": _ATTEMPTS - 1,
            "max_wait_time": _LONGEST_WAIT,
            "retry_on_status_codes": _BUSY,
        }
        stream = cast(
            "Callable[..., Any] | None", getattr(self._utils, "http_stream_backoff", None)
        )
        if stream is not None:
            with stream("GET", url, **options) as response:
                yield response, response.iter_raw()  # as it comes: what breaks off keeps what came
            return
        response = self._utils.http_backoff("GET", url, stream=True, **options)  # before 1.0
        try:
            yield response, response.iter_content(_BLOCK)
        finally:
            response.close()


def _check(response: Any, name: str, size: int, first: int, count: int) -> None:
    """Refuse what is not exactly the range that was asked for."""
    coded = response.headers.get("Content-Encoding", "identity")
    said = response.headers.get("Content-Range")
    if coded != "identity":
        raise UnreadableError("unreadable", f"'{name}': the server sends it as {coded}")
    if response.status_code == 206 and said == f"bytes {first}-{first + count - 1}/{size}":
        return
    if response.status_code == 206:
        raise UnreadableError(
            "unreadable",
            f"'{name}': asked for bytes {first}-{first + count - 1} of {size}, "
            f"the server sends {said!r:.80}",
        )
    if (first, count) != (0, size):
        raise UnreadableError(
            "unreadable",
            f"'{name}': the server does not read by range (status {response.status_code}): "
            "keep the downloads",
        )
