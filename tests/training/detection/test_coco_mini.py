"""Detection on images of COCO, if they are available."""

import json
import os
from pathlib import Path

import pytest
from synthetic_detections import pycocotools_scores

from lambdanets.cli import main
from lambdanets.tasks.detection.recipe import DetectionRecipe
from lambdanets.training import run

VARIABLE = "LAMBDANETS_COCO_MINI"


@pytest.fixture
def coco():
    if VARIABLE not in os.environ:
        pytest.skip(f"{VARIABLE} names no folder with instances_train2017.json and train2017.tar")
    return Path(os.environ[VARIABLE])


@pytest.mark.slow
def test_trains_and_scores_on_coco_images(coco, tmp_path, capsys):
    # persons only: with 80 categories, all scores would be too low after two steps
    truth = json.loads((coco / "instances_train2017.json").read_bytes())
    truth["categories"] = [category for category in truth["categories"] if category["name"] == "person"]
    truth["annotations"] = [instance for instance in truth["annotations"] if instance["category_id"] == 1]
    (tmp_path / "persons.json").write_text(json.dumps(truth))
    paths = {"data": str(tmp_path / "persons.json"), "images": str(coco / "train2017.tar")}
    recipe = DetectionRecipe(
        **paths,
        validation_data=paths["data"],
        model="lambda_resnet20_small",
        model_options={"small_images": False},
        image_size=128,
        jitter=(0.5, 1.5),
        flip=0.5,
        levels=(2, 3, 4),
        pyramid_channels=16,
        box_layers=(0, 32),
        mask_layers=1,
        proposals=50,
        sampled_regions=32,
        max_detections=10,
        training_images=8,
        batch_size=4,
        epochs=1,
        workers=1,
    )
    result = run.start(recipe, tmp_path / "run")
    assert result["images"] == 57
    assert result["unreadable"] == []
    assert (tmp_path / "run/metrics.csv").read_text().splitlines()[-1].startswith("2,1,val,")
    command = ["evaluate", str(tmp_path / "run"), "--out", str(tmp_path / "out")]
    assert main([*command, "--data", paths["data"], "--images", paths["images"]]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith(f"masks  AP {result['segm']['AP']:.4f}")
    results = json.loads((tmp_path / "out/results.json").read_bytes())
    assert results
    for iou_type, scores in pycocotools_scores(truth, results).items():
        assert result[iou_type] == pytest.approx(scores, abs=1e-6)
    assert {result["category_id"] for result in results} == {1}
    assert {result["image_id"] for result in results} <= {image["id"] for image in truth["images"]}
