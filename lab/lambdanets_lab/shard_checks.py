"""Verifies shards."""

import tarfile
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lambdanets.data.shards import (
    SHARD_LIST,
    Shard,
    ShardImage,
    ShardList,
    index_tar,
    is_url,
    open_shard,
    read_shard_list,
)
from lambdanets.errors import InputError, one_line
from lambdanets.files import file_sha256, open_regular
from lambdanets.progress import track
from lambdanets_lab.remote import download


def inspect_tar(path: Path) -> tuple[Shard, list[ShardImage]]:
    """Return the entry of a tar in shards.json, and its images. Raises InputError."""
    try:
        with open_regular(path) as file:
            images = index_tar(file)
            digest, size = file_sha256(file), file.tell()
    except (OSError, tarfile.TarError) as error:
        raise InputError(f"{path} must be a complete tar file: {one_line(error)}") from error
    return Shard(path.name, len(images), size, digest), images


def verify_shards(location: str, *, threads: int = 1) -> tuple[ShardList, list[str]]:
    """Compare SHA-256 and number of images of every shard, in a folder or at a URL, with shards.json.

    Returns the content of shards.json, and a message for each missing or damaged shard. Shards at a URL are downloaded
    again. Raises InputError if there is no shards.json.
    """
    location = location.rstrip("/")
    content = read_shard_list(location)
    with tempfile.TemporaryDirectory(prefix="lambdanets-verify-") as folder, ThreadPoolExecutor(threads) as pool:
        # hashing and reading release the GIL
        problems = pool.map(lambda shard: _check_shard(location, shard, Path(folder)), content.shards)
        try:
            messages = [*track(problems, "verifying", len(content.shards), "shards")]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return content, [message for message in messages if message]


def _check_shard(location: str, shard: Shard, folder: Path) -> str:
    """Return a message if the shard is missing or damaged, else "". folder: for a download, which is removed."""
    path, copy = f"{location}/{shard.name}", folder / shard.name
    try:
        with download(path, copy, shard) if is_url(location) else open_shard(location, shard) as file:
            copy.unlink(missing_ok=True)
            if file_sha256(file) != shard.sha256:
                return f"{path}: its SHA-256 differs from {SHARD_LIST}"
            file.seek(0)
            count = len(index_tar(file))
    except FileNotFoundError:
        return f"{path}: there is no such file"
    except (OSError, tarfile.TarError) as error:
        return f"{path}: {one_line(error)}"
    return "" if count == shard.images else f"{path}: it has {count} images, not {shard.images}"
