"""Shards at a URL: downloads with retries into a cache of the user. `lambdanets.data.shards` finds it by name."""

import contextlib
import errno
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import fsspec
from filelock import FileLock

from lambdanets.data.shards import SHARD_LIST, Shard, Store
from lambdanets.errors import InputError, one_line
from lambdanets.files import atomic_open, file_sha256, open_regular
from lambdanets.terminal import echo

CACHE = "LAMBDANETS_SHARDS_CACHE"
CACHE_BYTES = "LAMBDANETS_SHARDS_CACHE_BYTES"
ATTEMPTS = 5  # after transient errors: dropped connection, timeout, status 5xx
DELAY = 2.0  # seconds before the first retry, doubled for each further retry
_RETRIED_STATUSES = {408, 429}  # the transient errors among 4xx: timeout, too many requests

T = TypeVar("T")


class RemoteStore(Store):
    """The shards at a URL with any scheme that fsspec supports (http, https, s3, ...).

    Downloaded shards are in the folder $LAMBDANETS_SHARDS_CACHE, by default lambdanets/shards in the user's cache
    folder, which is created for the user alone (mode 0700). The least recently used ones are removed to keep it below
    $LAMBDANETS_SHARDS_CACHE_BYTES, by default 100 GB, and downloaded again when they are needed.

    cache, cache_bytes: another folder and maximum size.

    The SHA-256 of a shard is verified after its download, and when a store first opens it in the cache. Retries are
    reported on stderr. Credentials are configured in fsspec (environment variables FSSPEC_...).
    """

    def __init__(self, location: str, cache: Path | None = None, cache_bytes: int | None = None) -> None:
        super().__init__(location)
        size = os.environ.get(CACHE_BYTES, str(100 * 10**9))
        if not size.isdecimal():
            raise InputError(f"{CACHE_BYTES} must be a number of bytes, got {size!r}")
        self._cache_bytes = int(size) if cache_bytes is None else cache_bytes
        try:
            user = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
            self._cache = cache or Path(os.environ.get(CACHE) or Path(user, "lambdanets/shards"))
        except RuntimeError as error:
            raise InputError(f"{CACHE} must be a folder for downloaded shards, got none; {error}") from error
        self._verified: set[str] = set()  # SHA-256 of the cached shards that were hashed

    def read_list(self) -> bytes:
        """Read shards.json. Raises OSError."""
        url = self.path(SHARD_LIST)
        return _with_retries(url, lambda: _file_system(url).cat_file(url))

    def open(self, shard: Shard) -> BinaryIO:
        """Open a shard in the cache, and download it first if it is missing or has other content. Raises OSError."""
        path = self._cache / f"{shard.sha256}.tar"
        if shard.sha256 in self._verified:  # a lock for each image would take longer than its decoding
            with contextlib.suppress(FileNotFoundError):  # removed to make room
                os.utime(path)  # the most recently used
                return open_regular(path)
        self._cache.mkdir(0o700, parents=True, exist_ok=True)
        with FileLock(path.with_suffix(".lock")):
            if path.is_file():
                file = open_regular(path)
                if file_sha256(file) == shard.sha256:
                    self._verified.add(shard.sha256)
                    os.utime(file.fileno())  # the most recently used
                    file.seek(0)
                    return file
                file.close()
            self._make_room(shard.bytes)
            file = _with_retries(self.path(shard.name), lambda: _download(self.path(shard.name), path, shard))
            self._verified.add(shard.sha256)
            return file

    def _make_room(self, needed_bytes: int) -> None:
        """Remove the least recently used files until the cache has room."""
        if needed_bytes > self._cache_bytes:
            raise OSError(f"its {needed_bytes} bytes do not fit into the cache of {self._cache_bytes}")
        with FileLock(self._cache / "room.lock"):
            files = [(path.stat(), path) for path in self._cache.glob("*.tar")]
            used = sum(status.st_size for status, _ in files)
            for status, path in sorted(files, key=lambda file: file[0].st_mtime):
                if used + needed_bytes > self._cache_bytes:
                    path.unlink(missing_ok=True)
                    used -= status.st_size


def _download(url: str, path: Path, shard: Shard) -> BinaryIO:
    """Download a shard to a path and open it.

    It is opened before it is renamed to `path`, because from then on other processes may remove it from the cache.
    """
    with atomic_open(path) as file:
        _file_system(url).get_file(url, file.name)
        download = open_regular(file.name)
        if (digest := file_sha256(download)) != shard.sha256:
            size = download.tell()
            download.close()
            raise RuntimeError(f"the download has {size} bytes and SHA-256 {digest[:12]}..., not as in {SHARD_LIST}")
        download.seek(0)
        return download


def _with_retries(url: str, function: Callable[[], T]) -> T:
    """Call a function that reads from a URL, and retry after transient errors. Raises OSError."""
    attempt = 1
    while True:
        try:
            return function()
        except Exception as error:  # fsspec file systems raise exceptions of any type
            if isinstance(error, FileNotFoundError):
                raise
            status = getattr(error, "status", None)
            refused = isinstance(status, int) and 400 <= status < 500 and status not in _RETRIED_STATUSES
            full = getattr(error, "errno", None) == errno.ENOSPC
            if refused or full or isinstance(error, PermissionError | ImportError | ValueError):
                raise OSError(one_line(error)) from error
            if attempt == ATTEMPTS:
                raise OSError(f"{one_line(error)} (tried {attempt} times)") from error
            seconds = DELAY * 2 ** (attempt - 1)
            retry = f"retrying in {seconds:g} s ({attempt} of {ATTEMPTS - 1})"
            echo(f"{url}: {retry}: {one_line(error)}", file=sys.stderr)
        time.sleep(seconds)
        attempt += 1


def _file_system(url: str) -> Any:
    """Return a new fsspec file system at each call, because a cached one does not work after a fork."""
    options = {}
    if url.startswith(("http://", "https://")):
        import aiohttp

        # aiohttp's default timeout of 5 minutes per file is too short for a large shard
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=30, sock_read=60)
        configured = [fsspec.config.conf.get(scheme, {}).get("client_kwargs", {}) for scheme in ("http", "https")]
        options["client_kwargs"] = {"timeout": timeout, **configured[0], **configured[1]}
    return fsspec.core.url_to_fs(url, **options)[0]
