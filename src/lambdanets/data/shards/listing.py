"""shards.json: the tar files of a dataset, the number of images in each, and the class names."""

import json
import re
from dataclasses import asdict, dataclass, field
from pathlib import PurePosixPath
from typing import Any, ClassVar

from lambdanets.bounds import Range
from lambdanets.errors import InputError
from lambdanets.records import parse_json

SHARD_LIST = "shards.json"
_COUNT = Range(0, below=2**50)  # sums of such numbers fit into int64


class UnreadableShard(InputError):  # noqa: N818 - like UnreadableImage
    """A shard is missing or damaged. path: its path or URL. reason: the cause."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"shard {path} cannot be read: {reason}")
        self.path = path
        self.reason = reason

    def __reduce__(self) -> tuple[type["UnreadableShard"], tuple[str, str]]:
        return type(self), (self.path, self.reason)  # by default, pickle would only keep the message


@dataclass(frozen=True)
class Shard:
    """A tar file: relative path, number of images, size in bytes, and SHA-256 in hexadecimal digits."""

    RANGES: ClassVar[dict[str, Range]] = {"images": _COUNT, "bytes": _COUNT}

    name: str
    images: int
    bytes: int
    sha256: str

    def __post_init__(self) -> None:
        path = PurePosixPath(self.name)
        if path.is_absolute() or ".." in path.parts or not path.parts:
            raise InputError(f"name of a shard must be a relative path without '..', got {self.name!r}")
        if not re.fullmatch("[0-9a-fA-F]{64}", self.sha256):
            raise InputError(f"sha256 must be 64 hexadecimal digits, got {self.sha256!r}")


@dataclass(frozen=True)
class _Content:
    """The JSON object in shards.json: the fields of `ShardList` under the names of its keys."""

    classes: tuple[str, ...]
    parts: dict[str, tuple[Shard, ...]]
    made: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        unknown = sorted(self.parts.keys() - {"train", "validation"})
        if unknown or not self.parts.get("train"):
            got = f"'{unknown[0]}'" if unknown else "no 'train'"
            raise InputError(f"parts must be 'train' and optionally 'validation', got {got}")


@dataclass(frozen=True)
class ShardList:
    """The content of shards.json.

    classes: class names; empty for unlabeled images.
    splits: the shards of each split, "train" and optionally "validation"; "parts" in the file.
    metadata: the options with which the shards were written, and the messages about unreadable images; "made" in the
        file.
    """

    classes: tuple[str, ...]
    splits: dict[str, tuple[Shard, ...]]
    metadata: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> bytes:
        """The content of shards.json, one line per shard."""
        parts = []
        for name, shards in self.splits.items():
            lines = ",\n".join(f"   {json.dumps(asdict(shard))}" for shard in shards)
            parts.append(f"  {json.dumps(name)}: [\n{lines}\n  ]")
        made = f',\n "made": {json.dumps(self.metadata)}' if self.metadata else ""
        body = ",\n".join(parts)
        return f'{{\n "classes": {json.dumps(self.classes)},\n "parts": {{\n{body}\n }}{made}\n}}\n'.encode()

    @classmethod
    def from_json(cls, content: bytes, source: str) -> "ShardList":
        """Parse the content of shards.json. source: name of the file in error messages."""
        parsed = parse_json(content, _Content, f"{source} is not a valid {SHARD_LIST}")
        return cls(parsed.classes, parsed.parts, parsed.made)
