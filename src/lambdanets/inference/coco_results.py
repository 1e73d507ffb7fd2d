"""What a detector found, as COCO's results: a list with an entry an object found, in JSON."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from faster_coco_eval import mask as runs
from torch import Tensor
from torchvision.ops import box_convert

from lambdanets.bounds import fits
from lambdanets.errors import InputError
from lambdanets.files import atomic_write

Result = dict[str, Any]
_FIELDS = {
    "image_id": (int, "a whole number"),
    "category_id": (int, "a whole number"),
    "bbox": (list, "a list"),
    "score": (float, "a finite number"),
    "segmentation": (dict, "a run-length encoding"),
}


def coco_results(found: Mapping[str, Tensor], image_id: int, category_ids: Sequence[int]) -> list[Result]:
    """What Mask R-CNN found in an image as entries of COCO's results, in its order.

    found: boxes (n, 4) as x1, y1, x2, y2 in pixels, labels (n,) from 1, scores (n,), and masks (n, 1, H, W), the
        probability of each pixel, which is in the mask above 0.5.
    category_ids: COCO's id of each label, that of label 1 first.

    Boxes become x, y, width and height in float32. Masks are encoded one by one: no copy of all is made.
    """
    boxes = box_convert(found["boxes"].float(), "xyxy", "xywh").tolist()
    labels, scores = found["labels"].tolist(), found["scores"].float().tolist()
    return [
        {
            "image_id": image_id,
            "category_id": category_ids[label - 1],
            "bbox": box,
            "score": score,
            "segmentation": _encoded(mask[0]),
        }
        for box, label, score, mask in zip(boxes, labels, scores, found["masks"], strict=True)
    ]


def _encoded(mask: Tensor) -> dict[str, Any]:
    """A run-length encoding of the pixels above 0.5, (H, W); runs go down the columns."""
    columns = (mask.T > 0.5).contiguous().cpu().numpy().view(np.uint8)
    encoding = runs.encode(columns.T)
    return {"size": list(mask.shape), "counts": encoding["counts"].decode("ascii")}


def check_result(result: Any, where: str) -> None:
    """Raise InputError, which begins with `where`, for what is no entry of COCO's results with a box and a mask."""
    if not isinstance(result, dict):
        raise InputError(f"{where} must be an object of JSON, got {result!r}")
    for name, (kind, words) in _FIELDS.items():
        if not fits(result.get(name), kind):
            raise InputError(f"{where} must have {words} as {name}, got {result.get(name)!r}")
    box = result["bbox"]
    if len(box) != 4 or not all(fits(number, float) for number in box):
        raise InputError(f"{where} must have x, y, width and height as bbox, got {box!r}")


def write_results(results: Sequence[Result], path: Path) -> None:
    """Write results as JSON, whole or not at all."""
    atomic_write(path, (json.dumps(list(results), allow_nan=False) + "\n").encode())


def read_results(path: Path) -> list[Result]:
    """The results in a JSON file. Raises InputError where it holds none, or cannot be read."""
    try:
        results = json.loads(path.read_bytes())
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} holds no results of detection: it is no whole JSON") from error
    if not isinstance(results, list):
        raise InputError(f"{path} holds no results of detection: it must hold a list")
    for place, result in enumerate(results):
        check_result(result, f"{path}: result {place}")
    return results
