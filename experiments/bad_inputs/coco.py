"""Detection: COCO files with missing or wrong fields, images, and arguments of evaluate and predict."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .inputs import Input, accepted, refused
from .makers import copied, cut, edited, file, folder, image, pipe, removed, tar_bytes
from .places import DETECTION, SMALL_DETECTOR

COCO = copied("coco", "c")
TRAIN = f"detect train --data c/train.json {DETECTION.replace('{coco}', 'c')} {SMALL_DETECTOR} --run new"
EVALUATE = "detect evaluate {detector} --data c/val.json --images c/val"
# lines about dropped annotations
DROPPED_LINES = r"^(data|training|validation|train|val\w*)[\w ]*: |^all dropped annotations: |^skipped|^  "


def of(section: str, place: int = 0, **fields: Any) -> Callable[[Any], Any]:
    """Change fields of an entry of a section."""
    return lambda content: content[section][place].update(fields)


def lacking(section: str, field: str | None = None) -> Callable[[Any], Any]:
    def change(content: Any) -> None:
        if field is None:
            del content[section]
        else:
            del content[section][0][field]

    return change


# Invalid files: the error, and the change.
REFUSED: dict[str, Callable[[Any], Any]] = {
    **{f"no {section}": lacking(section) for section in ("images", "annotations", "categories")},
    **{f"{section} empty": lambda c, s=section: c.update({s: []}) for section in ("images", "categories")},
    **{f"{section} an object": lambda c, s=section: c.update({s: {}}) for section in ("images", "annotations")},
    **{f"an image without {name}": lacking("images", name) for name in ("id", "file_name", "height", "width")},
    **{f"an annotation without {n}": lacking("annotations", n) for n in ("id", "image_id", "category_id", "bbox")},
    "a category without a name": lacking("categories", "name"),
    "an image's id is a string": of("images", id="1"),
    "an image's id true": of("images", id=True),
    "an image's file_name is a number": of("images", file_name=5),
    "a height of 0": of("images", height=0),
    "a height of 1e9": of("images", height=10**9),
    "a box of three": of("annotations", bbox=[1, 2, 3]),
    "a box of texts": of("annotations", bbox=["a"] * 4),
    "a box beyond floats": of("annotations", bbox=[1, 2, 3, 10**400]),
    "an area is a string": of("annotations", area="36"),
    "iscrowd 2": of("annotations", iscrowd=2),
    "an annotation is a number": lambda c: c["annotations"].append(5),
    "an image's id twice": of("images", 1, id=1),
    "a file_name twice": of("images", 1, file_name="1.png"),
    "a category's id twice": of("categories", 1, id=3),
    "no object": lambda c: [],
}
CONTENTS = {
    "empty": b"",
    "cut": b'{"images": [',
    "not UTF-8": b"\xff\xfe\0",
    "NaN": b'{"images": NaN}',
    "deep": b"[" * 200_000,
    "a PNG": b"\x89PNG\r\n\x1a\n",
}
# Invalid annotations, which are dropped with a message.
DROPPED: dict[str, Callable[[Any], Any]] = {
    "an unknown image": of("annotations", image_id=9),
    "an unknown category": of("annotations", category_id=9),
    "a box without extent": of("annotations", bbox=[1, 1, 0, 5]),
    "a box outside": of("annotations", bbox=[100, 100, 5, 5]),
    "an area below 0": of("annotations", area=-5),
    "no segmentation": of("annotations", segmentation=[]),
    "a polygon of two points": of("annotations", segmentation=[[1, 1, 2, 2]]),
    "a polygon of texts": of("annotations", segmentation=[["a"] * 6]),
    "a polygon far away": of("annotations", segmentation=[[0, 0, 1e9, 0, 1e9, 1e9]]),
    "runs that are damaged": of("annotations", segmentation={"size": [20, 30], "counts": "1gc"}),
    "runs of another size": of("annotations", segmentation={"size": [30, 20], "counts": [1, 599]}),
    "runs below 0": of("annotations", segmentation={"size": [20, 30], "counts": [-1, 601]}),
    "an id twice": of("annotations", 1, id=1, image_id=1),
}
# Files with few or no objects to evaluate.
LITTLE: dict[str, Callable[[Any], Any]] = {
    "no annotation": lambda c: c.update(annotations=[]),
    "only crowds": lambda c: [each.update(iscrowd=1) for each in c["annotations"]] and c,
    "a file_name outside": of("images", file_name="../../../../../../etc/passwd"),
}
ODD: dict[str, Callable[[Any], Any]] = {
    "ids below 0": lambda c: [e.update(id=-e["id"]) for e in c["annotations"]] and c,
    "a category with an escape sequence": of("categories", name="esc\x1b[31m"),
    "a category with a line break": of("categories", name="new\nline"),
    "a box beyond its image": of("annotations", bbox=[-5, -5, 100, 100]),
    "fields nobody knows": lambda c: c.update(info={"x": 1}, licenses=None),
}


def scores(here: Path) -> None:
    """Check that results and scores are valid JSON, without NaN."""

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is no JSON")

    for name in ("results.json", "scores.json", "images.json"):
        if (path := here / "new" / name).exists():
            json.loads(path.read_bytes(), parse_constant=refuse)
    assert (here / "new/results.json").exists()


FOUND = "detect predict {detector} c/val --out new"
ANNOTATIONS: list[Input] = [
    *(
        refused(EVALUATE, "val.json", COCO, edited("c/val.json", change), name=f"COCO: {what}", lines=DROPPED_LINES)
        for what, change in REFUSED.items()
    ),
    *(
        refused(TRAIN, "train.json", COCO, file("c/train.json", content), name=f"COCO: {what}")
        for what, content in CONTENTS.items()
    ),
    *(
        accepted(
            f"{EVALUATE} --out new", "boxes", COCO, edited("c/val.json", change), check=scores, name=f"COCO: {what}"
        )
        for what, change in (DROPPED | LITTLE).items()
    ),
    *(
        refused(TRAIN, "objects", COCO, edited("c/train.json", change), name=f"COCO: {what}")
        for what, change in list(LITTLE.items())[:2]
    ),
    *(
        accepted(
            TRAIN, "boxes", COCO, edited("c/train.json", change), edited("c/val.json", change), name=f"COCO: {what}"
        )
        for what, change in ODD.items()
    ),
    refused(EVALUATE, "categor", COCO, edited("c/val.json", of("categories", name="other")), name="other categories"),
    refused(EVALUATE.replace("c/val.json", "nowhere"), "nowhere", COCO),
    refused(EVALUATE.replace("c/val.json", "pipe"), "pipe", COCO, pipe("pipe")),
    refused(EVALUATE.replace("c/val.json", "c"), "c", COCO),
    refused(EVALUATE.replace("--images c/val", "--images nowhere"), "nowhere", COCO),
    refused(EVALUATE.replace("--images c/val", ""), "images", COCO),
    refused(EVALUATE.replace("--data c/val.json", ""), "data", COCO),
    refused(EVALUATE, "images|val", COCO, removed("c/val"), folder("c/val"), lines=DROPPED_LINES, name="no image"),
    accepted(EVALUATE, "1 images", COCO, removed("c/val/1.png"), name="an image is missing"),
    accepted(EVALUATE, "skipped 1", COCO, cut("c/val/1.png", 0.5), name="an image is cut"),
    accepted(EVALUATE, "skipped 1", COCO, image("c/val/1.png", width=9, height=9), name="an image of another size"),
    accepted(EVALUATE, "skipped 1|1 images", COCO, removed("c/val/1.png"), pipe("c/val/1.png"), name="image is a pipe"),
    refused(EVALUATE, "none of|read", COCO, cut("c/val/1.png", 9), cut("c/val/2.png", 9), lines=DROPPED_LINES),
    *(
        refused(
            EVALUATE.replace("--images c/val", "--images a.tar"),
            r"a\.tar",
            COCO,
            file("a.tar", data),
            name=f"images: {what}",
        )
        for what, data in {"an empty file": b"", "no tar": b"x" * 999, "a tar without images": tar_bytes([])}.items()
    ),
    refused(f"{EVALUATE} --out old", "old", COCO, file("old/mine.txt", "x")),
    refused(f"{EVALUATE} --out /proc/nowhere", "/proc", COCO),
    refused("detect evaluate nowhere", "nowhere"),
    refused("detect evaluate {run}", "classification|detection"),
    refused("evaluate {detector}", "detection|classification"),
    refused("predict {detector} {photo}", "detection|classification"),
    refused("pseudo-label {detector} {shards} new", "detection|classification"),
    refused("detect predict {run} {photo} --out new", "classification|detection"),
    refused("detect predict {detector}", "IMAGES"),
    refused("detect predict {detector} nowhere --out new", "nowhere"),
    refused("detect predict {detector} a.png --out new", "none of", file("a.png", "x"), lines=DROPPED_LINES),
    refused("detect predict {detector} d --out new", "none of", pipe("d/a.png"), lines=DROPPED_LINES),
    *(refused(f"{FOUND} --score={value}", "score", COCO) for value in ("-1", "2", "nan", "x")),
    refused(FOUND, "new", COCO, file("new/mine.txt", "x")),
    refused("detect predict {detector} c/val --out ''", ".", COCO),
    accepted(f"{FOUND} --score 1", "2 images", COCO, check=scores),
    accepted(f"{FOUND} --no-figures", "2 images", COCO, check=scores),
    accepted("detect predict {detector} d --out new", "1 images", image("d/esc\x1b[31m.png"), check=scores),
    accepted("detect predict {detector} d --out new", "1 images", image("d/new\nline.png"), check=scores),
    accepted("detect predict {detector} d --out new", "1 images", image("d/1.png", width=1, height=1), check=scores),
    accepted("detect predict {detector} d --out new", "1 images", image("d/1.png", width=1, height=3000), check=scores),
    refused("detect nonsense", "nonsense"),
    refused("detect trian", "trian.*train"),
    refused("detect train nonsense", "nonsense"),
    refused("detect train image_folder", "image_folder"),
    refused(TRAIN.replace("--images c/train", ""), "images", COCO),
    refused("detect train digits --images {coco}/train --run new", "data|images"),
    refused("detect train objects --run new", "data must be given|data"),
    refused(f"{TRAIN} --training-images 99", "training_images", COCO),
    refused(f"{TRAIN} --batch-size 0", "batch[-_]size", COCO),
    refused(f"{TRAIN} --model nonsense", "nonsense", COCO),
    refused(f"{TRAIN} --model-options pretrained True", "pretrained", COCO),
    refused(f"{TRAIN} --weights nowhere", "nowhere", COCO),
    refused("detect report {run}", "classification"),
    refused("detect report", "RUNS"),
    refused("detect report {detector} {detector} --format html", "format|html"),
    refused("detect report old", "result.json", copied("detector", "old"), file("old/result.json", "{")),
    refused("detect report old", "result.json", copied("detector", "old"), file("old/result.json", "[" * 100_000)),
    refused(
        "detect report old", "bbox", copied("detector", "old"), edited("old/result.json", lambda c: c.update(bbox=5))
    ),
    refused(
        "detect report old",
        "bbox|box",
        copied("detector", "old"),
        edited("old/result.json", lambda c: c["bbox"].__delitem__("AP")),
    ),
    refused(
        "detect report old",
        "recipe",
        copied("detector", "old"),
        edited("old/result.json", lambda c: c.__delitem__("recipe")),
    ),
]
