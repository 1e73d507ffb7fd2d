"""Where shards come from: a local folder, or a URL by way of a cache of whole files."""

import errno
import itertools
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import fsspec
from filelock import FileLock

from lambdanets.data.shards.listing import SHARD_LIST, Shard, ShardList, UnreadableShard
from lambdanets.errors import InputError, one_line
from lambdanets.files import atomic_open, open_regular, remove_unfinished, sha256_of
from lambdanets.terminal import say

CACHE = "LAMBDANETS_SHARDS_CACHE"
CACHE_BYTES = "LAMBDANETS_SHARDS_CACHE_BYTES"
_CACHE_BYTES = 100 * 10**9
_ABANDONED = 3600.0  # seconds since the last write into a file that some process was fetching
_MAY_PASS = {408, 429}  # of the answers 4xx: time-out, too many requests
_LASTING = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES}

_TRIES_WITHOUT_SERVER = 3  # at opening; in training a server may be restarting

T = TypeVar("T")


class ShardStore:
    """The shards at a location: a folder, or a URL of any scheme that fsspec knows (http, https, s3, ...).

    A shard at a URL is fetched whole into the folder `cache`, which all processes of a machine share; by default
    $LAMBDANETS_SHARDS_CACHE, or a folder among the temporary ones. Its size and SHA-256 are checked on the way, so
    that a file in the cache is whole. The cache keeps below `cache_bytes` (by default $LAMBDANETS_SHARDS_CACHE_BYTES,
    or 100 GB), not counting what others are fetching just then, by removing the files that were opened longest ago; a
    process that has one open goes on reading it. What may pass (a dropped connection, a time-out, an answer 5xx) is
    tried `tries` times, after pauses of `pause` seconds that double each time, and each retry is reported on stderr.
    The list of shards is tried 3 times at most where no server answers, as its URL may be mistyped. Credentials and the
    like are fsspec's own configuration (FSSPEC_... in the environment).
    """

    def __init__(
        self,
        location: str,
        *,
        cache: Path | None = None,
        cache_bytes: int | None = None,
        tries: int = 6,
        pause: float = 2.0,
    ) -> None:
        self.location = location.rstrip("/") if is_url(location) else location
        self._cache = cache or _usual_cache()
        self._cache_bytes = _usual_bytes() if cache_bytes is None else cache_bytes
        if tries < 1:
            raise InputError(f"tries must be at least 1, got {tries}")
        self._tries = tries
        self._pause = pause

    def path(self, name: str) -> str:
        """The path or URL of a file of the set."""
        return f"{self.location}/{name}" if is_url(self.location) else str(Path(self.location, name))

    def read_list(self) -> ShardList:
        """The list of the set's shards. Raises InputError when it cannot be had."""
        path = self.path(SHARD_LIST)
        try:
            content = self._persevere(path, _read, path, opening=True)
        except UnreadableShard as error:
            raise InputError(f"expected a list of shards in '{path}', but {error.reason}") from error
        return ShardList.from_json(content, path)

    def open(self, shard: Shard) -> BinaryIO:
        """A shard as an open local file of the right size. Raises UnreadableShard when it cannot be had."""
        path = self.path(shard.name)
        if is_url(path):
            return self._open_cached(shard, path)
        file = self._persevere(path, open_regular, path)
        size = os.fstat(file.fileno()).st_size
        if size != shard.bytes:
            file.close()
            raise UnreadableShard(path, f"it has {size} bytes and not {shard.bytes}, as the list of shards says")
        return file

    def _open_cached(self, shard: Shard, url: str) -> BinaryIO:
        if shard.bytes > self._cache_bytes:
            raise UnreadableShard(url, f"its {shard.bytes} bytes do not fit into a cache of {self._cache_bytes}")
        try:
            self._cache.mkdir(parents=True, exist_ok=True)
            path = self._cache / f"{shard.sha256}.tar"
            with FileLock(path.with_suffix(".lock")):
                file = _open_whole(path, shard.bytes)
                if file is not None:
                    return file
                remove_unfinished(self._cache, path.name)  # nobody else is fetching it, as we hold its lock
                self._make_room(shard.bytes)
                return self._persevere(url, _fetch, url, path, shard)
        except OSError as error:
            raise UnreadableShard(url, f"its cache {self._cache} cannot be used: {one_line(error)}") from error

    def _make_room(self, wanted: int) -> None:
        """Remove the files opened longest ago until so many bytes more keep the cache below its bound."""
        with FileLock(self._cache / "room.lock"):
            found = []
            for path in [*self._cache.glob("*.tar"), *self._cache.glob("*.unfinished")]:
                try:
                    state = path.stat()
                except FileNotFoundError:  # fetched or removed meanwhile
                    continue
                found.append((state.st_mtime, state.st_size, path))
            used = sum(size for _, size, _ in found)
            for changed, size, path in sorted(found):
                fetching = path.suffix == ".unfinished" and time.time() - changed < _ABANDONED
                if used + wanted > self._cache_bytes and not fetching:
                    path.unlink(missing_ok=True)
                    used -= size

    def _persevere(self, path: str, action: Callable[..., T], *arguments: Any, opening: bool = False) -> T:
        """Do what reaches for a path, again and again while the cause of failing may pass."""
        for attempt in itertools.count(1):
            try:
                return action(*arguments)
            except Exception as error:  # file systems raise whatever their libraries do
                lasting = not is_url(path) or _is_lasting(error)
                tries = min(self._tries, _TRIES_WITHOUT_SERVER) if opening and _has_no_server(error) else self._tries
                if lasting or attempt >= tries:
                    tried = "" if lasting else f" (tried {attempt} times)"
                    raise UnreadableShard(path, f"{_reason(error)}{tried}") from error
                seconds = self._pause * 2 ** (attempt - 1)
                retry = f"retrying in {seconds:g} s ({attempt} of {tries - 1})"
                say(f"{path}: {retry}: {_reason(error)}", file=sys.stderr)
            time.sleep(seconds)
        raise AssertionError  # the loop has no end but those above


