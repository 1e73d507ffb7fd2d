import json
import os
from pathlib import Path

import numpy as np
import pytest
from pycocotools import mask as masks
from synthetic_detections import (
    CATEGORIES,
    NAMES,
    annotation,
    ellipse,
    perturbed,
    pycocotools_scores,
    synthetic_truth,
    torchmetrics_scores,
)

from lambdanets.errors import InputError
from lambdanets.inference.coco_scores import RECALLS, evaluate


def assert_same(actual, expected):
    assert actual.keys() == expected.keys()
    for kind in actual:
        assert actual[kind] == pytest.approx(expected[kind], abs=1e-6), kind


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_scores_equal_pycocotools_and_torchmetrics(seed):
    truth = synthetic_truth(seed)
    results = perturbed(truth, seed)
    summary = evaluate(truth, results).summary()
    assert_same(summary, pycocotools_scores(truth, results))
    assert_same(summary, torchmetrics_scores(truth, results))
    values = [value for kind in summary.values() for value in kind.values()]
    assert all(0.1 < value < 0.95 for value in values), "too easy or too hard to tell anything"


@pytest.mark.parametrize("detections", [1, 3])
def test_detections_limits_detections_per_image_and_category(detections):
    truth = synthetic_truth(3)
    results = perturbed(truth, 3)
    summary = evaluate(truth, results, detections=detections).summary()
    assert summary["bbox"]["AP"] < evaluate(truth, results).summary()["bbox"]["AP"]
    # pycocotools counts the highest of 1, 10 and `detections`, so it is given the highest of each only
    kept = []
    for result in sorted(results, key=lambda result: -result["score"]):
        same = [each for each in kept if all(each[key] == result[key] for key in ("image_id", "category_id"))]
        kept += [result] if len(same) < detections else []
    assert_same(summary, pycocotools_scores(truth, kept))


def test_scores_on_coco_equal_pycocotools_and_torchmetrics():
    folder = os.environ.get("LAMBDANETS_COCO_MINI")
    if folder is None:
        pytest.skip("LAMBDANETS_COCO_MINI names no folder with instances_val2017.json")
    truth = json.loads((Path(folder) / "instances_val2017.json").read_bytes())
    results = perturbed(truth, 0)
    summary = evaluate(truth, results).summary()
    assert_same(summary, pycocotools_scores(truth, results))
    assert_same(summary, torchmetrics_scores(truth, results))


@pytest.fixture
def two_cats():
    """An image of two cats of 3,120 and 3,096 pixels, and an empty image."""
    images = [{"id": 7, "height": 120, "width": 150}, {"id": 8, "height": 60, "width": 60}]
    cats = [ellipse(120, 150, 50, x, 31.5, 31.5) for x in (35.0, 110.3)]
    objects = [annotation(number, 7, 2, mask) for number, mask in enumerate(cats)]
    return {"images": images, "annotations": objects, "categories": CATEGORIES}


def as_result(each, score=0.5, **more):
    names = ("image_id", "category_id", "bbox", "segmentation")
    return {name: each[name] for name in names} | {"score": score} | more


def test_perfect_detections_score_1(two_cats):
    scores = evaluate(two_cats, [as_result(each) for each in two_cats["annotations"]])
    perfect = {"AP": 1, "AP50": 1, "AP75": 1, "APs": None, "APm": 1, "APl": None}
    assert scores.summary() == {"bbox": perfect, "segm": perfect}
    assert list(scores.summary()["segm"]) == list(NAMES)


def test_one_of_two_objects_gives_precision_at_half_of_the_recalls(two_cats):
    scores = evaluate(two_cats, [as_result(two_cats["annotations"][0])])
    assert scores.summary()["segm"]["AP"] == pytest.approx(51 / 101)
    for kind in ("bbox", "segm"):
        np.testing.assert_allclose(scores.curve(kind, 0.75), RECALLS <= 0.5)


def test_a_more_confident_false_positive_halves_the_precision(two_cats):
    wrong = as_result(two_cats["annotations"][0], 0.9, image_id=8, bbox=[1, 1, 50, 50])
    wrong["segmentation"] = {"size": [60, 60], "counts": [0, 3600]}
    scores = evaluate(two_cats, [as_result(two_cats["annotations"][0]), wrong])
    assert scores.summary()["bbox"]["AP"] == pytest.approx(0.5 * 51 / 101)


def test_an_iou_of_062_counts_at_the_lowest_three_thresholds(two_cats):
    x, y, width, height = two_cats["annotations"][0]["bbox"]
    two_cats["annotations"] = two_cats["annotations"][:1]
    scores = evaluate(two_cats, [as_result(two_cats["annotations"][0], bbox=[x, y, width, 0.62 * height])])
    summary = scores.summary()
    assert [summary["bbox"][name] for name in ("AP", "AP50", "AP75")] == pytest.approx([0.3, 1, 0])
    assert summary["segm"]["AP"] == 1
    np.testing.assert_allclose(scores.curve("bbox"), 0.3)
    assert scores.curve("bbox", 0.6).mean() == 1
    assert scores.curve("bbox", 0.65).mean() == 0


