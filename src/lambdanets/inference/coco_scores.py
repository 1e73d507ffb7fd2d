"""Detections in COCO's results format, and their average precision (AP), computed by faster-coco-eval."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torchvision.ops import box_convert

from lambdanets.data.coco.segmentations import encode_rle
from lambdanets.inference.detections import Detections

# Columns of metrics.csv: COCO's iouType and metric.
METRICS = {f"{kind}_{name}": (kind, name) for kind in ("bbox", "segm") for name in ("AP", "AP50")}
# Parts of the precision (10 IoUs, 101 recalls, categories, 4 area ranges): AP is the mean over the IoU thresholds 0.5,
# 0.55 ... 0.95. Area ranges: all, small (below 32 x 32 pixels), medium (up to 96 x 96) and large.
_PARTS = {
    "AP": np.s_[..., 0],
    "AP50": np.s_[:1, ..., 0],
    "AP75": np.s_[5:6, ..., 0],
    "APs": np.s_[..., 1],
    "APm": np.s_[..., 2],
    "APl": np.s_[..., 3],
}

Result = dict[str, Any]


def coco_results(objects: Detections, image_id: int, category_ids: Sequence[int]) -> list[Result]:
    """Convert the objects in an image to COCO results, in order.

    category_ids: in order of the labels.
    """
    boxes = box_convert(objects.boxes, "xyxy", "xywh").tolist()
    return [
        {
            "image_id": image_id,
            "category_id": category_ids[label - 1],
            "bbox": box,
            "score": score,
            "segmentation": {"size": [*objects.size], "counts": encode_rle(mask, objects.size, top, left)},
        }
        for box, label, score, (top, left, mask) in zip(
            boxes, objects.labels.tolist(), objects.scores.tolist(), objects.crops, strict=True
        )
    ]


def _mean(precision: np.ndarray) -> float | None:
    """Return the mean, without the -1 of categories that have no objects of a size."""
    valid = precision[precision > -1]
    return float(valid.mean()) if valid.size else None


def evaluate_results(
    truth: Mapping[str, Any], results: Sequence[Result], *, max_detections: int = 100
) -> dict[str, Any]:
    """Compute the average precision of COCO results, as it is in scores.json.

    Returns AP, AP50, AP75, APs, APm and APl in [0, 1] for "bbox" and "segm", and in "AP_by_category" the AP of each
    category by its name. None stands for categories and sizes without objects.

    truth: from `AnnotatedImages.to_coco`. Crowd regions are not objects, and detections in them are ignored.
    results: from `coco_results`. Detections with equal scores in an image are ranked in this order.
    max_detections: maximum number of detections per image and category. Those with the highest scores are used.

    The size of a detection is the area of its box for box AP, and the area of its mask for mask AP.
    """
    from faster_coco_eval import COCO, COCOeval_faster  # predictions do not need it

    numbers = {image["id"]: n for n, image in enumerate(truth["images"], 1)}
    images = [image | {"id": numbers[image["id"]]} for image in truth["images"]]

    def renumber(entries: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return copies, which faster-coco-eval changes, with ids from 1: it supports neither 0 nor negative ones."""
        return [{**entry, "id": n, "image_id": numbers[entry["image_id"]]} for n, entry in enumerate(entries, 1)]

    scores: dict[str, Any] = {}
    by_category: dict[str, Any] = {}
    for iou_type, other in (("bbox", "segmentation"), ("segm", "bbox")):
        annotated = COCO({**truth, "images": images, "annotations": renumber(truth["annotations"])})
        detected = [{name: value for name, value in each.items() if name != other} for each in renumber(results)]
        evaluation = COCOeval_faster(annotated, annotated.loadRes(detected), iou_type)
        evaluation.params.maxDets = [max_detections]
        evaluation.evaluate()
        evaluation.accumulate()
        precision = np.asarray(evaluation.eval["precision"])[..., -1]
        scores[iou_type] = {name: _mean(precision[part]) for name, part in _PARTS.items()}
        categories = enumerate(truth["categories"])
        by_category[iou_type] = {category["name"]: _mean(precision[:, :, k, 0]) for k, category in categories}
    return {**scores, "AP_by_category": by_category}
