"""The plan of shards before they are written: keys, images per shard, and the options stored in the folder."""

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from lambdanets.data.images import is_image_name
from lambdanets.data.shards.listing import SHARD_LIST, ShardList
from lambdanets.files import encode_utf8
from lambdanets.records import read_json, write_json

WRITING = "unfinished"  # folder of the plan and one JSON entry per shard, until all shards are written
_PLAN = "plan.json"


def unique_keys(names: Sequence[str]) -> list[str]:
    """One unique, readable key per name, in WebDataset's convention.

    A key is the path relative to the common folder, without the image's suffix; other dots in the file name become "_",
    because a WebDataset key ends at the first dot. Duplicates get "-2", "-3" and so on.
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
    """Split into the fewest parts of at most max_length, whose lengths differ by at most one."""
    return np.array_split(order, max(1, -(-len(order) // max_length)))


def hash_samples(classes: Sequence[str], parts: Mapping[str, tuple[Sequence[str], np.ndarray]]) -> str:
    """A hash of the classes, and of the keys and labels of each split."""
    digest = hashlib.sha256(repr(tuple(classes)).encode())
    for name, (keys, labels) in parts.items():
        for key, label in zip(keys, labels.tolist(), strict=True):
            digest.update(f"{name} {key!r} {label}\n".encode())
    return digest.hexdigest()


def read_identity(out: Path) -> dict[str, Any] | None:
    """The options with which the shards in a folder were written; None if it has no shards of this package."""
    plan, shard_list = out / WRITING / _PLAN, out / SHARD_LIST
    if shard_list.is_file():
        made = ShardList.from_json(shard_list.read_bytes(), str(shard_list)).made
    else:
        made = read_json(plan, dict[str, Any], f"remove {out}, or choose another folder") if plan.is_file() else {}
    return identity(made) if made else None


def identity(made: dict[str, Any]) -> dict[str, Any]:
    """The options in `made`, renamed for error messages."""
    return {"images, names or classes" if name == "set" else name: value for name, value in made.items()}


def write_plan(out: Path, made: dict[str, Any]) -> None:
    """Write the options of the shards into their folder."""
    plan = out / WRITING / _PLAN
    plan.parent.mkdir(exist_ok=True)
    write_json(plan, made, None)
