"""Pseudo-labels and selections: invalid options, damaged tables and metadata, and training a student on them."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from .files import copy, edit_json, file, flip_byte, folder, remove, truncate
from .inputs import Input, Setup, accepted, rejected
from .options import TRAIN

LABEL = "pseudo-label {run} {shards} new"
SELECT = "pseudo-label select l new --confidence 0"
STUDENT = f"{TRAIN} --pseudo-labels s --pseudo-images {{shards}}"
LABELS, SELECTION = copy("labels", "l"), copy("selection", "s")
TABLE = "train-00000.parquet"


def parquet(path: str, **columns: Any) -> Setup:
    """A Parquet file with these columns."""
    return lambda cwd, fixtures: pq.write_table(pa.table(columns), cwd / path)


def change_teacher(cwd: Path, fixtures: Mapping[str, Any]) -> None:
    """Change the teacher in pseudo-labels.json, so that it differs from the tables' teacher."""
    description = json.loads((cwd / "l/pseudo-labels.json").read_bytes())
    description["teacher"]["weights"] = "another"
    (cwd / "l/pseudo-labels.json").write_text(json.dumps(description))


def swap_tables(cwd: Path, fixtures: Mapping[str, Any]) -> None:
    """Swap the tables of two shards."""
    first, second = cwd / "s" / TABLE, cwd / "s/train-00001.parquet"
    shutil.move(first, cwd / "first")
    shutil.move(second, first)
    shutil.move(cwd / "first", second)


