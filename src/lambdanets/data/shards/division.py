"""What is settled before a shard is written: keys, which images go where, and whether the folder may be used."""

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from lambdanets.data.images import is_image_name
from lambdanets.data.shards.listing import SHARD_LIST, ShardList
from lambdanets.files import printable_bytes
from lambdanets.records import read_json, write_json

WRITING = "unfinished"  # the folder that holds the plan and one entry per shard until all are written
_PLAN = "plan.json"


def unique_keys(names: Sequence[str]) -> list[str]:
    """Keys in WebDataset's convention, one a name and all different, in which a person recognises the name.

    A key is the name below the folder that all share, without the image's suffix; further dots in its last part become
    "_", because WebDataset ends a key at the first. A key that is taken gets "-2", "-3" and so on.
    """
    folders = [os.path.dirname(name) for name in (min(names), max(names))]  # noqa: PTH120 - names are no paths, all of them
    root = os.path.commonpath(folders)
    taken: set[str] = set()
    next_number: dict[str, int] = {}
    keys = []
    for name in names:
        key = wanted = _key(os.path.relpath(name, root) if root else name)
        while key in taken:
            next_number[wanted] = next_number.get(wanted, 1) + 1
            key = f"{wanted}-{next_number[wanted]}"
        taken.add(key)
        keys.append(key)
    return keys


def _key(name: str) -> str:
    folder, slash, base = printable_bytes(name).decode().rpartition("/")
    stem = PurePosixPath(base).stem if is_image_name(base) else base
    inside = "/".join("_" if part == ".." else part for part in folder.split("/"))  # whoever unpacks the shards
    return f"{inside}{slash}{stem.replace('.', '_')}"


def split_evenly(order: np.ndarray, most: int) -> list[np.ndarray]:
    """An order in as few pieces of at most so many as will do, all of the same length or one shorter."""
    return np.array_split(order, max(1, -(-len(order) // most)))


def identity(classes: Sequence[str], parts: Mapping[str, tuple[Sequence[str], np.ndarray]]) -> str:
    """A hash of the classes, and of the keys and class numbers of each part."""
    digest = hashlib.sha256(repr(tuple(classes)).encode())
    for name, (keys, labels) in parts.items():
        for key, label in zip(keys, labels.tolist(), strict=True):
            digest.update(f"{name} {key!r} {label}\n".encode())
    return digest.hexdigest()


def made_in(out: Path) -> dict[str, Any] | None:
    """What the shards in a folder, all or some of them, depend on; None where this package has written none."""
    plan, whole = out / WRITING / _PLAN, out / SHARD_LIST
    if whole.is_file():
        made = ShardList.from_json(whole.read_bytes(), str(whole)).made
    else:
        made = read_json(plan, dict[str, Any], f"remove {out}, or name a new folder") if plan.is_file() else {}
    return dependencies(made) if made else None


def dependencies(made: dict[str, Any]) -> dict[str, Any]:
    """What `made` says, by the names that messages use."""
    return {"images, names or classes" if name == "set" else name: value for name, value in made.items()}


def begin(out: Path, made: dict[str, Any]) -> None:
    """Write into a folder what is made there."""
    plan = out / WRITING / _PLAN
    plan.parent.mkdir(exist_ok=True)
    write_json(plan, made, None)
