"""shards.json: which tar files a set of images lies in, how many images each holds, and the names of the classes."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import PurePosixPath
from typing import Any

from lambdanets.errors import InputError

SHARD_LIST = "shards.json"
_MOST = 2**50  # images or bytes of a shard; sums of them fit into int64


class UnreadableShard(InputError):  # noqa: N818 - as UnreadableImage
    """A shard that cannot be had or is damaged: `path` is its path or URL, `reason` the cause in a few words."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"expected a whole shard in {path}, but {reason}")
        self.path = path
        self.reason = reason

    def __reduce__(self) -> tuple[type["UnreadableShard"], tuple[str, str]]:
        return type(self), (self.path, self.reason)  # an exception is otherwise rebuilt from its message alone


@dataclass(frozen=True)
class Shard:
    """One tar file: its name within the set, its images, its size in bytes and its SHA-256 in hexadecimal digits."""

    name: str
    images: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class ShardList:
    """What shards.json says. `classes` is empty for images without classes; `made` tells how shards were written."""

    classes: tuple[str, ...]
    parts: dict[str, tuple[Shard, ...]]
    made: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> bytes:
        """The content of shards.json, a shard a line."""
        parts = []
        for name, shards in self.parts.items():
            lines = ",\n".join(f"   {json.dumps(asdict(shard))}" for shard in shards)
            parts.append(f"  {json.dumps(name)}: [\n{lines}\n  ]")
        text = ",\n".join(parts)
        made = f',\n "made": {json.dumps(self.made)}' if self.made else ""
        return f'{{\n "classes": {json.dumps(self.classes)},\n "parts": {{\n{text}\n }}{made}\n}}\n'.encode()

    @classmethod
    def from_json(cls, content: bytes, source: str) -> "ShardList":
        """Read what `to_json` writes. Raises InputError, naming `source`, for anything else."""
        try:
            fields = json.loads(content)
            classes = tuple(fields["classes"])
            parts = {name: tuple(_shard(entry) for entry in entries) for name, entries in fields["parts"].items()}
            if not isinstance(fields["classes"], list) or not all(isinstance(name, str) for name in classes):
                raise TypeError("its classes are not names")
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            reason = f"it has no {error}" if isinstance(error, KeyError) else str(error)
            raise InputError(f"expected a list of shards in '{source}', but: {reason}") from error
        unknown = sorted(parts.keys() - {"train", "validation"})
        if unknown or not parts.get("train"):
            what = f"'{unknown[0]}'" if unknown else "no shards to train on"
            raise InputError(f"expected the parts 'train' and perhaps 'validation' in '{source}', but came {what}")
        return cls(classes, parts, fields.get("made", {}))


def _shard(entry: dict[str, Any]) -> Shard:
    shard = Shard(entry["name"], entry["images"], entry["bytes"], entry["sha256"])
    path = PurePosixPath(shard.name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise ValueError(f"a shard lies outside the set: '{shard.name}'")
    numbers = (shard.images, shard.bytes)
    if not all(isinstance(number, int) and 0 <= number < _MOST for number in numbers):
        raise ValueError(f"'{shard.name}' has no whole numbers of images and bytes")
    if len(bytes.fromhex(shard.sha256)) != 32:
        raise ValueError(f"'{shard.name}' has no SHA-256")
    return shard