LABEL_INPUTS: list[Input] = [
    *(
        rejected(f"{LABEL} --{option}", option.partition("=")[0].replace("-", "[-_ ]"))
        for option in (
            "top=0",
            "top=x",
            "batch-size=0",
            "batch-size=1",
            "batch-size=x",
            "workers=-1",
            "max-unreadable=-1",
        )
    ),
    rejected("pseudo-label", "TEACHER|teacher"),
    rejected("pseudo-label {run}", "SHARDS|shards|required|must be given"),
    rejected("pseudo-label {run} {images} new", r"shards\.json"),
    rejected("pseudo-label {run} {shards} old", "old", file("old/mine.txt", "x")),
    rejected("pseudo-label {run} {shards} old", "old", file("old", "x")),
    rejected("pseudo-label {run} {shards} old --top 1", "top", copy("labels", "old")),
    rejected(
        "pseudo-label {run} {shards} old",
        "weights|teacher",
        copy("labels", "old"),
        edit_json("old/pseudo-labels.json", lambda c: c["teacher"].update(weights="x")),
    ),
    rejected(
        "pseudo-label {run} {shards} old",
        r"pseudo-labels\.json",
        copy("labels", "old"),
        file("old/pseudo-labels.json", "{"),
    ),
    accepted("pseudo-label {run} {shards} old", "0 images", copy("labels", "old"), name="already labeled"),
    accepted(f"{LABEL} --top 99", "images in"),
    *(
        rejected(f"{SELECT} --{option}", option.partition("=")[0].replace("-", "[-_ ]"), LABELS)
        for option in (
            "confidence=-1",
            "confidence=1",
            "confidence=nan",
            "confidence=x",
            "per-class=0",
            "per-class=x",
            "per-class=99999999999",
            "seed=-1",
            "seed=99999999999999999999999",
        )
    ),
    rejected("pseudo-label select l new --confidence 0.999999", "confidence", LABELS),
    rejected("pseudo-label select", "LABELS|labels"),
    rejected("pseudo-label select l l", "l", LABELS),
    rejected("pseudo-label select {images} new", r"pseudo-labels\.json"),
    *(
        rejected(
            SELECT,
            r"pseudo-labels\.json",
            LABELS,
            file("l/pseudo-labels.json", content),
            name=f"pseudo-labels.json: {case}",
        )
        for case, content in {"empty": "", "a list": "[]", "not UTF-8": b"\xff", "deeply nested": "[" * 100_000}.items()
    ),
    *(
        rejected(
            SELECT,
            r"pseudo-labels\.json|tables|parquet",
            LABELS,
            edit_json("l/pseudo-labels.json", change),
            name=f"pseudo-labels.json: {case}",
        )
        for case, change in {
            "no classes": lambda c: c.pop("classes") and None,
            "classes is a string": lambda c: c.update(classes="ab"),
            "one class": lambda c: c.update(classes=["a"]),
            "top_k is a string": lambda c: c.update(top_k="x"),
            "top_k is 0": lambda c: c.update(top_k=0),
            "top_k is 99": lambda c: c.update(top_k=99),
            "no teacher": lambda c: c.pop("teacher") and None,
            "shards is a number": lambda c: c.update(shards=5),
            "a shard that does not exist": lambda c: c["shards"].append("x"),
        }.items()
    ),
    *(
        rejected(
            SELECT, r"\.parquet|tables", LABELS, *setup, allowed_files=r"new(/.*\.parquet)?", name=f"a table: {case}"
        )
        for case, setup in {
            "empty": (truncate(f"l/{TABLE}", 0),),
            "truncated": (truncate(f"l/{TABLE}", 0.5),),
            "text": (file(f"l/{TABLE}", "x" * 99),),
            "one byte changed": (flip_byte(f"l/{TABLE}", 0.1),),
            "one byte near the end changed": (flip_byte(f"l/{TABLE}", 0.9),),
            "removed": (remove(f"l/{TABLE}"),),
            "a folder": (remove(f"l/{TABLE}"), folder(f"l/{TABLE}")),
            "other columns": (parquet(f"l/{TABLE}", a=[1, 2]),),
            "no rows, no columns": (parquet(f"l/{TABLE}"),),
            "from a different teacher": (change_teacher,),
        }.items()
    ),
    rejected("pseudo-label select l old", "old", LABELS, file("old/mine.txt", "x")),
    rejected("pseudo-label select l old --confidence 0 --seed 4", "seed", LABELS, copy("selection", "old")),
    rejected(
        "pseudo-label select {labels} old --confidence 0",
        r"selection\.json",
        copy("selection", "old"),
        file("old/selection.json", "{"),
    ),
    accepted(
        "pseudo-label select {labels} old --confidence 0", "kept", copy("selection", "old"), name="already selected"
    ),
    accepted(f"{SELECT} --per-class 50", "kept", LABELS),
    rejected(STUDENT, r"selection\.json", folder("s"), name="no selection"),
    *(
        rejected(
            STUDENT,
            r"selection|\bs\b",
            SELECTION,
            edit_json("s/selection.json", change),
            name=f"selection.json: {case}",
        )
        for case, change in {
            "a list": lambda c: [],
            "no classes": lambda c: c.pop("classes") and None,
            "classes are strings": lambda c: c.update(classes=["a", "b"]),
            "classes empty": lambda c: c.update(classes=[]),
            "a class that the teacher lacks": lambda c: c["classes"][0].update({"class": "x"}),
            "shards are strings": lambda c: c.update(shards=["x"]),
            "shards empty": lambda c: c.update(shards=[]),
            "a shard without images": lambda c: c["shards"][0].pop("images") and None,
            "images is a string": lambda c: c["shards"][0].update(images="x"),
            "a negative number of images": lambda c: c["shards"][0].update(images=-1),
            "an unknown shard": lambda c: c["shards"][0].update(name="x"),
            "a shard's name is a number": lambda c: c["shards"][0].update(name=5),
            "a different images field": lambda c: c["teacher"].update(images="x"),
            "teacher is a list": lambda c: c.update(teacher=[]),
        }.items()
    ),
    *(
        rejected(
            STUDENT,
            r"train-0000\d\.parquet",
            SELECTION,
            *setup,
            name=f"table for training: {case}",
            allowed_lines=".",
            allowed_files="new(/.*)?",
        )
        for case, setup in {
            "truncated": (truncate(f"s/{TABLE}", 0.5),),
            "removed": (remove(f"s/{TABLE}"),),
            "text": (file(f"s/{TABLE}", "x"),),
            "one byte changed": (flip_byte(f"s/{TABLE}", 0.1),),
        }.items()
    ),
    Input(STUDENT, 0, "top-1|skipped", (SELECTION, swap_tables), name="two tables swapped"),
    rejected(f"{STUDENT} --pseudo-ratio 0.001", "pseudo_ratio", SELECTION),
    rejected(STUDENT.replace("{shards}", "{images}"), r"shards\.json", SELECTION),
    rejected(STUDENT.replace("--pseudo-labels s", "--pseudo-labels l"), "selection", LABELS),
    accepted(STUDENT, "top-1", SELECTION),
]
