"""Synthetic COCO annotations, detections close to them, and the scores of other packages."""

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


def rle_of(mask):
    encoding = masks.encode(np.asfortranarray(mask.astype(np.uint8)))
    return {"size": encoding["size"], "counts": encoding["counts"].decode()}


def bbox_of(mask):
    return [float(number) for number in masks.toBbox(masks.encode(np.asfortranarray(mask.astype(np.uint8))))]


def ellipse(height, width, y, x, half_height, half_width):
    rows, columns = np.mgrid[:height, :width]
    return ((rows - y) / half_height) ** 2 + ((columns - x) / half_width) ** 2 < 1


def annotation(number, image_id, category_id, mask, **more):
    return {
        "id": number,
        "image_id": image_id,
        "category_id": category_id,
        "bbox": bbox_of(mask),
        "area": float(mask.sum()),
        "iscrowd": 0,
        "segmentation": rle_of(mask),
        **more,
    }


def synthetic_truth(seed):
    """7 images, the last without objects; no owl; objects of all sizes, as RLE and as polygons; a crowd in three."""
    generator = np.random.default_rng(seed)
    images, annotations = [], []
    for number in range(7):
        image = {"id": 3 * number + 11, "height": 170 + 5 * number, "width": 230 - 3 * number}
        images.append(image)
        for _ in range(0 if number == 6 else 9):
            half = generator.choice([6, 25, 75]) * generator.uniform(0.8, 1.2, 2)
            y, x = generator.uniform(0, image["height"]), generator.uniform(0, image["width"])
            mask = ellipse(image["height"], image["width"], y, x, *half)
            if mask.sum() > 20:
                category = int(generator.choice([2, 5, 9]))
                annotations.append(annotation(len(annotations) + 1, image["id"], category, mask))
        if number < 3:
            mask = ellipse(image["height"], image["width"], 60, 60, 40, 50)
            runs = np.diff(np.flatnonzero(np.diff(np.r_[-1, mask.T.reshape(-1), -1])))
            counts = [0] * int(mask[0, 0]) + runs.tolist()
            crowd = {"iscrowd": 1, "segmentation": {"size": list(mask.shape), "counts": counts}}
            annotations.append(annotation(len(annotations) + 1, image["id"], 2, mask, **crowd))
    for each in annotations[::4]:
        x, y, width, height = each["bbox"]
        if not each["iscrowd"]:
            corners = [x, y, x + width, y, x + width, y + height, x, y + height]
            each |= {"segmentation": [corners], "area": width * height}
    return {"images": images, "annotations": annotations, "categories": CATEGORIES}


def perturbed(truth, seed):
    """Most objects and crowds, shifted, some twice or with a wrong category; false positives; tied scores."""
    generator = np.random.default_rng(seed)
    coco = silent(lambda: COCO())
    coco.dataset = truth
    silent(coco.createIndex)
    categories = sorted({each["category_id"] for each in truth["annotations"]})
    results = []

    def add(image_id, category_id, mask):
        box = np.asarray(bbox_of(mask)) + generator.integers(-12, 13, 4) / 8 * (generator.random() < 0.7)
        results.append(
            {
                "image_id": image_id,
                "category_id": int(category_id),
                "bbox": [float(number) for number in np.maximum(box, 0.125)],
                "score": float(generator.integers(1, 16) / 16),
                "segmentation": rle_of(mask),
            }
        )

    for each in truth["annotations"]:
        mask = coco.annToMask(each)
        for _ in range(generator.choice([0, 1, 1, 1, 1, 2])):
            reach = max(1, round(mask.sum() ** 0.5 * generator.choice([0, 0.05, 0.1, 0.3])))
            moved = np.roll(mask, generator.integers(-reach, reach + 1, 2), (0, 1))
            category = each["category_id"] if generator.random() < 0.9 else generator.choice(categories)
            add(each["image_id"], category, moved)
    for image in truth["images"]:
        for _ in range(3):
            height, width = image["height"], image["width"]
            y, x = generator.uniform(0, height), generator.uniform(0, width)
            mask = ellipse(height, width, y, x, *generator.uniform(3, 60, 2))
            add(image["id"], generator.choice(categories), mask)
    return [results[place] for place in generator.permutation(len(results))]