class _DamagedError(Exception):
    """What was fetched is not what the list says."""


def is_url(location: str) -> bool:
    """Whether a location is a URL and no path."""
    scheme, separator, _ = location.partition("://")
    return bool(separator) and scheme.replace("+", "").isalnum()


def _fetch(url: str, path: Path, shard: Shard) -> BinaryIO:
    """Fetch a shard to a path and open it. Opened before it gets its name, as others may remove it from then on."""
    with atomic_open(path) as file:
        _file_system(url).get_file(url, file.name)
        fetched = open_regular(file.name)
        digest, size = sha256_of(fetched), fetched.tell()
        if (size, digest) != (shard.bytes, shard.sha256):
            fetched.close()
            raise _DamagedError(
                f"it came as {size} bytes with SHA-256 {digest[:12]}... and not as {shard.bytes} with "
                f"{shard.sha256[:12]}..., as the list of shards says"
            )
        fetched.seek(0)
        return fetched


def _read(path: str) -> bytes:
    if is_url(path):
        return _file_system(path).cat_file(path)
    with open_regular(path) as file:
        return file.read()


def _open_whole(path: Path, size: int) -> BinaryIO | None:
    """A cached file, now the one opened last; None where it is not there or of another size."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return None
    if os.fstat(file.fileno()).st_size != size:
        file.close()
        return None
    os.utime(file.fileno())
    return file


def _file_system(url: str) -> Any:
    """Made anew at each call: fsspec keeps one a process, and one from before a fork does not work after it."""
    options = {}
    if url.startswith(("http://", "https://")):
        import aiohttp

        # aiohttp's own limit of 5 minutes for a whole file would be too little for a large shard
        limits = aiohttp.ClientTimeout(total=None, sock_connect=30, sock_read=60)
        configured = [fsspec.config.conf.get(scheme, {}).get("client_kwargs", {}) for scheme in ("http", "https")]
        options["client_kwargs"] = {"timeout": limits, **configured[0], **configured[1]}
    return fsspec.core.url_to_fs(url, **options)[0]


def _is_lasting(error: Exception) -> bool:
    status = getattr(error, "status", None)
    if isinstance(status, int) and 400 <= status < 500:
        return status not in _MAY_PASS
    if isinstance(error, OSError) and error.errno in _LASTING:
        return True
    return isinstance(error, FileNotFoundError | PermissionError | ImportError | ValueError)


def _has_no_server(error: Exception) -> bool:
    """Whether a connection was refused, or no address is known for the name of the server (errors of getaddrinfo)."""
    number = getattr(error, "errno", None)
    return number == errno.ECONNREFUSED or (isinstance(number, int) and number < 0)


def _reason(error: Exception) -> str:
    status = getattr(error, "status", None)
    if isinstance(status, int):
        return f"the server answered {status}"
    if isinstance(error, FileNotFoundError):
        return "there is no such file"
    if isinstance(error, TimeoutError) and not error.errno:
        return "the server did not answer in time"
    return one_line(error)


def _usual_cache() -> Path:
    given = os.environ.get(CACHE)
    return Path(given) if given else Path(tempfile.gettempdir()) / f"lambdanets-shards-{os.getuid()}"


def _usual_bytes() -> int:
    given = os.environ.get(CACHE_BYTES)
    if given is not None and not given.isdecimal():
        raise InputError(f"expected a number of bytes in {CACHE_BYTES}, but came {given!r}")
    return _CACHE_BYTES if given is None else int(given)
