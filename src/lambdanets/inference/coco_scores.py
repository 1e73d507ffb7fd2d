"""Average precision (AP) by the rules of COCO, of boxes and of masks.

Computed by faster-coco-eval, which torchmetrics' MeanAveragePrecision may use too: here on run-length encodings, so
that no mask is decoded.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from faster_coco_eval import COCO, COCOeval_faster
from faster_coco_eval import mask as runs
from faster_coco_eval.mask_api_new_cpp import toUncompressedRLE

from lambdanets.errors import InputError
from lambdanets.inference.coco_results import Result, check_result

KINDS = ("bbox", "segm")
IOUS = np.linspace(0.5, 0.95, 10)
RECALLS = np.linspace(0, 1, 101)
_SIZES = {"AP": 0, "APs": 1, "APm": 2, "APl": 3}  # of all objects, below 32 x 32 pixels, to 96 x 96, above


@dataclass(frozen=True, eq=False)
class Scores:
    """How precise detections are.

    categories: names in order of the ids.
    precision: for "bbox" and "segm" the precision at (10 IoUs, 101 recalls, categories, 4 sizes), -1 where there is no
        object of a category and size.
    """

    categories: tuple[str, ...]
    precision: Mapping[str, np.ndarray]

    def summary(self) -> dict[str, dict[str, float | None]]:
        """For "bbox" and "segm": AP, AP50, AP75, APs, APm and APl in [0, 1], None where no object has such a size."""
        return {kind: self._summary(precision) for kind, precision in self.precision.items()}

    def _summary(self, precision: np.ndarray) -> dict[str, float | None]:
        at = {f"AP{round(100 * iou)}": _mean(precision[_number(iou), :, :, 0]) for iou in (0.5, 0.75)}
        by_size = {name: _mean(precision[..., size]) for name, size in _SIZES.items()}
        return {"AP": by_size.pop("AP"), **at, **by_size}

    def per_category(self, kind: str) -> dict[str, float | None]:
        """AP by the name of the category, None for one without objects."""
        return {name: _mean(self.precision[kind][:, :, k, 0]) for k, name in enumerate(self.categories)}

    def as_dict(self) -> dict[str, Any]:
        """The summary, and AP by the names of the categories: a part of result.json, and of scores.json."""
        return {**self.summary(), "AP_by_category": {kind: self.per_category(kind) for kind in KINDS}}

    def curve(self, kind: str, iou: float | None = None) -> np.ndarray | None:
        """Precision at the 101 recalls in RECALLS, (101,): its mean over the categories that have objects.

        iou: one of 0.5, 0.55, ..., 0.95, or None for the mean over all of them, whose mean is AP. None if there is no
        object at all. Raises InputError for another iou.
        """
        precision = self.precision[kind][..., 0]
        chosen = precision if iou is None else precision[_number(iou)][None]
        having = (precision > -1).all(axis=(0, 1))
        return chosen[:, :, having].mean(axis=(0, 2)) if having.any() else None


def _mean(precision: np.ndarray) -> float | None:
    there = precision[precision > -1]
    return float(there.mean()) if there.size else None


def _number(iou: float) -> int:
    near = np.flatnonzero(np.isclose(IOUS, iou))
    if not near.size:
        raise InputError(f"iou must be one of 0.5, 0.55, ..., 0.95, got {iou}")
    return int(near[0])


def evaluate(truth: Mapping[str, Any], results: Sequence[Result], *, detections: int = 100) -> Scores:
    """The scores of what was found in images of which all is known.

    truth: images, annotations and categories of a COCO instances file. Crowd regions are no objects, and what is found
        in them counts for nothing.
    results: entries as of `coco_results`, in any order but for equal scores within an image: the first ranks first.
    detections: of an image and category, how many are counted, those of the highest scores.

    A detection's size is its box's area for boxes, its mask's for masks. Raises InputError for results of images or
    categories that truth has not, for masks of another size than their image's and for what is no result.
    """
    if detections < 1:
        raise InputError(f"detections must be at least 1, got {detections}")
    images = {
        image["id"]: {"id": number, "height": image["height"], "width": image["width"]}
        for number, image in enumerate(sorted(truth["images"], key=lambda image: image["id"]), 1)
    }
    categories = sorted(truth["categories"], key=lambda category: category["id"])
    base = {"images": list(images.values()), "categories": categories}
    # the evaluation takes neither ids below 0 nor annotations of id 0
    objects = [
        annotation | {"id": number, "image_id": images[annotation["image_id"]]["id"]}
        for number, annotation in enumerate(truth["annotations"], 1)
    ]
    found = _found(results, images, {category["id"] for category in categories})
    names = Counter(category["name"] for category in categories)
    return Scores(
        tuple(
            category["name"] if names[category["name"]] == 1 else f"{category['name']} ({category['id']})"
            for category in categories
        ),
        {kind: _precision(base, objects, found, kind, detections) for kind in KINDS},
    )


def _found(results: Sequence[Result], images: Mapping[int, dict[str, int]], categories: set[int]) -> list[Result]:
    """The results, checked and numbered from 1, with their images' numbers and the areas of both kinds."""
    found = []
    for place, result in enumerate(results):
        where = f"result {place}"
        check_result(result, where)
        if result["image_id"] not in images:
            raise InputError(f"{where} is of image {result['image_id']}, which the truth has not")
        if result["category_id"] not in categories:
            raise InputError(f"{where} is of category {result['category_id']}, which the truth has not")
        image = images[result["image_id"]]
        mask = _mask(result["segmentation"], [image["height"], image["width"]], where)
        width, height = result["bbox"][2:]
        areas = {"bbox_area": width * height, "segm_area": int(runs.area(mask))}
        found.append(result | areas | {"id": place + 1, "image_id": image["id"], "segmentation": mask, "iscrowd": 0})
    return found


def _mask(segmentation: dict[str, Any], size: list[int], where: str) -> dict[str, Any]:
    """The run-length encoding, if it covers the image: of others the IoU would be wrong, or never end."""
    if segmentation.get("size") != size:
        raise InputError(f"{where} must have a mask of height and width {size}, got {segmentation.get('size')!r}")
    try:
        mask: dict[str, Any] = runs.segmToRle(segmentation, size[1], size[0])
        pixels = sum(toUncompressedRLE([mask])[0]["counts"])
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{where} has a damaged mask") from error
    if pixels != size[0] * size[1]:
        raise InputError(f"{where} has a damaged mask: its runs cover {pixels} of {size[0] * size[1]} pixels")
    return mask


def _precision(
    base: dict[str, Any], objects: Sequence[dict[str, Any]], found: Sequence[Result], kind: str, detections: int
) -> np.ndarray:
    # copies, because the evaluation marks what it is given
    truth = COCO(base | {"annotations": [each.copy() for each in objects]})
    detected = COCO(base | {"annotations": [each | {"area": each[f"{kind}_area"]} for each in found]})
    evaluation = COCOeval_faster(truth, detected, kind)
    evaluation.params.iouThrs, evaluation.params.recThrs = IOUS, RECALLS
    evaluation.params.maxDets = [detections]
    evaluation.evaluate()
    evaluation.accumulate()
    return np.asarray(evaluation.eval["precision"])[..., -1]
