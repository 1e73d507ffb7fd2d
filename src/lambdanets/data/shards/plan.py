"""The plan of a shard folder: the keys of the images, their division into shards, and the stored options."""

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from lambdanets.data.image_search import is_image_name
from lambdanets.data.shards.listing import SHARD_LIST, ShardList
from lambdanets.files import encode_utf8
from lambdanets.records import read_json, write_json

WORK_FOLDER = "unfinished"  # sub-folder of the plan and of one JSON file per shard, until all shards are written
_PLAN = "plan.json"


def unique_keys(names: Sequence[str]) -> list[str]:
    """Return a unique, readable WebDataset key for each name.

    A key is the path relative to the common folder, without the suffix of the image. Other dots in the file name become
    "_", because a WebDataset key ends at the first dot. Duplicate keys are numbered with "-2", "-3" and so on.
    """
    folders = [os.path.dirname(name) for name in (min(names), max(names))]  # noqa: PTH120 - not all names are paths
    root = os.path.commonpath(folders)
    used: set[str] = set()
    next_number: dict[str, int] = {}
    keys = []
    for name in names:
        key = base = _key(os.path.relpath(name, root) if root else name)
        while key in used:
            next_number[base] = next_number.get(base, 1) + 1
            key = f"{base}-{next_number[base]}"
        used.add(key)
        keys.append(key)
    return keys


def _key(name: str) -> str:
    folder, slash, base = encode_utf8(name).decode().rpartition("/")
    stem = PurePosixPath(base).stem if is_image_name(base) else base
    folder = "/".join("_" if part == ".." else part for part in folder.split("/"))  # safe to extract
    return f"{folder}{slash}{stem.replace('.', '_')}"


def split_evenly(order: np.ndarray, max_length: int) -> list[np.ndarray]:
    """Split an array into the minimum number of arrays of at most max_length, with lengths that differ by at most 1."""
    return np.array_split(order, max(1, -(-len(order) // max_length)))


def hash_samples(classes: Sequence[str], splits: Mapping[str, tuple[Sequence[str], np.ndarray]]) -> str:
    """Return a hash of the class names, and of the (keys, labels) of each split."""
    digest = hashlib.sha256(repr(tuple(classes)).encode())
    for name, (keys, labels) in splits.items():
        for key, label in zip(keys, labels.tolist(), strict=True):
            digest.update(f"{name} {key!r} {label}\n".encode())
    return digest.hexdigest()


def read_identity(out: Path) -> dict[str, Any] | None:
    """Return the options with which the shards in a folder were written; None if it has no shards of this package."""
    plan, shard_list = out / WORK_FOLDER / _PLAN, out / SHARD_LIST
    if shard_list.is_file():
        options = ShardList.from_json(shard_list.read_bytes(), str(shard_list)).metadata
    else:
        options = read_json(plan, dict[str, Any], f"remove {out}, or choose another folder") if plan.is_file() else {}
    return identity(options) if options else None


def identity(options: dict[str, Any]) -> dict[str, Any]:
    """Return the stored options with readable names, for error messages of `WorkFolder`."""
    return {"images, names or classes" if name == "set" else name: value for name, value in options.items()}


def write_plan(out: Path, options: dict[str, Any]) -> None:
    """Store the options of the shards in their folder."""
    plan = out / WORK_FOLDER / _PLAN
    plan.parent.mkdir(exist_ok=True)
    write_json(plan, options, None)