def silent(work):
    with contextlib.redirect_stdout(io.StringIO()):
        return work()


def pycocotools_scores(truth, results, detections=100):
    """The first six statistics of pycocotools for "bbox" and "segm", with None for -1, and mask sizes by mask area."""
    found = {}
    for kind in ("bbox", "segm"):
        coco = COCO.__new__(COCO)
        silent(lambda coco=coco: COCO.__init__(coco))
        coco.dataset = truth | {"annotations": [each.copy() for each in truth["annotations"]]}
        silent(coco.createIndex)
        dropped = "segmentation" if kind == "bbox" else "bbox"
        kept = [{name: value for name, value in result.items() if name != dropped} for result in results]
        evaluation = COCOeval(coco, silent(lambda coco=coco, kept=kept: coco.loadRes(kept)), kind)
        evaluation.params.maxDets = [1, 10, detections]
        silent(lambda evaluation=evaluation: (evaluation.evaluate(), evaluation.accumulate()))
        precision = evaluation.eval["precision"][..., -1]
        parts = [precision[..., 0], precision[0, ..., 0], precision[5, ..., 0], *(precision[..., n] for n in (1, 2, 3))]
        values = [part[part > -1].mean() if (part > -1).any() else None for part in parts]
        if detections == 100:
            silent(evaluation.summarize)
            assert [-1 if value is None else value for value in values] == list(evaluation.stats[:6])
        found[kind] = dict(zip(NAMES, values, strict=True))
    return found


def torchmetrics_scores(truth, results):
    """The scores of MeanAveragePrecision, with None for -1."""
    coco = silent(lambda: COCO())
    coco.dataset = truth
    silent(coco.createIndex)
    # its default thresholds are rounded to float32, above a recall of exactly 0.07 or an IoU of 0.6
    thresholds = {
        "iou_thresholds": np.linspace(0.5, 0.95, 10).tolist(),
        "rec_thresholds": np.linspace(0, 1, 101).tolist(),
    }
    metric = MeanAveragePrecision("xywh", ("bbox", "segm"), backend="faster_coco_eval", **thresholds)
    for image in truth["images"]:
        size = image["height"], image["width"]
        objects = coco.imgToAnns[image["id"]]
        found = [result for result in results if result["image_id"] == image["id"]]
        target = {
            "boxes": torch.tensor([each["bbox"] for each in objects]).reshape(-1, 4),
            "labels": torch.tensor([each["category_id"] for each in objects], dtype=torch.int64),
            "masks": stack_masks([coco.annToMask(each) for each in objects], size),
            "iscrowd": torch.tensor([each["iscrowd"] for each in objects], dtype=torch.int64),
            "area": torch.tensor([each["area"] for each in objects], dtype=torch.float64),
        }
        prediction = {
            "boxes": torch.tensor([each["bbox"] for each in found]).reshape(-1, 4),
            "labels": torch.tensor([each["category_id"] for each in found], dtype=torch.int64),
            "masks": stack_masks([masks.decode(each["segmentation"]) for each in found], size),
            "scores": torch.tensor([each["score"] for each in found]),
        }
        metric.update([prediction], [target])
    values = metric.compute()
    keys = ("map", "map_50", "map_75", "map_small", "map_medium", "map_large")
    return {
        kind: {
            name: None if values[f"{kind}_{key}"] == -1 else float(values[f"{kind}_{key}"])
            for name, key in zip(NAMES, keys, strict=True)
        }
        for kind in ("bbox", "segm")
    }


def stack_masks(masks, size):
    return torch.from_numpy(np.stack(masks)).bool() if masks else torch.zeros(0, *size, dtype=torch.bool)
