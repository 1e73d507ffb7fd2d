"""Benchmarks, the paper's tables and calibration: options and input files."""

import json
import re
from pathlib import Path

from .inputs import Input, accepted, refused
from .makers import copied, cut, edited, file, folder
from .options import in_words

LAYER = (
    "benchmark layer --shapes 4x4x8 --scopes 3 --batch-size 2 --repeats 3 --seconds 0.02 --passes inference --out new"
)
SCALING = "benchmark scaling --sides 4 --lengths 8 --repeats 1 --seconds 0.01 --out new"
OURS = "--candidates lambdanets"
MEASURED = copied("measured/results.json", "m.json")


def whole_json(name: str):
    """Check that a file is valid JSON, without NaN."""

    def check(here: Path) -> None:
        def refuse(constant: str) -> None:
            raise ValueError(f"{constant} is no JSON")

        json.loads((here / name).read_bytes(), parse_constant=refuse)

    return check


TOOLS: list[Input] = [
    refused("benchmark nonsense", "nonsense"),
    refused("benchmark laier", "layer"),
    refused("benchmark layer --nonsense", "--nonsense"),
    *(
        refused(f"{LAYER} {OURS} --{option}", in_words(re.split("[= ]", option)[0]).rstrip("s"))
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
            "seconds=0",
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
    refused(f"{LAYER} --device cuda {OURS}", "cuda|GPU"),
    refused(f"{LAYER} {OURS}", "new", folder("new"), file("new/mine.txt", "x")),
    refused(f"{LAYER} {OURS}", "new", file("new", "x")),
    refused(
        LAYER.replace("4x4x8", "100000x100000x64") + f" {OURS}",
        "memory",
        name="a shape beyond memory",
        lines=".",
        leaves="new(/.*)?",
    ),
    *(
        refused(f"{SCALING} --{option}", in_words(re.split("[= ]", option)[0]).rstrip("s"))
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
    refused("benchmark scaling --sides --lengths --out new", "sides"),
    *(
        refused(f"benchmark model --out new --{option}", in_words(re.split("[= ]", option)[0]).rstrip("s"))
        for option in ("patterns XXXX", "patterns CCC", "patterns", "image-size=0", "image-size=x", "scope=4")
    ),
    refused("benchmark memory --passes nonsense --out new", "passes"),
    accepted(f"{LAYER} {OURS}", "new", check=whole_json("new/results.json")),
    accepted(f"{LAYER} {OURS} --shapes 1x1x4 --scopes 9", "new", check=whole_json("new/results.json")),
    *(
        refused(f"tables {arguments}", says)
        for arguments, says in {
            "1": "1",
            "21": "21",
            "x": "x",
            "''": "''",
            "3 99": "99",
            "3 --format html": "html",
            "3 --batch-size 8": "measure",
            "3 --repeats 0": "repeats",
            "3 --measure --measured x": "measure",
            "3 --check --format json": "check",
            "3 --check --out x": "check",
            "3 --out nowhere/x": "nowhere",
            "3 --measured nowhere": "nowhere",
            "3 --image-size 0": "image[-_ ]size",
            "12 --measure --batch-size 0": "batch[-_ ]size",
            "3 --measure --out m": "3",
        }.items()
    ),
    refused("tables 3 --figures file", "figures|file", file("file", "x")),
    refused("tables 3 --out folder", "folder", folder("folder")),
    *(
        refused("tables 3 --measured m.json", r"m\.json", MEASURED, *make, name=f"measured: {what}")
        for what, make in {
            "empty": (cut("m.json", 0),),
            "cut": (cut("m.json", 0.5),),
            "a list": (file("m.json", "[]"),),
            "not UTF-8": (file("m.json", b"\xff"),),
            "deep": (file("m.json", "[" * 100_000),),
            "of scaling": (),
            "kind is a list": (edited("m.json", lambda c: c.update(kind=[])),),
            "of tables without rows": (edited("m.json", lambda c: c.update(kind="tables", rows=5)),),
            "rows that lack all": (edited("m.json", lambda c: c.update(kind="tables", rows=[{}])),),
            "of a layer with rows of scaling": (edited("m.json", lambda c: c.update(kind="layer")),),
            "no hardware": (edited("m.json", lambda c: c.pop("hardware") and None),),
        }.items()
    ),
    accepted("tables 3 --format json --out t.json", "", check=whole_json("t.json")),
    accepted("tables 3 --format csv --out t.csv", "", file("t.csv", "mine"), name="an existing file"),
    accepted("tables fn2 E.2 --format markdown", r"\|"),
    *(
        refused(f"calibrate --{option}", option.partition("=")[0])
        for option in ("threads=0", "threads=-1", "threads=x", "device=tpu", "device=cuda", "nonsense")
    ),
]
