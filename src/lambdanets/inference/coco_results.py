"""Detections in COCO's results format, a JSON list with one entry per detection."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
from faster_coco_eval import mask as rle
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
    segmentation: dict[str, Any]  # RLE


def coco_results(detections: Mapping[str, Tensor], image_id: int, category_ids: Sequence[int]) -> list[Result]:
    """Convert the detections of Mask R-CNN in an image to COCO results, in order.

    detections: boxes (n, 4) as x1, y1, x2, y2 in pixels, labels (n,) from 1, scores (n,), and masks (n, 1, H, W), the
        probability of each pixel, which is thresholded at 0.5.
    category_ids: COCO category ids in order of the labels.

    Boxes are converted to x, y, width and height in float32. Masks are encoded one by one to save memory.
    """
    boxes = box_convert(detections["boxes"].float(), "xyxy", "xywh").tolist()
    labels, scores = detections["labels"].tolist(), detections["scores"].float().tolist()
    return [
        {
            "image_id": image_id,
            "category_id": category_ids[label - 1],
            "bbox": box,
            "score": score,
            "segmentation": _encode_mask(mask[0]),
        }
        for box, label, score, mask in zip(boxes, labels, scores, detections["masks"], strict=True)
    ]


def _encode_mask(mask: Tensor) -> dict[str, Any]:
    """Encode the pixels above 0.5 of a mask (H, W) as RLE, in column order."""
    columns = (mask.T > 0.5).contiguous().cpu().numpy().view(np.uint8)
    encoding = rle.encode(columns.T)
    return {"size": list(mask.shape), "counts": encoding["counts"].decode("ascii")}


def check_result(result: Any, name: str) -> None:
    """Raise InputError if `result` is not a COCO result with a box and a mask. name: of the result in the message."""
    convert(result, _Entry, name)


def write_results(results: Sequence[Result], path: Path) -> None:
    """Write COCO results to a JSON file, atomically."""
    atomic_write(path, (json.dumps(list(results), allow_nan=False) + "\n").encode())


def read_results(path: Path) -> list[Result]:
    """Read COCO results from a JSON file. Raises InputError if it cannot be read or has other content."""
    try:
        results = parse_json(path.read_bytes(), list[Any], f"{path} must have COCO results")
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error
    for index, result in enumerate(results):
        check_result(result, f"{path}: result {index}")
    return results
