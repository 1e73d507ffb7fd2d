"""What a detector found, as COCO's results: a list with an entry an object found, in JSON."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
from faster_coco_eval import mask as runs
from torch import Tensor
from torchvision.ops import box_convert

from lambdanets.bounds import convert
from lambdanets.errors import InputError
from lambdanets.files import atomic_write
from lambdanets.records import parse_json

Result = dict[str, Any]


class _Entry(TypedDict):
    image_id: int
    category_id: int
    bbox: tuple[float, float, float, float]  # x, y, width and height
    score: float
    segmentation: dict[str, Any]  # a run-length encoding


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
    convert(result, _Entry, where)


def write_results(results: Sequence[Result], path: Path) -> None:
    """Write results as JSON, whole or not at all."""
    atomic_write(path, (json.dumps(list(results), allow_nan=False) + "\n").encode())


def read_results(path: Path) -> list[Result]:
    """The results in a JSON file. Raises InputError where it holds none, or cannot be read."""
    try:
        results = parse_json(path.read_bytes(), list[Any], f"{path} holds no results of detection")
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error
    for place, result in enumerate(results):
        check_result(result, f"{path}: result {place}")
    return results
