"""COCO results and average precision, compared with pycocotools."""

import contextlib
import io
import json

import numpy as np
import pytest
import torch
from pycocotools import mask as masks
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from lambdanets.inference.coco_scores import coco_results, evaluate_results
from lambdanets.inference.detections import Detections

NAMES = ("AP", "AP50", "AP75", "APs", "APm", "APl")
CATEGORIES = [{"id": 2, "name": "cat"}, {"id": 5, "name": "dog"}, {"id": 9, "name": "bird"}, {"id": 40, "name": "owl"}]


def encode_rle(mask):
    encoding = masks.encode(np.asfortranarray(mask.astype(np.uint8)))
    return {"size": encoding["size"], "counts": encoding["counts"].decode()}


def ellipse(height, width, y, x, half_height, half_width):
    rows, columns = np.mgrid[:height, :width]
    return ((rows - y) / half_height) ** 2 + ((columns - x) / half_width) ** 2 < 1


def instance(image_id, category_id, mask, **fields):
    """The fields that annotations and detections have."""
    rle = encode_rle(mask)
    box = masks.toBbox(rle).tolist()
    return {"image_id": image_id, "category_id": category_id, "bbox": box, "segmentation": rle, **fields}


def annotation(number, *arguments, crowd=0):
    described = instance(*arguments, id=number, iscrowd=crowd)
    return described | {"area": float(masks.area(described["segmentation"]))}


def synthetic_data(seed):
    """Annotations of objects of all sizes and of crowds, and detections near them, beside them and of wrong categories.

    Many scores are equal. The last image and the category owl have no objects.
    """
    random = np.random.default_rng(seed)
    images = [{"id": 3 * number + 11, "height": 170 + 5 * number, "width": 230 - 3 * number} for number in range(7)]
    annotations, results = [], []
    for image in images[:-1]:
        height, width = image["height"], image["width"]
        for number in range(10):
            half_axes = random.choice([6, 25, 75]) * random.uniform(0.8, 1.2, 2)
            mask = ellipse(height, width, random.uniform(0, height), random.uniform(0, width), *half_axes)
            category, other = random.choice([2, 5, 9], 2).tolist()
            if mask.sum() > 20:
                crowd = int(number == 9)
                annotations.append(annotation(len(annotations) + 1, image["id"], category, mask, crowd=crowd))
            for _ in range(random.choice([0, 1, 1, 1, 2])):
                shift = random.integers(-1, 2, 2) * round(half_axes.min() * random.choice([0, 0.1, 0.2, 1]))
                shifted = np.roll(mask, shift, (0, 1))
                score = float(random.integers(1, 16) / 16)
                detected = category if random.random() < 0.9 else other
                results += [instance(image["id"], detected, shifted, score=score)] if shifted.any() else []
    return {"images": images, "annotations": annotations, "categories": CATEGORIES}, results


def pycocotools_scores(truth, results):
    """The first six statistics of pycocotools for "bbox" and "segm"; the size of a mask is its area."""
    scores = {}
    for iou_type, unused in (("bbox", "segmentation"), ("segm", "bbox")):
        with contextlib.redirect_stdout(io.StringIO()):
            coco = COCO()
            coco.dataset = truth | {"annotations": [each.copy() for each in truth["annotations"]]}
            coco.createIndex()
            kept = [{name: value for name, value in result.items() if name != unused} for result in results]
            evaluation = COCOeval(coco, coco.loadRes(kept), iou_type)
            evaluation.evaluate()
            evaluation.accumulate()
            evaluation.summarize()
        scores[iou_type] = dict(zip(NAMES, evaluation.stats[:6].tolist(), strict=True))
    return scores


def assert_scores_equal(actual, expected):
    for iou_type in ("bbox", "segm"):
        assert actual[iou_type] == pytest.approx(expected[iou_type], abs=1e-6), iou_type


@pytest.mark.parametrize("seed", [0, 1])
def test_scores_equal_those_of_pycocotools_and_inputs_do_not_change(seed, capfd):
    truth, results = synthetic_data(seed)
    inputs = json.dumps([truth, results])
    summary = evaluate_results(truth, results)
    assert json.dumps([truth, results]) == inputs
    assert capfd.readouterr() == ("", "")
    assert_scores_equal(summary, pycocotools_scores(truth, results))
    values = [value for kind in ("bbox", "segm") for value in summary[kind].values()]
    assert all(0.1 < value < 0.95 for value in values), "scores near 0 or 1 prove little"


