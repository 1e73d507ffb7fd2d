"""Shards at a URL with any scheme of fsspec (http, s3, ...): downloads into a cache of the user, with retries.

Retries are reported on stderr. Credentials are configured in fsspec (environment variables FSSPEC_...), for http also
in ~/.netrc. `lambdanets.data.shards` finds this module by name.
"""

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

from lambdanets.data.shards import SHARD_LIST, Shard
from lambdanets.errors import InputError, one_line
from lambdanets.files import atomic_open, file_sha256, open_regular
from lambdanets.terminal import echo

CACHE = "LAMBDANETS_SHARDS_CACHE"
CACHE_BYTES = "LAMBDANETS_SHARDS_CACHE_BYTES"
ATTEMPTS = 5  # after transient errors: dropped connection, timeout, status 5xx
DELAY = 2.0  # seconds before the first retry, doubled for each further retry
_RETRIED_STATUSES = {408, 429}  # the transient errors among 4xx: timeout, too many requests

T = TypeVar("T")

verified: set[str] = set()  # SHA-256 of the cached shards that this process has hashed


def read(url: str) -> bytes:
    """Read a small file. Raises OSError."""
    return _with_retries(url, lambda: _file_system(url).cat_file(url))


def open_shard(url: str, shard: Shard) -> BinaryIO:
    """Open a shard in the user's cache, and download it first if it is missing or has other content. Raises OSError.

    Its SHA-256 is verified after the download, and when a process first opens it in the cache, which has the folder
    $LAMBDANETS_SHARDS_CACHE, by default lambdanets/shards in the user's cache folder, and is created for the user alone
    (mode 0700). The least recently used shards are removed to keep it below $LAMBDANETS_SHARDS_CACHE_BYTES, by default
    100 GB, and downloaded again when they are needed.
    """
    path = _cache_folder() / f"{shard.sha256}.tar"
    if shard.sha256 in verified:  # a lock for each image would take longer than its decoding
        with contextlib.suppress(FileNotFoundError):  # removed to make room
            os.utime(path)  # the most recently used
            return open_regular(path)
    path.parent.mkdir(0o700, parents=True, exist_ok=True)
    with FileLock(path.with_suffix(".lock")):
        if path.is_file():
            file = open_regular(path)
            if file_sha256(file) == shard.sha256:
                verified.add(shard.sha256)
                os.utime(file.fileno())  # the most recently used
                file.seek(0)
                return file
            file.close()
        _make_room(path.parent, shard.bytes)
        file = download(url, path, shard)
        verified.add(shard.sha256)
        return file


def _cache_folder() -> Path:
    try:
        user = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        return Path(os.environ.get(CACHE) or Path(user, "lambdanets/shards"))
    except RuntimeError as error:
        raise InputError(f"{CACHE} must be a folder for downloaded shards, got none; {error}") from error


def _make_room(cache: Path, needed_bytes: int) -> None:
    """Remove the least recently used files until the cache has room."""
    limit = os.environ.get(CACHE_BYTES, str(100 * 10**9))
    if not limit.isdecimal():
        raise InputError(f"{CACHE_BYTES} must be a number of bytes, got {limit!r}")
    if needed_bytes > int(limit):
        raise OSError(f"its {needed_bytes} bytes do not fit into the cache of {limit}")
    with FileLock(cache / "room.lock"):
        files = [(path.stat(), path) for path in cache.glob("*.tar")]
        used = sum(status.st_size for status, _ in files)
        for status, path in sorted(files, key=lambda file: file[0].st_mtime):
            if used + needed_bytes > int(limit):
                path.unlink(missing_ok=True)
                used -= status.st_size


def download(url: str, path: Path, shard: Shard) -> BinaryIO:
    """Download a shard to a path, with retries, and open it. Raises OSError.

    It is opened before it is renamed to `path`, because from then on other processes may remove it from the cache.
    """

    def attempt() -> BinaryIO:
        with atomic_open(path) as file:
            _file_system(url).get_file(url, file.name)
            copy = open_regular(file.name)
            if (digest := file_sha256(copy)) != shard.sha256:
                got = f"{copy.tell()} bytes and SHA-256 {digest[:12]}..."
                copy.close()
                raise RuntimeError(f"the download has {got}, not as in {SHARD_LIST}")
            copy.seek(0)
            return copy

    return _with_retries(url, attempt)


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
    """Return the file system of fsspec, which has one for each process and thread."""
    options = {}
    if url.startswith(("http://", "https://")):
        import aiohttp

        # aiohttp's default timeout of 5 minutes per file is too short for a large shard
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=30, sock_read=60)
        configured = [fsspec.config.conf.get(scheme, {}).get("client_kwargs", {}) for scheme in ("http", "https")]
        # trust_env: proxies in http_proxy and https_proxy, and ~/.netrc, are used, as by other tools
        options["client_kwargs"] = {"timeout": timeout, "trust_env": True, **configured[0], **configured[1]}
    return fsspec.core.url_to_fs(url, **options)[0]
