"""JSON files that are read into annotated types, and the error messages."""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NotRequired, TypedDict

import pytest

from lambdanets.bounds import Range
from lambdanets.errors import InputError
from lambdanets.records import read_json, write_json


@dataclass(frozen=True)
class Item:
    RANGES: ClassVar[dict[str, Range]] = {"size": Range(0)}

    name: str
    size: int
    kind: Literal["a", "b"] = "a"


class Record(TypedDict):
    parts: dict[str, tuple[Item, ...]]
    scale: tuple[float, float]
    flags: NotRequired[tuple[bool, bool]]
    bits: NotRequired[Literal[8, 16]]
    note: NotRequired[str | None]


@dataclass(frozen=True)
class Nested:
    part: Item | None = None
    names: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)


ITEM = {"name": "x", "size": 3}
RECORD = {"parts": {"train": [ITEM]}, "scale": [1, 0.5]}


def test_json_round_trip_restores_annotated_types(tmp_path):
    write_json(tmp_path / "a.json", RECORD | {"more": [1]})
    read = read_json(tmp_path / "a.json", Record)
    assert read == {"parts": {"train": (Item("x", 3),)}, "scale": (1, 0.5), "more": [1]}
    write_json(tmp_path / "b.json", {"part": {"name": "x", "size": 3}, "names": ["é"], "later": 1})
    assert read_json(tmp_path / "b.json", Nested) == Nested(Item("x", 3), ("é",))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], r"it must be an object, got \[\]"),
        ({"scale": [1, 2]}, "parts must be an object, got nothing"),
        (RECORD | {"scale": [1, 2, 3]}, r"scale must be 2 finite numbers, got \[1, 2, 3\]"),
        (RECORD | {"scale": [1, float("nan")]}, r"scale must be 2 finite numbers, got \[1, nan\]"),
        (RECORD | {"flags": [True] * 3}, r"flags must be a list of 2 values, got \[True, True, True\]"),
        (RECORD | {"bits": 8.0}, r"bits must be one of 8, 16, got 8\.0"),
        (RECORD | {"note": 3}, "note must be a string or None, got 3"),
        (RECORD | {"parts": {"train": 3}}, r"parts\.train must be a list, got 3"),
        (
            RECORD | {"parts": {"train": [ITEM | {"size": -1}]}},
            r"parts\.train\[0\]\.size must be .* 0, got -1",
        ),
        (RECORD | {"parts": {"train": [ITEM, {}]}}, r"parts\.train\[1\]\.name must be a string, got nothing"),
        (
            RECORD | {"parts": {"train": [ITEM | {"kind": "c"}]}},
            r"parts\.train\[0\]\.kind must be one of a, b, got 'c'",
        ),
        (RECORD | {"parts": "x" * 1000}, "parts must be an object, got 'x{149} [.]{3} x{44}'"),
    ],
)
def test_validation_error_names_file_field_and_value(content, message, tmp_path):
    write_json(tmp_path / "a.json", content)
    with pytest.raises(InputError, match=rf"a\.json is damaged: {message}; write it again$"):
        read_json(tmp_path / "a.json", Record, "write it again")


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[" * 100_000])
def test_rejects_files_that_are_not_json(content, tmp_path):
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(InputError, match=r"a\.json is damaged: \S.*; write it again$"):
        read_json(tmp_path / "a.json", Record, "write it again")
