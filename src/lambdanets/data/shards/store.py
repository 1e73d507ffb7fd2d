"""Access to shards in a local folder, or at a URL through a local cache."""

import errno
import itertools
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import fsspec
from filelock import FileLock

from lambdanets.data.shards.listing import SHARD_LIST, Shard, ShardList, UnreadableShard
from lambdanets.errors import InputError, one_line
from lambdanets.files import atomic_open, file_sha256, open_regular, remove_unfinished, user_cache_folder
from lambdanets.terminal import echo

CACHE = "LAMBDANETS_SHARDS_CACHE"
CACHE_BYTES = "LAMBDANETS_SHARDS_CACHE_BYTES"
_DEFAULT_CACHE_BYTES = 100 * 10**9
_STALE_SECONDS = 3600.0  # an unfinished download is removed this long after the last write to it
_RETRIED_STATUSES = {408, 429}  # the transient errors among 4xx: timeout, too many requests
_PERMANENT_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES}
_MAX_ATTEMPTS_FAIL_FAST = 3  # to read shards.json; during training a server may be restarting

T = TypeVar("T")


class ShardStore:
    """The shards in a folder, or at a URL with any scheme that fsspec supports (http, https, s3, ...).

    cache: folder for downloaded shards, which all processes of a machine share; by default $LAMBDANETS_SHARDS_CACHE,
        or lambdanets/shards in the user's cache folder. It is created for the user alone (mode 0700).
    cache_bytes: maximum size of the cache without downloads in progress; by default $LAMBDANETS_SHARDS_CACHE_BYTES, or
        100 GB. The least recently used files are removed; processes that have them open can still read them.
    attempts: maximum number of attempts after transient errors (dropped connection, timeout, status 5xx).
    delay: seconds before the first retry, doubled for each further retry. Retries are reported on stderr.

    The size and SHA-256 of a shard are verified after its download, and when a store first opens it in the cache. If no
    server responds, shards.json is requested at most 3 times, because the URL may be mistyped. Credentials are
    configured in fsspec (environment variables FSSPEC_...).
    """

    def __init__(
        self,
        location: str,
        *,
        cache: Path | None = None,
        cache_bytes: int | None = None,
        attempts: int = 6,
        delay: float = 2.0,
    ) -> None:
        self.location = location.rstrip("/") if is_url(location) else location
        self._cache = cache or (_default_cache() if is_url(location) else Path())
        self._cache_bytes = _default_cache_bytes() if cache_bytes is None else cache_bytes
        if attempts < 1:
            raise InputError(f"attempts must be at least 1, got {attempts}")
        self._attempts = attempts
        self._delay = delay
        self._verified: set[str] = set()  # SHA-256 of the cached shards that were hashed

    def path(self, name: str) -> str:
        """Return the path or URL of a file of the dataset."""
        return f"{self.location}/{name}" if is_url(self.location) else str(Path(self.location, name))

    def read_list(self) -> ShardList:
        """Read shards.json. Raises InputError if it cannot be read."""
        path = self.path(SHARD_LIST)
        try:
            content = self._with_retries(path, _read, path, fail_fast=True)
        except UnreadableShard as error:
            raise InputError(f"{path} cannot be read: {error.reason}") from error
        return ShardList.from_json(content, path)

    def open(self, shard: Shard) -> BinaryIO:
        """Open a shard as a local file. Raises UnreadableShard, also if its size differs from shards.json."""
        path = self.path(shard.name)
        if is_url(path):
            return self._open_cached(shard, path)
        file = self._with_retries(path, open_regular, path)
        size = os.fstat(file.fileno()).st_size
        if size != shard.bytes:
            file.close()
            raise UnreadableShard(path, f"it has {size} bytes, not {shard.bytes} as in {SHARD_LIST}")
        return file

    def _open_cached(self, shard: Shard, url: str) -> BinaryIO:
        if shard.bytes > self._cache_bytes:
            raise UnreadableShard(url, f"its {shard.bytes} bytes do not fit into the cache of {self._cache_bytes}")
        try:
            self._cache.mkdir(0o700, parents=True, exist_ok=True)
            path = self._cache / f"{shard.sha256}.tar"
            with FileLock(path.with_suffix(".lock")):
                file = self._open_if_complete(path, shard)
                if file is not None:
                    return file
                remove_unfinished(self._cache, path.name)  # of killed processes, because this process has the lock
                self._evict(shard.bytes)
                return self._with_retries(url, _download, url, path, shard)
        except OSError as error:
            raise UnreadableShard(url, f"its cache {self._cache} cannot be used: {one_line(error)}") from error

    def _open_if_complete(self, path: Path, shard: Shard) -> BinaryIO | None:
        """Open a cached file and mark it as most recently used; None if it is missing or has other content."""
        try:
            file = open_regular(path)
        except FileNotFoundError:
            return None
        if os.fstat(file.fileno()).st_size != shard.bytes or not self._is_verified(file, shard):
            file.close()
            return None
        os.utime(file.fileno())
        return file

    def _is_verified(self, file: BinaryIO, shard: Shard) -> bool:
        """Whether the content has the hash of the shard. It is hashed once, because that takes seconds per GB."""
        if shard.sha256 not in self._verified and file_sha256(file) != shard.sha256:
            return False
        self._verified.add(shard.sha256)
        file.seek(0)
        return True

    def _evict(self, needed_bytes: int) -> None:
        """Remove the least recently used files until the cache has room for `needed_bytes`."""
        with FileLock(self._cache / "room.lock"):
            files = []
            for path in [*self._cache.glob("*.tar"), *self._cache.glob("*.unfinished")]:
                try:
                    status = path.stat()
                except FileNotFoundError:  # another process has renamed or removed it
                    continue
                files.append((status.st_mtime, status.st_size, path))
            used = sum(size for _, size, _ in files)
            for modified, size, path in sorted(files):
                is_downloading = path.suffix == ".unfinished" and time.time() - modified < _STALE_SECONDS
                if used + needed_bytes > self._cache_bytes and not is_downloading:
                    path.unlink(missing_ok=True)
                    used -= size

    def _with_retries(self, path: str, function: Callable[..., T], *arguments: Any, fail_fast: bool = False) -> T:
        """Call function(*arguments), which reads from path, and retry after transient errors.

        fail_fast: retry only twice if the host is unreachable.
        """
        for attempt in itertools.count(1):
            try:
                return function(*arguments)
            except Exception as error:  # fsspec file systems raise exceptions of any type
                is_permanent = not is_url(path) or _is_permanent(error)
                max_attempts = self._attempts
                if fail_fast and _is_unreachable(error):
                    max_attempts = min(max_attempts, _MAX_ATTEMPTS_FAIL_FAST)
                if is_permanent or attempt >= max_attempts:
                    suffix = "" if is_permanent else f" (tried {attempt} times)"
                    raise UnreadableShard(path, f"{_describe_error(error)}{suffix}") from error
                seconds = self._delay * 2 ** (attempt - 1)
                retry = f"retrying in {seconds:g} s ({attempt} of {max_attempts - 1})"
                echo(f"{path}: {retry}: {_describe_error(error)}", file=sys.stderr)
            time.sleep(seconds)
        raise AssertionError  # unreachable