def test_per_category_ap_is_none_without_objects(two_cats):
    two_cats["annotations"][1]["category_id"] = 9
    scores = evaluate(two_cats, [as_result(two_cats["annotations"][1])])
    assert scores.per_category("segm") == {"cat": 0, "dog": None, "bird": 1, "owl": None}
    assert scores.summary()["segm"]["AP"] == 0.5
    np.testing.assert_allclose(scores.curve("segm"), 0.5)


def test_categories_of_the_same_name_are_distinguished_by_id(two_cats):
    two_cats["categories"] = [{"id": 3, "name": "bat"}, {"id": 2, "name": "bat"}]
    assert list(evaluate(two_cats, []).per_category("bbox")) == ["bat (2)", "bat (3)"]


def test_the_mean_of_the_curve_is_the_average_precision():
    truth = synthetic_truth(4)
    scores = evaluate(truth, perturbed(truth, 4))
    for kind, summary in scores.summary().items():
        assert scores.curve(kind).mean() == pytest.approx(summary["AP"])
        assert scores.curve(kind, 0.5).mean() == pytest.approx(summary["AP50"])


def test_no_results_score_zero(two_cats):
    assert evaluate(two_cats, []).summary()["bbox"] == {
        "AP": 0,
        "AP50": 0,
        "AP75": 0,
        "APs": None,
        "APm": 0,
        "APl": None,
    }


@pytest.mark.parametrize("missing", ["annotations", "images", "categories"])
def test_scores_without_objects_are_none(two_cats, missing):
    truth = two_cats | {"annotations": [], missing: []}
    results = [as_result(two_cats["annotations"][0])] if missing == "annotations" else []
    scores = evaluate(truth, results)
    nothing = dict.fromkeys(NAMES)
    assert scores.summary() == {"bbox": nothing, "segm": nothing}
    assert scores.curve("bbox", 0.5) is None
    assert set(scores.per_category("segm").values()) <= {None}


def test_detections_in_a_crowd_are_ignored(two_cats):
    two_cats["annotations"][1]["iscrowd"] = 1
    results = [as_result(two_cats["annotations"][0], 0.5)]
    results += [as_result(two_cats["annotations"][1], 0.9)] * 2
    assert evaluate(two_cats, results).summary()["segm"]["AP"] == 1


def test_mask_size_is_the_area_of_the_mask_not_of_its_box(two_cats):
    # a small mask in a box of medium size is no false positive among the objects of medium size
    speck = masks.encode(np.asfortranarray(ellipse(120, 150, 100, 100, 5, 5).astype(np.uint8)))
    speck["counts"] = speck["counts"].decode()
    results = [as_result(each, 0.5) for each in two_cats["annotations"]]
    results.append(as_result(two_cats["annotations"][0], 0.9, bbox=[80, 60, 60, 55], segmentation=speck))
    summary = evaluate(two_cats, results).summary()
    assert summary["segm"]["APm"] == 1
    assert summary["bbox"]["APm"] == pytest.approx(2 / 3)


@pytest.mark.parametrize("image_id", [0, -5, 2**40])
def test_ids_may_be_any_integers(two_cats, image_id):
    two_cats["images"][0]["id"] = image_id
    for number, each in enumerate(two_cats["annotations"]):
        each |= {"image_id": image_id, "id": -number}
    assert evaluate(two_cats, [as_result(each) for each in two_cats["annotations"]]).summary()["segm"]["AP"] == 1


def test_scoring_prints_nothing_and_keeps_its_inputs(two_cats, capfd):
    results = [as_result(two_cats["annotations"][0])]
    before = json.dumps([two_cats, results])
    evaluate(two_cats, results)
    assert json.dumps([two_cats, results]) == before
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"image_id": 3}, "result 1 must have the id of an annotated image, got image 3"),
        ({"category_id": 3}, "result 1 must have an annotated category, got category 3"),
        ({"score": float("nan")}, "result 1.score must be a finite number, got nan"),
        ({"bbox": [1, 2, 3]}, "result 1.bbox must be 4 finite numbers, got \\[1, 2, 3\\]"),
        ({"segmentation": None}, "result 1.segmentation must be an object, got None"),
        ({"segmentation": {"size": [150, 120], "counts": "x"}}, "height and width \\[120, 150\\], got \\[150, 120\\]"),
        ({"segmentation": {"size": [120, 150], "counts": "abc"}}, "result 1 has a damaged mask"),
        ({"segmentation": {"size": [120, 150]}}, "result 1 has a damaged mask"),
        ({"segmentation": {"size": [120, 150], "counts": "12"}}, "its runs cover 3 of 18000 pixels"),
    ],
)
def test_rejects_results_that_cannot_be_scored(two_cats, change, message):
    good = as_result(two_cats["annotations"][0])
    with pytest.raises(InputError, match=message):
        evaluate(two_cats, [good, good | change])


def test_rejects_an_unknown_iou_and_zero_detections(two_cats):
    with pytest.raises(InputError, match=r"iou must be one of 0.5, 0.55, ..., 0.95, got 0.4"):
        evaluate(two_cats, []).curve("bbox", 0.4)
    with pytest.raises(InputError, match="detections must be at least 1, got 0"):
        evaluate(two_cats, [], detections=0)
