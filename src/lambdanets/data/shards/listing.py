"""shards.json: the tar files of a dataset, the number of images in each, and the class names."""

import json
import re
from dataclasses import asdict, dataclass, field
from pathlib import PurePosixPath
from typing import Annotated, Any

from pydantic import Field

from lambdanets.errors import InputError, UnreadableError
from lambdanets.records import parse_json

SHARD_LIST = "shards.json"
_Count = Annotated[int, Field(ge=0, lt=2**50)]  # sums of such numbers fit into int64


class UnreadableShard(UnreadableError):  # noqa: N818 - like UnreadableImage
    """A shard is missing or damaged. path: its path or URL."""

    message = "shard {path} cannot be read: {reason}"


@dataclass(frozen=True)
class Shard:
    """A tar file: name, number of images, size in bytes, and SHA-256 in hexadecimal digits."""

    name: str
    images: _Count
    bytes: _Count
    sha256: str

    def __post_init__(self) -> None:
        if self.name in ("", "..") or PurePosixPath(self.name).name != self.name:
            raise InputError(f"name of a shard must be a file name without a folder, got {self.name!r}")
        if not re.fullmatch("[0-9a-fA-F]{64}", self.sha256):
            raise InputError(f"sha256 must be 64 hexadecimal digits, got {self.sha256!r}")


@dataclass(frozen=True)
class ShardList:
    """The content of shards.json.

    classes: class names; empty for unlabeled images.
    splits: the shards of each split, "train" and optionally "validation".
    metadata: the options with which the shards were written, and the messages about unreadable images.
    """

    classes: tuple[str, ...]
    splits: dict[str, tuple[Shard, ...]]
    metadata: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        unknown = sorted(self.splits.keys() - {"train", "validation"})
        if unknown or not self.splits.get("train"):
            got = f"'{unknown[0]}'" if unknown else "no 'train'"
            raise InputError(f"splits must be 'train' and optionally 'validation', got {got}")

    def to_json(self) -> bytes:
        """The content of shards.json, one line per shard."""
        splits = []
        for name, shards in self.splits.items():
            lines = ",\n".join(f"   {json.dumps(asdict(shard))}" for shard in shards)
            splits.append(f"  {json.dumps(name)}: [\n{lines}\n  ]")
        metadata = f',\n "metadata": {json.dumps(self.metadata)}' if self.metadata else ""
        body = ",\n".join(splits)
        return f'{{\n "classes": {json.dumps(self.classes)},\n "splits": {{\n{body}\n }}{metadata}\n}}\n'.encode()

    @classmethod
    def from_json(cls, content: bytes, source: str) -> "ShardList":
        """Parse the content of shards.json. source: name of the file in error messages."""
        return parse_json(content, cls, f"{source} is not a valid {SHARD_LIST}")