class _DamagedError(Exception):
    """The size or hash of a download differs from shards.json."""


def is_url(location: str) -> bool:
    """Whether a location is a URL and not a path."""
    scheme, separator, _ = location.partition("://")
    return bool(separator) and scheme.replace("+", "").isalnum()


def _download(url: str, path: Path, shard: Shard) -> BinaryIO:
    """Download a shard to a path and open it.

    It is opened before it is renamed to `path`, because from then on other processes may remove it from the cache.
    """
    with atomic_open(path) as file:
        _file_system(url).get_file(url, file.name)
        download = open_regular(file.name)
        digest, size = file_sha256(download), download.tell()
        if (size, digest) != (shard.bytes, shard.sha256):
            download.close()
            raise _DamagedError(
                f"the download has {size} bytes and SHA-256 {digest[:12]}..., not {shard.bytes} and "
                f"{shard.sha256[:12]}... as in {SHARD_LIST}"
            )
        download.seek(0)
        return download


def _read(path: str) -> bytes:
    if is_url(path):
        return _file_system(path).cat_file(path)
    with open_regular(path) as file:
        return file.read()


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


def _is_permanent(error: Exception) -> bool:
    status = getattr(error, "status", None)
    if isinstance(status, int) and 400 <= status < 500:
        return status not in _RETRIED_STATUSES
    if isinstance(error, OSError) and error.errno in _PERMANENT_ERRORS:
        return True
    return isinstance(error, FileNotFoundError | PermissionError | ImportError | ValueError)


def _is_unreachable(error: Exception) -> bool:
    """Whether the connection was refused or the host name was not found (negative errno of getaddrinfo)."""
    code = getattr(error, "errno", None)
    return code == errno.ECONNREFUSED or (isinstance(code, int) and code < 0)


def _describe_error(error: Exception) -> str:
    status = getattr(error, "status", None)
    if isinstance(status, int):
        return f"the server responded with status {status}"
    if isinstance(error, FileNotFoundError):
        return "there is no such file"
    if isinstance(error, TimeoutError) and not error.errno:
        return "the server timed out"
    return one_line(error)


def _default_cache() -> Path:
    if path := os.environ.get(CACHE):
        return Path(path)
    try:
        return user_cache_folder() / "shards"
    except OSError as error:
        raise InputError(f"{CACHE} must be a folder for downloaded shards, got none; {error}") from error


def _default_cache_bytes() -> int:
    text = os.environ.get(CACHE_BYTES)
    if text is not None and not text.isdecimal():
        raise InputError(f"{CACHE_BYTES} must be a number of bytes, got {text!r}")
    return _DEFAULT_CACHE_BYTES if text is None else int(text)