def test_max_detections_limits_detections_per_image_and_category():
    truth, results = synthetic_data(3)
    summary = evaluate_results(truth, results, max_detections=2)
    assert summary["bbox"]["AP"] < evaluate_results(truth, results)["bbox"]["AP"]
    # pycocotools always allows 10 detections, so it gets only the detections with the highest scores
    kept = []
    for result in sorted(results, key=lambda result: -result["score"]):
        same = [other for other in kept if all(other[key] == result[key] for key in ("image_id", "category_id"))]
        kept += [result] if len(same) < 2 else []
    assert_scores_equal(summary, pycocotools_scores(truth, kept))


@pytest.fixture
def two_cats():
    """An image with two cats of medium size and a negative ID, and an image without objects."""
    images = [{"id": -5, "height": 120, "width": 150}, {"id": 8, "height": 60, "width": 60}]
    cats = [ellipse(120, 150, 50, x, 31.5, 31.5) for x in (35.0, 110.3)]
    objects = [annotation(-number, -5, 2, mask) for number, mask in enumerate(cats)]
    return {"images": images, "annotations": objects, "categories": CATEGORIES}


def to_result(described, score=0.5, **fields):
    """Convert an annotation to a detection of it."""
    names = ("image_id", "category_id", "bbox", "segmentation")
    return {name: described[name] for name in names} | {"score": score} | fields


def test_scores_without_objects_of_a_size_or_category_are_none(two_cats):
    both = [to_result(each) for each in two_cats["annotations"]]
    perfect = {"AP": 1, "AP50": 1, "AP75": 1, "APs": None, "APm": 1, "APl": None}
    scores = evaluate_results(two_cats, both)
    assert scores["bbox"] == scores["segm"] == perfect
    assert evaluate_results(two_cats, [])["bbox"] == {name: value and 0 for name, value in perfect.items()}
    two_cats["annotations"][1]["category_id"] = 9
    scores = evaluate_results(two_cats, [to_result(two_cats["annotations"][1])])
    assert scores["AP_by_category"]["segm"] == {"cat": 0, "dog": None, "bird": 1, "owl": None}
    scores = evaluate_results(two_cats | {"annotations": []}, both)
    assert scores["bbox"] == scores["segm"] == dict.fromkeys(NAMES)


def test_mask_size_is_the_area_of_the_mask_not_of_its_box(two_cats):
    # a small mask in a box of medium size does not count as a false positive for objects of medium size
    results = [to_result(each, 0.5) for each in two_cats["annotations"]]
    small_mask = encode_rle(ellipse(120, 150, 100, 100, 5, 5))
    results.append(to_result(two_cats["annotations"][0], 0.9, bbox=[80, 60, 60, 55], segmentation=small_mask))
    summary = evaluate_results(two_cats, results)
    assert summary["segm"]["APm"] == 1
    assert summary["bbox"]["APm"] == pytest.approx(2 / 3)


def test_detections_become_the_results_of_pycocotools():
    generator = torch.Generator().manual_seed(0)
    corners = torch.rand(40, 4, generator=generator)
    probabilities = torch.rand(40, 1, 31, 23, generator=generator)
    probabilities[0], probabilities[1], probabilities[2, 0, 0, 0] = 0, 1, 0.5  # masks are what is above 0.5
    for mask, margin in zip(probabilities[3:12], range(1, 10), strict=True):
        mask[:, :margin] = mask[:, -margin:] = mask[:, :, :margin] = 0
    outputs = {
        "boxes": torch.cat([corners[:, :2], corners[:, :2] + corners[:, 2:]], 1),
        "labels": torch.tensor([2, 1] * 20),
        "scores": torch.rand(40, generator=generator),
        "masks": probabilities,
    }
    results = coco_results(Detections.from_outputs(outputs, ("a", "b")), 11, [4, 9])
    for number, result in enumerate(results):
        left, top, right, bottom = outputs["boxes"][number]
        assert (result["image_id"], result["category_id"]) == (11, (9, 4)[number % 2])
        assert result["score"] == float(outputs["scores"][number])
        assert result["bbox"] == [float(left), float(top), float(right - left), float(bottom - top)]
        assert result["segmentation"] == encode_rle((probabilities[number, 0] > 0.5).numpy())
