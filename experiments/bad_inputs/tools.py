"""`benchmark`, `tables` and `calibrate`: invalid options and input files."""

import json
import re
from pathlib import Path

from .files import copy, edit_json, file, folder, truncate
from .inputs import Input, accepted, rejected
from .options import field_pattern

LAYER = (
    "benchmark layer --shapes 4x4x8 --scopes 3 --batch-size 2 --repeats 3 --seconds 0.02 --passes inference --out new"
)
SCALING = "benchmark scaling --sides 4 --lengths 8 --repeats 1 --seconds 0.01 --out new"
ONLY_LAMBDANETS = "--candidates lambdanets"
MEASURED = copy("measured/results.json", "m.json")


def check_json(name: str):
    """Returns a check that a file is valid JSON without NaN."""

    def check(cwd: Path) -> None:
        def reject(constant: str) -> None:
            raise ValueError(f"{constant} is not valid JSON")

        json.loads((cwd / name).read_bytes(), parse_constant=reject)

    return check


TOOLS: list[Input] = [
    rejected("benchmark nonsense", "nonsense"),
    rejected("benchmark laier", "layer"),
    rejected("benchmark layer --nonsense", "--nonsense"),
    *(
        rejected(f"{LAYER} {ONLY_LAMBDANETS} --{option}", field_pattern(re.split("[= ]", option)[0]).rstrip("s"))
        for option in (
            "shapes 4x4",
            "shapes 0x4x8",
            "shapes -1x4x8",
            "shapes 4x4x9",
            "shapes axbxc",
            "shapes",
            "shapes=''",
            "scopes 4",
            "scopes 0",
            "scopes -3",
            "scopes x",
            "batch-size=0",
            "batch-size=x",
            "query-depth=0",
            "heads=0",
            "heads=3",
            "repeats=0",
            "repeats=-1",
            "time_limit=0",
            "seconds=nan",
            "seconds=-1",
            "seconds=inf",
            "dtype=int8",
            "device=tpu",
            "threads=0",
            "threads=-1",
            "passes",
            "passes backward",
            "seed=x",
            "algorithm=nonsense",
            "candidates",
            "candidates nonsense",
            "candidates ''",
        )
    ),
    rejected(f"{LAYER} --device cuda {ONLY_LAMBDANETS}", "cuda|GPU"),
    rejected(f"{LAYER} {ONLY_LAMBDANETS}", "new", folder("new"), file("new/mine.txt", "x")),
    rejected(f"{LAYER} {ONLY_LAMBDANETS}", "new", file("new", "x")),
    rejected(
        LAYER.replace("4x4x8", "100000x100000x64") + f" {ONLY_LAMBDANETS}",
        "memory",
        name="a shape too large for memory",
        allowed_lines=".",
        allowed_files="new(/.*)?",
    ),
    *(
        rejected(f"{SCALING} --{option}", field_pattern(re.split("[= ]", option)[0]).rstrip("s"))
        for option in (
            "sides 0",
            "sides -1",
            "sides x",
            "lengths 0",
            "heads=99",
            "value-depth=0",
            "memory=0",
            "memory=nan",
        )
    ),
    rejected("benchmark scaling --sides --lengths --out new", "sides"),
    *(
        rejected(f"benchmark model --out new --{option}", field_pattern(re.split("[= ]", option)[0]).rstrip("s"))
        for option in ("patterns XXXX", "patterns CCC", "patterns", "image-size=0", "image-size=x", "scope=4")
    ),
    rejected("benchmark memory --passes nonsense --out new", "passes"),
    rejected("benchmark tables --tables 3 --out new", "3"),
    rejected("benchmark tables --tables 12 --batch-size 0 --out new", "batch[-_ ]size"),
    rejected("benchmark tables --tables 12 --image-size 0 --out new", "image[-_ ]size"),
    rejected("benchmark tables --tables 12 --repeats 0 --out new", "repeats"),
    accepted(f"{LAYER} {ONLY_LAMBDANETS}", "new", check=check_json("new/results.json")),
    accepted(f"{LAYER} {ONLY_LAMBDANETS} --shapes 1x1x4 --scopes 9", "new", check=check_json("new/results.json")),
    *(
        rejected(f"tables {arguments}", output)
        for arguments, output in {
            "1": "1",
            "21": "21",
            "x": "x",
            "''": "''",
            "3 99": "99",
            "3 --format html": "html",
            "3 --check --format json": "check",
            "3 --check --out x": "check",
            "3 --out nowhere/x": "nowhere",
            "3 --measured nowhere": "nowhere",
            "3 --measure": "measure",
        }.items()
    ),
    rejected("tables 3 --figures file", "figures|file", file("file", "x")),
    rejected("tables 3 --out folder", "folder", folder("folder")),
    *(
        rejected("tables 3 --measured m.json", r"m\.json", MEASURED, *setup, name=f"measured: {case}")
        for case, setup in {
            "empty": (truncate("m.json", 0),),
            "truncated": (truncate("m.json", 0.5),),
            "a list": (file("m.json", "[]"),),
            "not UTF-8": (file("m.json", b"\xff"),),
            "deeply nested": (file("m.json", "[" * 100_000),),
            "results of `benchmark scaling`": (),
            "kind is a list": (edit_json("m.json", lambda c: c.update(kind=[])),),
            "kind tables, rows is a number": (edit_json("m.json", lambda c: c.update(kind="tables", rows=5)),),
            "a row without fields": (edit_json("m.json", lambda c: c.update(kind="tables", rows=[{}])),),
            "kind layer with rows of scaling": (edit_json("m.json", lambda c: c.update(kind="layer")),),
            "no hardware": (edit_json("m.json", lambda c: c.pop("hardware") and None),),
        }.items()
    ),
    accepted("tables 3 --format json --out t.json", "", check=check_json("t.json")),
    accepted("tables 3 --format csv --out t.csv", "", file("t.csv", "mine"), name="an existing file"),
    accepted("tables fn2 E.2 --format markdown", r"\|"),
    *(
        rejected(f"calibrate --{option}", option.partition("=")[0])
        for option in ("threads=0", "threads=-1", "threads=x", "device=tpu", "device=cuda", "nonsense")
    ),
]
