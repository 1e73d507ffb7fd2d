"""Synthetic COCO annotations, detections close to them, and scores computed with other packages."""

import contextlib
import io

import numpy as np
from pycocotools import mask as masks
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

NAMES = ("AP", "AP50", "AP75", "APs", "APm", "APl")
CATEGORIES = [{"id": 2, "name": "cat"}, {"id": 5, "name": "dog"}, {"id": 9, "name": "bird"}, {"id": 40, "name": "owl"}]


def encode_rle(mask):
    encoding = masks.encode(np.asfortranarray(mask.astype(np.uint8)))
    return {"size": encoding["size"], "counts": encoding["counts"].decode()}


def mask_to_box(mask):
    return [float(number) for number in masks.toBbox(masks.encode(np.asfortranarray(mask.astype(np.uint8))))]


def ellipse(height, width, y, x, half_height, half_width):
    rows, columns = np.mgrid[:height, :width]
    return ((rows - y) / half_height) ** 2 + ((columns - x) / half_width) ** 2 < 1


def annotation(annotation_id, image_id, category_id, mask, **fields):
    return {
        "id": annotation_id,
        "image_id": image_id,
        "category_id": category_id,
        "bbox": mask_to_box(mask),
        "area": float(mask.sum()),
        "iscrowd": 0,
        "segmentation": encode_rle(mask),
        **fields,
    }


def synthetic_annotations(seed):
    """Return annotations of 7 images, with objects of all sizes as RLE and as polygons.

    Three images have a crowd, the last image has no objects, and the category owl has no objects.
    """
    generator = np.random.default_rng(seed)
    images, annotations = [], []
    for number in range(7):
        image = {"id": 3 * number + 11, "height": 170 + 5 * number, "width": 230 - 3 * number}
        images.append(image)
        for _ in range(0 if number == 6 else 9):
            half_axes = generator.choice([6, 25, 75]) * generator.uniform(0.8, 1.2, 2)
            y, x = generator.uniform(0, image["height"]), generator.uniform(0, image["width"])
            mask = ellipse(image["height"], image["width"], y, x, *half_axes)
            if mask.sum() > 20:
                category = int(generator.choice([2, 5, 9]))
                annotations.append(annotation(len(annotations) + 1, image["id"], category, mask))
        if number < 3:
            mask = ellipse(image["height"], image["width"], 60, 60, 40, 50)
            runs = np.diff(np.flatnonzero(np.diff(np.r_[-1, mask.T.reshape(-1), -1])))
            counts = [0] * int(mask[0, 0]) + runs.tolist()
            crowd = {"iscrowd": 1, "segmentation": {"size": list(mask.shape), "counts": counts}}
            annotations.append(annotation(len(annotations) + 1, image["id"], 2, mask, **crowd))
    for instance in annotations[::4]:
        x, y, width, height = instance["bbox"]
        if not instance["iscrowd"]:
            corners = [x, y, x + width, y, x + width, y + height, x, y + height]
            instance |= {"segmentation": [corners], "area": width * height}
    return {"images": images, "annotations": annotations, "categories": CATEGORIES}


def perturb_annotations(truth, seed):
    """Return detections: most objects and crowds shifted, some twice or with a wrong category, and false positives.

    Many of their scores are equal.
    """
    generator = np.random.default_rng(seed)
    coco = call_without_output(lambda: COCO())
    coco.dataset = truth
    call_without_output(coco.createIndex)
    categories = sorted({instance["category_id"] for instance in truth["annotations"]})
    results = []

    def add(image_id, category_id, mask):
        box = np.asarray(mask_to_box(mask)) + generator.integers(-12, 13, 4) / 8 * (generator.random() < 0.7)
        results.append(
            {
                "image_id": image_id,
                "category_id": int(category_id),
                "bbox": [float(number) for number in np.maximum(box, 0.125)],
                "score": float(generator.integers(1, 16) / 16),
                "segmentation": encode_rle(mask),
            }
        )

    for instance in truth["annotations"]:
        mask = coco.annToMask(instance)
        for _ in range(generator.choice([0, 1, 1, 1, 1, 2])):
            max_shift = max(1, round(mask.sum() ** 0.5 * generator.choice([0, 0.05, 0.1, 0.3])))
            shifted = np.roll(mask, generator.integers(-max_shift, max_shift + 1, 2), (0, 1))
            category = instance["category_id"] if generator.random() < 0.9 else generator.choice(categories)
            add(instance["image_id"], category, shifted)
    for image in truth["images"]:
        for _ in range(3):
            height, width = image["height"], image["width"]
            y, x = generator.uniform(0, height), generator.uniform(0, width)
            mask = ellipse(height, width, y, x, *generator.uniform(3, 60, 2))
            add(image["id"], generator.choice(categories), mask)
    return [results[index] for index in generator.permutation(len(results))]


def call_without_output(function):
    with contextlib.redirect_stdout(io.StringIO()):
        return function()


def pycocotools_scores(truth, results, max_detections=100):
    """Return the first six statistics of pycocotools for "bbox" and "segm", with None for -1.

    For "segm", the size of a detection is the area of its mask.
    """
    scores = {}
    for iou_type in ("bbox", "segm"):
        coco = COCO.__new__(COCO)
        call_without_output(lambda coco=coco: COCO.__init__(coco))
        coco.dataset = truth | {"annotations": [instance.copy() for instance in truth["annotations"]]}
        call_without_output(coco.createIndex)
        unused_field = "segmentation" if iou_type == "bbox" else "bbox"
        kept = [{name: value for name, value in result.items() if name != unused_field} for result in results]
        evaluation = COCOeval(coco, call_without_output(lambda coco=coco, kept=kept: coco.loadRes(kept)), iou_type)
        evaluation.params.maxDets = [1, 10, max_detections]
        call_without_output(lambda evaluation=evaluation: (evaluation.evaluate(), evaluation.accumulate()))
        precision = evaluation.eval["precision"][..., -1]
        slices = [precision[..., 0], precision[0, ..., 0], precision[5, ..., 0]]
        slices += [precision[..., size] for size in (1, 2, 3)]
        values = [array[array > -1].mean() if (array > -1).any() else None for array in slices]
        if max_detections == 100:
            call_without_output(evaluation.summarize)
            assert [-1 if value is None else value for value in values] == list(evaluation.stats[:6])
        scores[iou_type] = dict(zip(NAMES, values, strict=True))
    return scores
