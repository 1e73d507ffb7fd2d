"""Synthetic COCO annotations, detections close to them, and scores computed with other packages."""

import contextlib
import io

import numpy as np
import torch
from pycocotools import mask as masks
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from torchmetrics.detection import MeanAveragePrecision

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


def torchmetrics_scores(truth, results):
    """Return the scores of MeanAveragePrecision, with None for -1."""
    coco = call_without_output(lambda: COCO())
    coco.dataset = truth
    call_without_output(coco.createIndex)
    # the default thresholds are rounded to float32, which makes some slightly larger, such as recall 0.07 and IoU 0.6
    thresholds = {
        "iou_thresholds": np.linspace(0.5, 0.95, 10).tolist(),
        "rec_thresholds": np.linspace(0, 1, 101).tolist(),
    }
    metric = MeanAveragePrecision("xywh", ("bbox", "segm"), backend="faster_coco_eval", **thresholds)
    for image in truth["images"]:
        size = image["height"], image["width"]
        objects = coco.imgToAnns[image["id"]]
        detections = [result for result in results if result["image_id"] == image["id"]]
        target = {
            "boxes": torch.tensor([instance["bbox"] for instance in objects]).reshape(-1, 4),
            "labels": torch.tensor([instance["category_id"] for instance in objects], dtype=torch.int64),
            "masks": stack_masks([coco.annToMask(instance) for instance in objects], size),
            "iscrowd": torch.tensor([instance["iscrowd"] for instance in objects], dtype=torch.int64),
            "area": torch.tensor([instance["area"] for instance in objects], dtype=torch.float64),
        }
        prediction = {
            "boxes": torch.tensor([result["bbox"] for result in detections]).reshape(-1, 4),
            "labels": torch.tensor([result["category_id"] for result in detections], dtype=torch.int64),
            "masks": stack_masks([masks.decode(result["segmentation"]) for result in detections], size),
            "scores": torch.tensor([result["score"] for result in detections]),
        }
        metric.update([prediction], [target])
    values = metric.compute()
    keys = ("map", "map_50", "map_75", "map_small", "map_medium", "map_large")
    return {
        iou_type: {
            name: None if values[f"{iou_type}_{key}"] == -1 else float(values[f"{iou_type}_{key}"])
            for name, key in zip(NAMES, keys, strict=True)
        }
        for iou_type in ("bbox", "segm")
    }


def stack_masks(masks, size):
    return torch.from_numpy(np.stack(masks)).bool() if masks else torch.zeros(0, *size, dtype=torch.bool)
