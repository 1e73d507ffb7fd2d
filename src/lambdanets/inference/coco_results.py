"""Detections in COCO's results format, a JSON list with one entry per detection."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Strict
from torchvision.ops import box_convert

from lambdanets.data.coco.segmentations import CroppedMask
from lambdanets.files import atomic_write
from lambdanets.inference.objects import Objects
from lambdanets.records import check, record, reraise_as_input_error

Result = dict[str, Any]


@record
class _Entry:
    image_id: int
    category_id: int
    bbox: Annotated[tuple[float, float, float, float], Strict(False)]  # x, y, width and height
    score: float
    segmentation: dict[str, Any]  # RLE


def coco_results(objects: Objects, image_id: int, category_ids: Sequence[int]) -> list[Result]:
    """Convert the objects in an image to COCO results, in order.

    category_ids: COCO category ids in order of the labels.

    Boxes are converted to x, y, width and height in float32.
    """
    boxes = box_convert(objects.boxes, "xyxy", "xywh").tolist()
    return [
        {
            "image_id": image_id,
            "category_id": category_ids[label - 1],
            "bbox": box,
            "score": score,
            "segmentation": _encode_mask(mask, objects.size),
        }
        for box, label, score, mask in zip(
            boxes, objects.labels.tolist(), objects.scores.tolist(), objects.masks, strict=True
        )
    ]


def _encode_mask(mask: CroppedMask, size: tuple[int, int]) -> dict[str, Any]:
    """Encode a mask as RLE, in column order, in time and memory proportional to the pixels of the crop."""
    columns, rows = np.nonzero(mask.mask.T)
    pixels = (columns + mask.left) * size[0] + rows + mask.top
    starts = np.flatnonzero(np.diff(pixels, prepend=-2) != 1)  # of runs of pixels
    ends = np.append(starts[1:], len(pixels))
    bounds = np.stack([pixels[starts], pixels[starts] + ends - starts], axis=1).flatten()
    counts = np.diff(bounds, prepend=0, append=size[0] * size[1])
    counts = counts[:-1] if counts[-1] == 0 else counts  # as pycocotools does
    return {"size": list(size), "counts": _compress(counts)}


def _compress(counts: np.ndarray) -> str:
    """Encode run lengths as COCO's string, which `data.coco.segmentations` describes.

    faster-coco-eval can do this too, but prediction should not need an evaluator.
    """
    numbers = counts.copy()
    numbers[3:] -= counts[1:-2]
    characters = []
    for number in numbers.tolist():
        is_last = False
        while not is_last:
            bits, number = number & 31, number >> 5
            is_last = number == (-1 if bits & 16 else 0)
            characters.append(chr(ord("0") + bits + (0 if is_last else 32)))
    return "".join(characters)


def check_result(result: Any, name: str) -> None:
    """Raise InputError if `result` is not a COCO result with a box and a mask. name: its name in the message."""
    check(name, result, dict[str, Any])
    with reraise_as_input_error(name):
        _Entry(**result)


def write_results(results: Sequence[Result], path: Path) -> None:
    """Write COCO results to a JSON file, atomically."""
    atomic_write(path, (json.dumps(list(results), allow_nan=False) + "\n").encode())
