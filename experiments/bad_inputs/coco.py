"""Detection: COCO files with missing or invalid fields, images, and options of `evaluate` and `predict`."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .files import copy, edit_json, file, folder, image, pipe, remove, tar_bytes, truncate
from .fixtures import DATA_OPTIONS, SMALL_DETECTION_RECIPE
from .inputs import Input, accepted, rejected

COCO = copy("coco", "c")
TRAIN = f"detect train --data c/train.json {DATA_OPTIONS.replace('{coco}', 'c')} {SMALL_DETECTION_RECIPE} --run new"
EVALUATE = "detect evaluate {detector} --data c/val.json --images c/val"
# Lines that report dropped annotations and skipped images.
DROPPED_LINES = r"^(data|training|validation|train|val\w*)[\w ]*: |^all dropped annotations: |^skipped|^  "


def set_fields(section: str, index: int = 0, **fields: Any) -> Callable[[Any], Any]:
    """Change fields of one entry of a section, such as "images"."""
    return lambda content: content[section][index].update(fields)


def delete(section: str, field: str | None = None) -> Callable[[Any], Any]:
    """Delete a section, or a field of its first entry."""

    def change(content: Any) -> None:
        if field is None:
            del content[section]
        else:
            del content[section][0][field]

    return change


# Changes that make a COCO file invalid.
INVALID: dict[str, Callable[[Any], Any]] = {
    **{f"no {section}": delete(section) for section in ("images", "annotations", "categories")},
    **{f"{section} empty": lambda c, s=section: c.update({s: []}) for section in ("images", "categories")},
    **{f"{section} an object": lambda c, s=section: c.update({s: {}}) for section in ("images", "annotations")},
    **{f"an image without {name}": delete("images", name) for name in ("id", "file_name", "height", "width")},
    **{f"an annotation without {n}": delete("annotations", n) for n in ("id", "image_id", "category_id", "bbox")},
    "a category without a name": delete("categories", "name"),
    "an image id is a string": set_fields("images", id="1"),
    "an image id is true": set_fields("images", id=True),
    "a file_name is a number": set_fields("images", file_name=5),
    "a height of 0": set_fields("images", height=0),
    "a height of 1e9": set_fields("images", height=10**9),
    "a box of three numbers": set_fields("annotations", bbox=[1, 2, 3]),
    "a box of strings": set_fields("annotations", bbox=["a"] * 4),
    "a box with a number too large for a float": set_fields("annotations", bbox=[1, 2, 3, 10**400]),
    "an area is a string": set_fields("annotations", area="36"),
    "iscrowd 2": set_fields("annotations", iscrowd=2),
    "an annotation is a number": lambda c: c["annotations"].append(5),
    "a duplicate image id": set_fields("images", 1, id=1),
    "a duplicate file_name": set_fields("images", 1, file_name="1.png"),
    "a duplicate category id": set_fields("categories", 1, id=3),
    "not an object": lambda c: [],
}
# Contents that are not JSON of the expected structure.
CONTENTS = {
    "empty": b"",
    "truncated": b'{"images": [',
    "not UTF-8": b"\xff\xfe\0",
    "NaN": b'{"images": NaN}',
    "deeply nested": b"[" * 200_000,
    "a PNG": b"\x89PNG\r\n\x1a\n",
}
# Changes that make an annotation invalid; it must be dropped with a message.
DROPPED_ANNOTATIONS: dict[str, Callable[[Any], Any]] = {
    "an unknown image": set_fields("annotations", image_id=9),
    "an unknown category": set_fields("annotations", category_id=9),
    "a box of width 0": set_fields("annotations", bbox=[1, 1, 0, 5]),
    "a box outside the image": set_fields("annotations", bbox=[100, 100, 5, 5]),
    "a negative area": set_fields("annotations", area=-5),
    "no segmentation": set_fields("annotations", segmentation=[]),
    "a polygon of two points": set_fields("annotations", segmentation=[[1, 1, 2, 2]]),
    "a polygon of strings": set_fields("annotations", segmentation=[["a"] * 6]),
    "a polygon far outside the image": set_fields("annotations", segmentation=[[0, 0, 1e9, 0, 1e9, 1e9]]),
    "an invalid RLE": set_fields("annotations", segmentation={"size": [20, 30], "counts": "1gc"}),
    "an RLE of a different size": set_fields("annotations", segmentation={"size": [30, 20], "counts": [1, 599]}),
    "an RLE with a negative run": set_fields("annotations", segmentation={"size": [20, 30], "counts": [-1, 601]}),
    "a duplicate annotation id": set_fields("annotations", 1, id=1, image_id=1),
}
# Changes that leave few or no objects to evaluate.
FEW_OBJECTS: dict[str, Callable[[Any], Any]] = {
    "no annotations": lambda c: c.update(annotations=[]),
    "only crowd annotations": lambda c: [each.update(iscrowd=1) for each in c["annotations"]] and c,
    "a file_name outside the folder": set_fields("images", file_name="../../../../../../etc/passwd"),
}
# Changes after which the file is still valid.
UNUSUAL: dict[str, Callable[[Any], Any]] = {
    "negative ids": lambda c: [e.update(id=-e["id"]) for e in c["annotations"]] and c,
    "a category with an escape sequence": set_fields("categories", name="esc\x1b[31m"),
    "a category with a line break": set_fields("categories", name="new\nline"),
    "a box partly outside the image": set_fields("annotations", bbox=[-5, -5, 100, 100]),
    "unknown fields": lambda c: c.update(info={"x": 1}, licenses=None),
}


def check_results(cwd: Path) -> None:
    """Check that results.json was written, and that it and the scores are valid JSON without NaN."""

    def reject(constant: str) -> None:
        raise ValueError(f"{constant} is not valid JSON")

    for name in ("results.json", "scores.json", "images.json"):
        if (path := cwd / "new" / name).exists():
            json.loads(path.read_bytes(), parse_constant=reject)
    assert (cwd / "new/results.json").exists()


PREDICT = "detect predict {detector} c/val --out new"
ANNOTATIONS: list[Input] = [
    *(
        rejected(
            EVALUATE,
            "val.json",
            COCO,
            edit_json("c/val.json", change),
            name=f"COCO: {case}",
            allowed_lines=DROPPED_LINES,
        )
        for case, change in INVALID.items()
    ),
    *(
        rejected(TRAIN, "train.json", COCO, file("c/train.json", content), name=f"COCO: {case}")
        for case, content in CONTENTS.items()
    ),
    *(
        accepted(
            f"{EVALUATE} --out new",
            "boxes",
            COCO,
            edit_json("c/val.json", change),
            check=check_results,
            name=f"COCO: {case}",
        )
        for case, change in (DROPPED_ANNOTATIONS | FEW_OBJECTS).items()
    ),
    *(
        rejected(TRAIN, "object", COCO, edit_json("c/train.json", change), name=f"COCO: {case}")
        for case, change in list(FEW_OBJECTS.items())[:2]
    ),
    *(
        accepted(
            TRAIN,
            "boxes",
            COCO,
            edit_json("c/train.json", change),
            edit_json("c/val.json", change),
            name=f"COCO: {case}",
        )
        for case, change in UNUSUAL.items()
    ),
    rejected(
        EVALUATE,
        "categor",
        COCO,
        edit_json("c/val.json", set_fields("categories", name="other")),
        name="different categories",
    ),
    rejected(EVALUATE.replace("c/val.json", "nowhere"), "nowhere", COCO),
    rejected(EVALUATE.replace("c/val.json", "pipe"), "pipe", COCO, pipe("pipe")),
    rejected(EVALUATE.replace("c/val.json", "c"), "c", COCO),
    rejected(EVALUATE.replace("--images c/val", "--images nowhere"), "nowhere", COCO),
    rejected(EVALUATE.replace("--images c/val", ""), "images", COCO),
    rejected(EVALUATE.replace("--data c/val.json", ""), "data", COCO),
    rejected(
        EVALUATE, "images|val", COCO, remove("c/val"), folder("c/val"), allowed_lines=DROPPED_LINES, name="no images"
    ),
    accepted(EVALUATE, "1 images", COCO, remove("c/val/1.png"), name="a missing image"),
    accepted(EVALUATE, "skipped 1", COCO, truncate("c/val/1.png", 0.5), name="a truncated image"),
    accepted(EVALUATE, "skipped 1", COCO, image("c/val/1.png", width=9, height=9), name="an image of a different size"),
    accepted(
        EVALUATE, "skipped 1|1 images", COCO, remove("c/val/1.png"), pipe("c/val/1.png"), name="an image that is a pipe"
    ),
    rejected(
        EVALUATE,
        "none of|read",
        COCO,
        truncate("c/val/1.png", 9),
        truncate("c/val/2.png", 9),
        allowed_lines=DROPPED_LINES,
    ),
    *(
        rejected(
            EVALUATE.replace("--images c/val", "--images a.tar"),
            r"a\.tar",
            COCO,
            file("a.tar", data),
            name=f"images: {case}",
        )
        for case, data in {"an empty file": b"", "not a tar": b"x" * 999, "a tar without images": tar_bytes([])}.items()
    ),
    rejected(f"{EVALUATE} --out old", "old", COCO, file("old/mine.txt", "x")),
    rejected(f"{EVALUATE} --out /proc/nowhere", "/proc", COCO),
    rejected("detect evaluate nowhere", "nowhere"),
    rejected("detect evaluate {run}", "classification|detection"),
    rejected("evaluate {detector}", "detection|classification"),
    rejected("predict {detector} {photo}", "detection|classification"),
    rejected("pseudo-label {detector} {shards} new", "detection|classification"),
    rejected("detect predict {run} {photo} --out new", "classification|detection"),
    rejected("detect predict {detector}", "IMAGES"),
    rejected("detect predict {detector} nowhere --out new", "nowhere"),
    rejected("detect predict {detector} a.png --out new", "none of", file("a.png", "x"), allowed_lines=DROPPED_LINES),
    rejected("detect predict {detector} d --out new", "none of", pipe("d/a.png"), allowed_lines=DROPPED_LINES),
    *(rejected(f"{PREDICT} --score={value}", "score", COCO) for value in ("-1", "2", "nan", "x")),
    rejected(PREDICT, "new", COCO, file("new/mine.txt", "x")),
    rejected("detect predict {detector} c/val --out ''", ".", COCO),
    accepted(f"{PREDICT} --score 1", "2 images", COCO, check=check_results),
    accepted(f"{PREDICT} --no-figures", "2 images", COCO, check=check_results),
    accepted("detect predict {detector} d --out new", "1 images", image("d/esc\x1b[31m.png"), check=check_results),
    accepted("detect predict {detector} d --out new", "1 images", image("d/new\nline.png"), check=check_results),
    accepted(
        "detect predict {detector} d --out new", "1 images", image("d/1.png", width=1, height=1), check=check_results
    ),
    accepted(
        "detect predict {detector} d --out new", "1 images", image("d/1.png", width=1, height=3000), check=check_results
    ),
    rejected("detect nonsense", "nonsense"),
    rejected("detect trian", "trian.*train"),
    rejected("detect train nonsense", "nonsense"),
    rejected("detect train image_folder", "image_folder"),
    rejected(TRAIN.replace("--images c/train", ""), "images", COCO),
    rejected("detect train digits --images {coco}/train --run new", "data|images"),
    rejected("detect train objects --run new", "data must be given|data"),
    rejected(f"{TRAIN} --training-images 99", "training_images", COCO),
    rejected(f"{TRAIN} --batch-size 0", "batch[-_]size", COCO),
    rejected(f"{TRAIN} --model nonsense", "nonsense", COCO),
    rejected(f"{TRAIN} --model-options pretrained True", "pretrained", COCO),
    rejected(f"{TRAIN} --weights nowhere", "nowhere", COCO),
    rejected("detect report {run}", "classification"),
    rejected("detect report", "RUNS"),
    rejected("detect report {detector} {detector} --format html", "format|html"),
    rejected("detect report old", "result.json", copy("detector", "old"), file("old/result.json", "{")),
    rejected("detect report old", "result.json", copy("detector", "old"), file("old/result.json", "[" * 100_000)),
    rejected(
        "detect report old", "bbox", copy("detector", "old"), edit_json("old/result.json", lambda c: c.update(bbox=5))
    ),
    rejected(
        "detect report old",
        "bbox|box",
        copy("detector", "old"),
        edit_json("old/result.json", lambda c: c["bbox"].__delitem__("AP")),
    ),
    rejected(
        "detect report old",
        "recipe",
        copy("detector", "old"),
        edit_json("old/result.json", lambda c: c.__delitem__("recipe")),
    ),
]
