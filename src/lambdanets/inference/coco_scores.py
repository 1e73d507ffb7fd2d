"""COCO average precision (AP) of boxes and masks, computed by faster-coco-eval on run-length encoded masks."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from faster_coco_eval import COCO, COCOeval_faster
from faster_coco_eval import mask as rle
from faster_coco_eval.mask_api_new_cpp import toUncompressedRLE

from lambdanets.errors import InputError
from lambdanets.inference.coco_results import Result, check_result

KINDS = ("bbox", "segm")
IOUS = np.linspace(0.5, 0.95, 10)
RECALLS = np.linspace(0, 1, 101)
_SIZES = {"AP": 0, "APs": 1, "APm": 2, "APl": 3}  # all objects, below 32 x 32 pixels, up to 96 x 96, above


@dataclass(frozen=True, eq=False)
class Scores:
    """COCO precision of detections.

    categories: names in order of their ids.
    precision: for "bbox" and "segm" the precision at (10 IoUs, 101 recalls, categories, 4 sizes), -1 where there is no
        object of the category and size.
    """

    categories: tuple[str, ...]
    precision: Mapping[str, np.ndarray]

    def summary(self) -> dict[str, dict[str, float | None]]:
        """For "bbox" and "segm": AP, AP50, AP75, APs, APm and APl in [0, 1]; None without objects of that size."""
        return {kind: self._summary(precision) for kind, precision in self.precision.items()}

    def _summary(self, precision: np.ndarray) -> dict[str, float | None]:
        at = {f"AP{round(100 * iou)}": _mean(precision[_iou_index(iou), :, :, 0]) for iou in (0.5, 0.75)}
        by_size = {name: _mean(precision[..., size]) for name, size in _SIZES.items()}
        return {"AP": by_size.pop("AP"), **at, **by_size}

    def per_category(self, kind: str) -> dict[str, float | None]:
        """AP by category name; None for a category without objects."""
        return {name: _mean(self.precision[kind][:, :, k, 0]) for k, name in enumerate(self.categories)}

    def to_dict(self) -> dict[str, Any]:
        """The summary and the AP per category, for result.json and scores.json."""
        return {**self.summary(), "AP_by_category": {kind: self.per_category(kind) for kind in KINDS}}

    def curve(self, kind: str, iou: float | None = None) -> np.ndarray | None:
        """Precision-recall curve: precision at RECALLS, (101,), averaged over categories; None without objects.

        iou: one of 0.5, 0.55, ..., 0.95, or None for the average over all of them, whose mean is AP. Raises InputError
        for another iou.
        """
        precision = self.precision[kind][..., 0]
        chosen = precision if iou is None else precision[_iou_index(iou)][None]
        has_objects = (precision > -1).all(axis=(0, 1))
        return chosen[:, :, has_objects].mean(axis=(0, 2)) if has_objects.any() else None


def _mean(precision: np.ndarray) -> float | None:
    valid = precision[precision > -1]
    return float(valid.mean()) if valid.size else None


def _iou_index(iou: float) -> int:
    matches = np.flatnonzero(np.isclose(IOUS, iou))
    if not matches.size:
        raise InputError(f"iou must be one of 0.5, 0.55, ..., 0.95, got {iou}")
    return int(matches[0])


def evaluate(truth: Mapping[str, Any], results: Sequence[Result], *, detections: int = 100) -> Scores:
    """Score results against ground truth.

    truth: images, annotations and categories of a COCO instances file. Crowd regions are not objects; detections in
        them are ignored.
    results: as from `coco_results`. Ties of scores within an image are ranked in the given order.
    detections: maximum number per image and category, by score.

    The size of a detection is the area of its box for box AP, of its mask for mask AP. Raises InputError for results of
    unknown images or categories, masks of another size than their image's, and invalid results.
    """
    if detections < 1:
        raise InputError(f"detections must be at least 1, got {detections}")
    images = {
        image["id"]: {"id": number, "height": image["height"], "width": image["width"]}
        for number, image in enumerate(sorted(truth["images"], key=lambda image: image["id"]), 1)
    }
    categories = sorted(truth["categories"], key=lambda category: category["id"])
    base = {"images": list(images.values()), "categories": categories}
    # the evaluation supports neither negative ids nor annotation id 0
    objects = [
        annotation | {"id": number, "image_id": images[annotation["image_id"]]["id"]}
        for number, annotation in enumerate(truth["annotations"], 1)
    ]
    found = _numbered(results, images, {category["id"] for category in categories})
    names = Counter(category["name"] for category in categories)
    return Scores(
        tuple(
            category["name"] if names[category["name"]] == 1 else f"{category['name']} ({category['id']})"
            for category in categories
        ),
        {kind: _precision(base, objects, found, kind, detections) for kind in KINDS},
    )


def _numbered(results: Sequence[Result], images: Mapping[int, dict[str, int]], categories: set[int]) -> list[Result]:
    """The results, validated, with ids from 1, new image ids, and box and mask areas."""
    found = []
    for index, result in enumerate(results):
        name = f"result {index}"
        check_result(result, name)
        if result["image_id"] not in images:
            raise InputError(f"{name} must have the id of an annotated image, got image {result['image_id']}")
        if result["category_id"] not in categories:
            raise InputError(f"{name} must have an annotated category, got category {result['category_id']}")
        image = images[result["image_id"]]
        mask = _mask(result["segmentation"], [image["height"], image["width"]], name)
        width, height = result["bbox"][2:]
        areas = {"bbox_area": width * height, "segm_area": int(rle.area(mask))}
        found.append(result | areas | {"id": index + 1, "image_id": image["id"], "segmentation": mask, "iscrowd": 0})
    return found


def _mask(segmentation: dict[str, Any], size: list[int], name: str) -> dict[str, Any]:
    """The run-length encoding, if it covers the image; others would break the IoU or loop forever."""
    if segmentation.get("size") != size:
        raise InputError(f"{name} must have a mask of height and width {size}, got {segmentation.get('size')!r}")
    try:
        mask: dict[str, Any] = rle.segmToRle(segmentation, size[1], size[0])
        pixels = sum(toUncompressedRLE([mask])[0]["counts"])
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{name} has a damaged mask") from error
    if pixels != size[0] * size[1]:
        raise InputError(f"{name} has a damaged mask: its runs cover {pixels} of {size[0] * size[1]} pixels")
    return mask


def _precision(
    base: dict[str, Any], objects: Sequence[dict[str, Any]], found: Sequence[Result], kind: str, detections: int
) -> np.ndarray:
    # copies, as the evaluation modifies its input
    truth = COCO(base | {"annotations": [each.copy() for each in objects]})
    predicted = COCO(base | {"annotations": [each | {"area": each[f"{kind}_area"]} for each in found]})
    evaluation = COCOeval_faster(truth, predicted, kind)
    evaluation.params.iouThrs, evaluation.params.recThrs = IOUS, RECALLS
    evaluation.params.maxDets = [detections]
    evaluation.evaluate()
    evaluation.accumulate()
    return np.asarray(evaluation.eval["precision"])[..., -1]
