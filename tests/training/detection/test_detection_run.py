"""Detection runs from end to end. Behavior that all tasks share is tested in training/test_run.py."""

import json
import shutil
from dataclasses import replace

import pytest

from lambdanets.errors import InputError
from lambdanets.tasks.detection import DetectionTask
from lambdanets.training import run
from training.detection.tiny_detection import edit_annotations, tiny_recipe
from training.runs import interrupted_run, load_weights, read_metrics, resume


@pytest.fixture
def tiny(tmp_path):
    """A recipe of a tiny detector, with its own images, which the test may change."""
    return tiny_recipe(tmp_path / "digits")


def assert_finite(folder):
    assert [name for name, tensor in load_weights(folder).items() if not tensor.isfinite().all()] == []


def keep_annotations_of_first_image(annotations):
    return [annotation for annotation in annotations if annotation["image_id"] == 1]


def test_training_from_weights_of_a_model_that_stretches_stretches_too(tiny):
    task = DetectionTask(run.resolve_recipe(replace(tiny, weights="nuclei")))
    assert task.training.stretch
    assert task.validation.stretch
    assert task.card().stretch
    assert not run.resolve_recipe(replace(tiny, weights="cifar10")).stretch


def test_result_identifies_data_by_hash_not_by_path(tiny, tmp_path):
    shutil.copytree(tmp_path / "digits", tmp_path / "copy")
    recipes = tiny, tiny_recipe(tmp_path / "copy", training_images=2, seed=1)
    first, second = (DetectionTask(recipe).provenance() for recipe in recipes)
    for name in ("training_data", "validation_data"):
        assert first[name]["sha256"] == second[name]["sha256"] != ""
    assert first["training_data"]["name"] == str(tmp_path / "digits/train.json")
    assert first["validation_data"]["name"] == str(tmp_path / "digits/val.json")
    assert first["training_data"]["sha256"] != first["validation_data"]["sha256"]


def test_run_without_readable_validation_objects_has_no_ap(tiny, tmp_path):
    edit_annotations(tmp_path / "digits/val.json", annotations=keep_annotations_of_first_image)
    (tmp_path / "digits/val/val_00001.png").write_bytes(b"no image")
    result = run.start(replace(tiny, epochs=1), tmp_path / "run")
    assert result["segm"]["AP"] is None
    assert {row["segm_AP"] for row in read_metrics(tmp_path / "run", "val")} == {"nan"}


@pytest.mark.parametrize(("split", "name"), [("train", "data"), ("val", "validation_data")])
def test_rejects_a_detection_set_without_objects(tiny, split, name, tmp_path):
    edit_annotations(tmp_path / f"digits/{split}.json", annotations=[])
    with pytest.raises(InputError, match=f"^{name} must have at least one object with iscrowd 0, got none"):
        run.start(tiny, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_dropped_annotations_are_reported_and_listed_also_after_resuming(tiny, tmp_path, monkeypatch, capsys):
    invalid = [{"id": 900 + n, "image_id": 1, "category_id": 1, "bbox": [1, 1, 5, 5], "area": 25} for n in range(7)]
    edit_annotations(tmp_path / "digits/train.json", annotations=lambda rows: [*rows, *invalid])
    edit_annotations(tmp_path / "digits/val.json", annotations=lambda rows: [*rows, invalid[0]])
    problem = "annotations dropped: no segmentation, or one without pixels"
    crowd = "crowd regions (iscrowd 1) are neither trained on nor scored; "
    crowd += "write 0 for single objects, as of CVAT's brush"
    expected = {"training": {problem: list(range(900, 907))}, "validation": {problem: [900], crowd: [8]}}
    folder = interrupted_run(tiny, tmp_path / "run", monkeypatch, 1)
    path = folder / "findings.json"
    assert json.loads(path.read_bytes()) == expected
    output = capsys.readouterr().err
    assert f"training: {problem} (7 ids: 900, " in output
    assert f"annotations with problems: {path}\n" in output
    path.unlink()
    assert resume(folder)["dropped"] == {"training": {problem: 7}, "validation": {problem: 1, crowd: 1}}
    assert json.loads(path.read_bytes()) == expected


def test_images_too_small_for_batch_norm_are_skipped(tiny, tmp_path):
    # each position of the coarsest feature map covers 4 x 4 pixels
    run.start(replace(tiny, image_size=6, jitter=(0.3, 2.0), micro_batch=1), tmp_path / "run")
    assert_finite(tmp_path / "run")
    with pytest.raises(InputError, match="batch_size must be at least 2"):
        run.start(replace(tiny, image_size=4, jitter=(1.0, 1.0), batch_size=1), tmp_path / "smaller")
