import json

import numpy as np
import pytest
from pycocotools import mask as masks
from synthetic_detections import (
    CATEGORIES,
    NAMES,
    annotation,
    ellipse,
    perturb_annotations,
    pycocotools_scores,
    synthetic_annotations,
)

from lambdanets.inference.coco_scores import RECALLS, evaluate


def assert_scores_equal(actual, expected):
    assert actual.keys() == expected.keys()
    for iou_type in actual:
        assert actual[iou_type] == pytest.approx(expected[iou_type], abs=1e-6), iou_type


@pytest.mark.parametrize("seed", [0, 1])
def test_scores_equal_those_of_pycocotools(seed):
    truth = synthetic_annotations(seed)
    results = perturb_annotations(truth, seed)
    summary = evaluate(truth, results).summary()
    assert_scores_equal(summary, pycocotools_scores(truth, results))
    values = [value for metrics in summary.values() for value in metrics.values()]
    assert all(0.1 < value < 0.95 for value in values), "scores near 0 or 1 prove little"


@pytest.mark.parametrize("max_detections", [1, 3])
def test_max_detections_limits_detections_per_image_and_category(max_detections):
    truth = synthetic_annotations(3)
    results = perturb_annotations(truth, 3)
    summary = evaluate(truth, results, max_detections=max_detections).summary()
    assert summary["bbox"]["AP"] < evaluate(truth, results).summary()["bbox"]["AP"]
    # pycocotools always allows 10 detections, so it gets only the detections with the highest scores
    kept = []
    for result in sorted(results, key=lambda result: -result["score"]):
        same = [other for other in kept if all(other[key] == result[key] for key in ("image_id", "category_id"))]
        kept += [result] if len(same) < max_detections else []
    assert_scores_equal(summary, pycocotools_scores(truth, kept))


@pytest.fixture
def two_cats():
    """An image with two cats of 3,120 and 3,096 pixels, and an image without objects."""
    images = [{"id": 7, "height": 120, "width": 150}, {"id": 8, "height": 60, "width": 60}]
    cats = [ellipse(120, 150, 50, x, 31.5, 31.5) for x in (35.0, 110.3)]
    objects = [annotation(number, 7, 2, mask) for number, mask in enumerate(cats)]
    return {"images": images, "annotations": objects, "categories": CATEGORIES}


def to_result(instance, score=0.5, **fields):
    """Convert an annotation to a detection of it."""
    names = ("image_id", "category_id", "bbox", "segmentation")
    return {name: instance[name] for name in names} | {"score": score} | fields


def test_perfect_detections_score_1(two_cats):
    scores = evaluate(two_cats, [to_result(instance) for instance in two_cats["annotations"]])
    perfect = {"AP": 1, "AP50": 1, "AP75": 1, "APs": None, "APm": 1, "APl": None}
    assert scores.summary() == {"bbox": perfect, "segm": perfect}
    assert list(scores.summary()["segm"]) == list(NAMES)


def test_detecting_one_of_two_objects_gives_half_of_the_recall(two_cats):
    scores = evaluate(two_cats, [to_result(two_cats["annotations"][0])])
    assert scores.summary()["segm"]["AP"] == pytest.approx(51 / 101)
    for iou_type in ("bbox", "segm"):
        np.testing.assert_allclose(scores.curve(iou_type, "AP75"), RECALLS <= 0.5)


def test_a_more_confident_false_positive_halves_the_precision(two_cats):
    false_positive = to_result(two_cats["annotations"][0], 0.9, image_id=8, bbox=[1, 1, 50, 50])
    false_positive["segmentation"] = masks.frPyObjects({"size": [60, 60], "counts": [0, 3600]}, 60, 60)
    scores = evaluate(two_cats, [to_result(two_cats["annotations"][0]), false_positive])
    assert scores.summary()["bbox"]["AP"] == pytest.approx(0.5 * 51 / 101)


def test_per_category_ap_is_none_without_objects(two_cats):
    two_cats["annotations"][1]["category_id"] = 9
    scores = evaluate(two_cats, [to_result(two_cats["annotations"][1])])
    assert scores.per_category("segm") == {"cat": 0, "dog": None, "bird": 1, "owl": None}
    assert scores.summary()["segm"]["AP"] == 0.5
    np.testing.assert_allclose(scores.curve("segm", "AP"), 0.5)


def test_scores_without_detections_are_zero(two_cats):
    none = {"AP": 0, "AP50": 0, "AP75": 0, "APs": None, "APm": 0, "APl": None}
    assert evaluate(two_cats, []).summary()["bbox"] == none


def test_scores_without_objects_are_none(two_cats):
    scores = evaluate(two_cats | {"annotations": []}, [to_result(two_cats["annotations"][0])])
    no_scores = dict.fromkeys(NAMES)
    assert scores.summary() == {"bbox": no_scores, "segm": no_scores}
    assert scores.curve("bbox", "AP50") is None
    assert set(scores.per_category("segm").values()) <= {None}


def test_detections_in_a_crowd_are_ignored(two_cats):
    two_cats["annotations"][1]["iscrowd"] = 1
    results = [to_result(two_cats["annotations"][0], 0.5)]
    results += [to_result(two_cats["annotations"][1], 0.9)] * 2
    assert evaluate(two_cats, results).summary()["segm"]["AP"] == 1


def test_mask_size_is_the_area_of_the_mask_not_of_its_box(two_cats):
    # a small mask in a box of medium size does not count as a false positive for objects of medium size
    small_mask = masks.encode(np.asfortranarray(ellipse(120, 150, 100, 100, 5, 5).astype(np.uint8)))
    small_mask["counts"] = small_mask["counts"].decode()
    results = [to_result(instance, 0.5) for instance in two_cats["annotations"]]
    results.append(to_result(two_cats["annotations"][0], 0.9, bbox=[80, 60, 60, 55], segmentation=small_mask))
    summary = evaluate(two_cats, results).summary()
    assert summary["segm"]["APm"] == 1
    assert summary["bbox"]["APm"] == pytest.approx(2 / 3)


def test_ids_may_be_any_integers(two_cats):
    two_cats["images"][0]["id"] = -5
    for number, instance in enumerate(two_cats["annotations"]):
        instance |= {"image_id": -5, "id": -number}
    assert (
        evaluate(two_cats, [to_result(instance) for instance in two_cats["annotations"]]).summary()["segm"]["AP"] == 1
    )


def test_scoring_prints_nothing_and_does_not_change_its_inputs(two_cats, capfd):
    results = [to_result(two_cats["annotations"][0])]
    inputs = json.dumps([two_cats, results])
    evaluate(two_cats, results)
    assert json.dumps([two_cats, results]) == inputs
    assert capfd.readouterr() == ("", "")
