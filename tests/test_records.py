"""Records and JSON files that are read into annotated types, and the error messages."""

import dataclasses
from dataclasses import replace
from typing import Any, Literal

import pytest
from pydantic import NonNegativeInt

from lambdanets.errors import InputError
from lambdanets.records import Range, Several, read_json, record, write_json


@record
class Item:
    name: str
    size: NonNegativeInt
    kind: Literal["a", "b"] = "a"


@record
class Group:
    parts: dict[str, tuple[Item, ...]]
    scale: Range
    names: Several[str] = ()
    options: dict[str, Any] = dataclasses.field(default_factory=dict)


ITEM = {"name": "x", "size": 3}
GROUP = {"parts": {"train": [ITEM]}, "scale": [0.5, 1]}


def test_json_round_trip_restores_annotated_types(tmp_path):
    write_json(tmp_path / "a.json", GROUP | {"names": ["é😀", "\udcff"], "unknown": [1]})
    expected = Group(parts={"train": (Item(name="x", size=3),)}, scale=(0.5, 1), names=("é😀", "\udcff"))
    assert read_json(tmp_path / "a.json", Group) == expected


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], r"it must be an object, got \[\]"),
        ({"scale": [1, 2]}, "parts must be given, got none"),
        (GROUP | {"scale": [1, float("nan")]}, r"scale\[1\] must be a finite number, got nan"),
        (GROUP | {"parts": {"train": [ITEM | {"size": -1}]}}, r"parts\.train\[0\]\.size must be .* 0, got -1"),
        (GROUP | {"parts": {"train": [ITEM, {}]}}, r"parts\.train\[1\]\.name must be given, got none"),
        (GROUP | {"parts": "x" * 1000}, "parts must be .*, got 'x{149} [.]{3}"),
    ],
)
def test_validation_error_names_file_field_and_value(content, message, tmp_path):
    write_json(tmp_path / "a.json", content)
    with pytest.raises(InputError, match=rf"a\.json is damaged: {message}; write it again$"):
        read_json(tmp_path / "a.json", Group, "write it again")


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[" * 100_000])
def test_rejects_files_that_are_not_json(content, tmp_path):
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(InputError, match=r"a\.json is damaged: \S.*; write it again$"):
        read_json(tmp_path / "a.json", Group, "write it again")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("size", True, "size must be a valid integer, got True"),
        ("size", "3", "size must be a valid integer, got '3'"),
        ("size", -1, "size must be greater than or equal to 0, got -1"),
        ("kind", "c", "kind must be 'a' or 'b', got 'c'"),
        ("sizes", 3, "Item has no field 'sizes'; the nearest is size"),
    ],
)
def test_replacing_a_field_of_a_record_checks_it(field, value, message):
    with pytest.raises(InputError, match=f"^{message}$"):
        replace(Item(name="x", size=3), **{field: value})
