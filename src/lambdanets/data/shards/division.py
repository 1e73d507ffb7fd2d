"""What is settled before a shard is written: keys, which images go where, and whether the folder may be used."""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from lambdanets.data.images import is_image_name
from lambdanets.data.shards.listing import SHARD_LIST, ShardList
from lambdanets.errors import InputError, one_line
from lambdanets.files import atomic_write, printable_bytes
from lambdanets.locks import LOCK

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


def check_place(out: Path, made: dict[str, Any]) -> bool:
    """Whether a folder holds the whole set already, made just so; False where it is new or holds the beginning of it.

    Raises InputError for a folder that holds anything but the same set, begun or whole.
    """
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file; name a folder for the shards")
    plan, whole = out / WRITING / _PLAN, out / SHARD_LIST
    if whole.is_file():
        _check_same(out, ShardList.from_json(whole.read_bytes(), str(whole)).made, made)
        return True
    if plan.is_file():
        try:
            begun = dict(json.loads(plan.read_bytes()))
        except (ValueError, TypeError) as error:
            raise InputError(f"{plan} is damaged ({one_line(error)}); remove {out}, or name a new folder") from error
        _check_same(out, begun, made)
        return False
    if out.is_dir() and any(place.name not in (WRITING, LOCK) for place in out.iterdir()):
        raise InputError(f"{out} holds files that are no shards of this set; name a new folder")
    return False


def begin(out: Path, made: dict[str, Any]) -> None:
    """Write into a folder what is made there, unless it was begun already."""
    plan = out / WRITING / _PLAN
    if not plan.is_file():
        plan.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(plan, json.dumps(made).encode())


def _check_same(out: Path, found: dict[str, Any], made: dict[str, Any]) -> None:
    if "set" not in found:
        raise InputError(f"{out} holds shards that this package did not write; name a new folder")
    if found["set"] != made["set"]:
        raise InputError(f"{out} holds shards of another set: other images, names or classes; name a new folder")
    for name, value in made.items():
        if found.get(name) != value:
            raise InputError(f"{out} was begun with {name} {found.get(name)}, got {value}; name a new folder")
