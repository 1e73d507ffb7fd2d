"""Pseudo-labels and selections: options, damaged tables and metadata, and training a student on them."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from .inputs import Input, Make, accepted, refused
from .makers import copied, cut, edited, file, flipped, folder, removed
from .options import TRAIN

LABEL = "pseudo-label {run} {shards} new"
SELECT = "pseudo-label select l new --confidence 0"
STUDENT = f"{TRAIN} --pseudo-labels s --pseudo-images {{shards}}"
LABELS, SELECTION = copied("labels", "l"), copied("selection", "s")
TABLE = "train-00000.parquet"


def other_table(path: str, **columns: Any) -> Make:
    """A table with other columns."""
    return lambda here, places: pq.write_table(pa.table(columns), here / path)


def two_teachers(here: Path, places: Mapping[str, Any]) -> None:
    description = json.loads((here / "l/pseudo-labels.json").read_bytes())
    description["teacher"]["weights"] = "another"
    (here / "l/pseudo-labels.json").write_text(json.dumps(description))


def swapped(here: Path, places: Mapping[str, Any]) -> None:
    """Swap the tables of two shards."""
    one, other = here / "s" / TABLE, here / "s/train-00001.parquet"
    shutil.move(one, here / "kept")
    shutil.move(other, one)
    shutil.move(here / "kept", other)


LABEL_INPUTS: list[Input] = [
    *(
        refused(f"{LABEL} --{option}", option.partition("=")[0].replace("-", "[-_ ]"))
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
    refused("pseudo-label", "TEACHER|teacher"),
    refused("pseudo-label {run}", "SHARDS|shards|required|must be given"),
    refused("pseudo-label {run} {images} new", r"shards\.json"),
    refused("pseudo-label {run} {shards} old", "old", file("old/mine.txt", "x")),
    refused("pseudo-label {run} {shards} old", "old", file("old", "x")),
    refused("pseudo-label {run} {shards} old --top 1", "top", copied("labels", "old")),
    refused(
        "pseudo-label {run} {shards} old",
        "weights|teacher",
        copied("labels", "old"),
        edited("old/pseudo-labels.json", lambda c: c["teacher"].update(weights="x")),
    ),
    refused(
        "pseudo-label {run} {shards} old",
        r"pseudo-labels\.json",
        copied("labels", "old"),
        file("old/pseudo-labels.json", "{"),
    ),
    accepted("pseudo-label {run} {shards} old", "0 images", copied("labels", "old"), name="labeled already"),
    accepted(f"{LABEL} --top 99", "images in"),
    *(
        refused(f"{SELECT} --{option}", option.partition("=")[0].replace("-", "[-_ ]"), LABELS)
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
    refused("pseudo-label select l new --confidence 0.999999", "confidence", LABELS),
    refused("pseudo-label select", "LABELS|labels"),
    refused("pseudo-label select l l", "l", LABELS),
    refused("pseudo-label select {images} new", r"pseudo-labels\.json"),
    *(
        refused(
            SELECT,
            r"pseudo-labels\.json",
            LABELS,
            file("l/pseudo-labels.json", content),
            name=f"pseudo-labels.json: {what}",
        )
        for what, content in {"empty": "", "a list": "[]", "not UTF-8": b"\xff", "deep": "[" * 100_000}.items()
    ),
    *(
        refused(
            SELECT,
            r"pseudo-labels\.json|tables|parquet",
            LABELS,
            edited("l/pseudo-labels.json", change),
            name=f"pseudo-labels.json: {what}",
        )
        for what, change in {
            "no classes": lambda c: c.pop("classes") and None,
            "classes is a string": lambda c: c.update(classes="ab"),
            "one class": lambda c: c.update(classes=["a"]),
            "top is a string": lambda c: c.update(top="2"),
            "top 0": lambda c: c.update(top=0),
            "top 99": lambda c: c.update(top=99),
            "no teacher": lambda c: c.pop("teacher") and None,
            "shards is a number": lambda c: c.update(shards=5),
            "a shard that is not there": lambda c: c["shards"].append("x"),
        }.items()
    ),
    *(
        refused(SELECT, r"\.parquet|tables", LABELS, *make, leaves=r"new(/.*\.parquet)?", name=f"a table: {what}")
        for what, make in {
            "empty": (cut(f"l/{TABLE}", 0),),
            "cut": (cut(f"l/{TABLE}", 0.5),),
            "text": (file(f"l/{TABLE}", "x" * 99),),
            "a byte changed": (flipped(f"l/{TABLE}", 0.1),),
            "a byte of its end changed": (flipped(f"l/{TABLE}", 0.9),),
            "removed": (removed(f"l/{TABLE}"),),
            "a folder": (removed(f"l/{TABLE}"), folder(f"l/{TABLE}")),
            "other columns": (other_table(f"l/{TABLE}", a=[1, 2]),),
            "no rows, no columns": (other_table(f"l/{TABLE}"),),
            "of another teacher": (two_teachers,),
        }.items()
    ),
    refused("pseudo-label select l old", "old", LABELS, file("old/mine.txt", "x")),
    refused("pseudo-label select l old --confidence 0 --seed 4", "seed", LABELS, copied("selection", "old")),
    refused(
        "pseudo-label select {labels} old --confidence 0",
        r"selection\.json",
        copied("selection", "old"),
        file("old/selection.json", "{"),
    ),
    accepted(
        "pseudo-label select {labels} old --confidence 0", "kept", copied("selection", "old"), name="selected already"
    ),
    accepted(f"{SELECT} --per-class 50", "kept", LABELS),
    refused(STUDENT, r"selection\.json", folder("s"), name="no selection"),
    *(
        refused(
            STUDENT, r"selection|\bs\b", SELECTION, edited("s/selection.json", change), name=f"selection.json: {what}"
        )
        for what, change in {
            "a list": lambda c: [],
            "no classes": lambda c: c.pop("classes") and None,
            "classes are strings": lambda c: c.update(classes=["a", "b"]),
            "classes empty": lambda c: c.update(classes=[]),
            "a class no teacher has": lambda c: c["classes"][0].update({"class": "x"}),
            "shards are strings": lambda c: c.update(shards=["x"]),
            "shards empty": lambda c: c.update(shards=[]),
            "a shard without images": lambda c: c["shards"][0].pop("images") and None,
            "images is a string": lambda c: c["shards"][0].update(images="x"),
            "images below 0": lambda c: c["shards"][0].update(images=-1),
            "an unknown shard": lambda c: c["shards"][0].update(name="x"),
            "a shard's name is a number": lambda c: c["shards"][0].update(name=5),
            "other images": lambda c: c["teacher"].update(images="x"),
            "teacher is a list": lambda c: c.update(teacher=[]),
        }.items()
    ),
    *(
        refused(
            STUDENT,
            r"train-0000\d\.parquet",
            SELECTION,
            *make,
            name=f"a student's table: {what}",
            lines=".",
            leaves="new(/.*)?",
        )
        for what, make in {
            "cut": (cut(f"s/{TABLE}", 0.5),),
            "removed": (removed(f"s/{TABLE}"),),
            "text": (file(f"s/{TABLE}", "x"),),
            "a byte changed": (flipped(f"s/{TABLE}", 0.1),),
        }.items()
    ),
    Input(STUDENT, 0, "top-1|skipped", (SELECTION, swapped), name="tables in each other's place"),
    refused(f"{STUDENT} --pseudo-ratio 0.001", "pseudo_ratio", SELECTION),
    refused(STUDENT.replace("{shards}", "{images}"), r"shards\.json", SELECTION),
    refused(STUDENT.replace("--pseudo-labels s", "--pseudo-labels l"), "selection", LABELS),
    accepted(STUDENT, "top-1", SELECTION),
]
