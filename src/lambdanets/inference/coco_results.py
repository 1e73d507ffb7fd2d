"""Detections in COCO's results format, a JSON list with one entry per detection."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torchvision.ops import box_convert

from lambdanets.data.coco.segmentations import CroppedMask, compress
from lambdanets.files import atomic_write
from lambdanets.inference.objects import Objects

Result = dict[str, Any]


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
    return {"size": list(size), "counts": compress(counts, *size)}


def write_results(results: Sequence[Result], path: Path) -> None:
    """Write COCO results to a JSON file, atomically."""
    atomic_write(path, (json.dumps(list(results), allow_nan=False) + "\n").encode())
