"""Detection runs from end to end. Behavior that all tasks share is tested in training/test_run.py."""

import csv
import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import nn

from lambdanets.cli import main
from lambdanets.errors import InputError
from lambdanets.training import run
from lambdanets.training.detection import task
from lambdanets.training.detection.task import LOSS_NAMES
from lambdanets.training.tasks import read_recipe
from lambdanets_lab.detection_report import report
from training.detection.constructed_detector import assert_nontrivial_metrics
from training.detection.tiny_detection import NUM_TRAINING_IMAGES, edit_annotations, remove_annotations, tiny_recipe
from training.runs import assert_same_result, interrupted_run, load_weights


def read_metrics(folder, split):
    with (folder / "metrics.csv").open() as file:
        return [row for row in csv.DictReader(file) if row["split"] == split]


def assert_finite(folder):
    assert [name for name, tensor in load_weights(folder).items() if not tensor.isfinite().all()] == []


def test_rejects_a_detection_set_without_a_readable_image(tmp_path):
    recipe = tiny_recipe(tmp_path / "digits")
    for path in Path(recipe.images).rglob("*.png"):
        path.write_bytes(b"no image")
    with pytest.raises(
        InputError, match=rf"none of the {NUM_TRAINING_IMAGES} training images can be read; the first: \S*png: it is"
    ):
        run.start(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_detection_run_writes_its_files_and_result(trained_detector):
    folder = trained_detector / "run"
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert files == {
        "recipe.json",
        "metrics.csv",
        "curves.png",
        "predictions.png",
        "precision_recall.png",
        "weights.safetensors",
        "result.json",
        "checkpoints/last.ckpt",
        "checkpoints/before.ckpt",
        "checkpoints/best.ckpt",
        *(name for name in files if name.startswith("tensorboard/events")),
    }
    for name in ("curves.png", "predictions.png", "precision_recall.png"):
        with Image.open(folder / name) as figure:
            assert figure.width > 200
            assert len(figure.convert("RGB").getcolors(1 << 24)) > 20
    result = json.loads((folder / "result.json").read_text())
    for iou_type in ("bbox", "segm"):
        assert set(result[iou_type]) == {"AP", "AP50", "AP75", "APs", "APm", "APl"}
        assert 0 <= result[iou_type]["AP"] <= 1
    assert result["images"] == NUM_TRAINING_IMAGES
    assert result["dropped"] == {"training": {}, "validation": {}}
    assert result["unreadable"] == []
    digest = hashlib.sha256((trained_detector / "initial.safetensors").read_bytes()).hexdigest()
    assert result["initial_weights"] == {"name": "initial.safetensors", "sha256": digest}


def test_detection_metrics_have_losses_and_average_precision(trained_detector):
    training, validation = (read_metrics(trained_detector / "run", split) for split in ("train", "val"))
    assert len(validation) == read_recipe(trained_detector / "run/recipe.json").epochs
    ap_columns = ["bbox_AP", "bbox_AP50", "segm_AP", "segm_AP50"]
    assert list(training[0])[:-4] == ["step", "epoch", "split", "loss", *LOSS_NAMES.values(), *ap_columns]
    for row in training:
        assert float(row["loss"]) == pytest.approx(sum(float(row[name]) for name in LOSS_NAMES.values()), abs=1e-5)
        assert all(float(row[name]) > 0 for name in LOSS_NAMES.values())
        assert {row[name] for name in ap_columns} == {""}
    for row in validation:
        assert all(0 <= float(row[name]) <= 1 for name in ap_columns)
        assert row["loss"] == ""
    result = json.loads((trained_detector / "run/result.json").read_text())
    assert float(validation[-1]["segm_AP50"]) == pytest.approx(result["segm"]["AP50"], abs=1e-6)


@pytest.fixture(scope="module")
def accumulated(trained_detector, tmp_path_factory):
    """A recipe with micro-batches and EMA, and the folder of its run. Read-only."""
    folder = tmp_path_factory.mktemp("accumulated") / "run"
    recipe = replace(read_recipe(trained_detector / "run/recipe.json"), micro_batch=1, ema_decay=0.9)
    run.start(recipe, folder)
    return recipe, folder


def test_interrupted_detection_run_resumes_bit_identically(accumulated, tmp_path, monkeypatch):
    # 2 steps per epoch and a checkpoint after each step; interrupted in mid-epoch and after the first epoch
    recipe, uninterrupted = accumulated
    assert_nontrivial_metrics(uninterrupted)
    for step in (1, 2):
        interrupted_run(recipe, tmp_path / "run", monkeypatch, step)
    run.resume(tmp_path / "run")
    assert_same_result(uninterrupted, tmp_path / "run")


def test_saved_detection_weights_are_the_ema(accumulated):
    _, folder = accumulated
    weights, checkpoint = load_weights(folder), torch.load(folder / "checkpoints/last.ckpt", weights_only=True)
    name = "roi_heads.box_predictor.cls_score.weight"
    tensors = {key: tensor for key, tensor in iterate_tensors(checkpoint) if key.endswith(name)}
    assert sorted(torch.equal(weights[name], tensor) for tensor in tensors.values()) == [False, True], [*tensors]


def iterate_tensors(content, prefix=""):
    """Yield the names and values of the tensors in nested dictionaries."""
    for key, value in content.items() if isinstance(content, dict) else ():
        if isinstance(value, torch.Tensor):
            yield f"{prefix}{key}", value
        else:
            yield from iterate_tensors(value, f"{prefix}{key}.")


def rename_categories(categories):
    return [{**category, "name": f"digit {category['name']}"} for category in categories]


def keep_annotations_of_first_image(annotations):
    return [annotation for annotation in annotations if annotation["image_id"] == 1]


def widen_first_box(annotations):
    x, y, width, height = annotations[0]["bbox"]
    return [{**annotations[0], "bbox": [x, y, width + 1, height]}, *annotations[1:]]


@pytest.mark.parametrize(
    ("splits", "sections", "message"),
    [
        (
            ["train", "val"],
            {"categories": rename_categories},
            "the classes of the data have changed since the run started",
        ),
        (["train"], {"annotations": widen_first_box}, "the data has changed since the run started"),
        (["val"], {"annotations": widen_first_box}, "the data has changed since the run started"),
        (["train"], {"images": lambda images: images[1:]}, "the data has changed since the run started"),
    ],
    ids=["categories", "a box", "a validation box", "a missing image"],
)
def test_rejects_resuming_on_changed_annotations(tiny, splits, sections, message, tmp_path, monkeypatch):
    folder = interrupted_run(tiny, tmp_path / "run", monkeypatch, 1)
    for split in splits:
        edit_annotations(tmp_path / f"digits/{split}.json", **sections)
    with pytest.raises(InputError, match=message):
        run.resume(folder)


def test_detection_run_resumes_with_moved_images(trained_detector, tmp_path, monkeypatch):
    uninterrupted = trained_detector / "run"
    recipe = read_recipe(uninterrupted / "recipe.json")
    shutil.copytree(trained_detector / "digits", tmp_path / "digits")
    path_fields = recipe.CHANGEABLE[:4]
    old_paths = {name: str(tmp_path / "digits" / getattr(recipe, name).rpartition("/")[2]) for name in path_fields}
    interrupted_run(replace(recipe, **old_paths), tmp_path / "run", monkeypatch, 1)
    (tmp_path / "digits").rename(tmp_path / "elsewhere")
    new_paths = {name: path.replace("digits", "elsewhere") for name, path in old_paths.items()}
    options = [f"--{name.replace('_', '-')}={path}" for name, path in new_paths.items()]
    resume = ["detect", "train", "--resume", str(tmp_path / "run")]
    assert main([*resume, *options]) == 0
    assert_same_result(uninterrupted, tmp_path / "run")
    assert main([*resume, *options]) == 0
    other = str(trained_detector / "digits/train.json")
    assert main([*resume, "--data", other]) == 2  # it would not be read


def test_result_names_initial_weights_that_were_deleted(trained_detector, tmp_path, monkeypatch):
    shutil.copy(trained_detector / "run/weights.safetensors", tmp_path / "initial.safetensors")
    recipe = tiny_recipe(tmp_path / "digits", weights=str(tmp_path / "initial.safetensors"))
    digest = hashlib.sha256((tmp_path / "initial.safetensors").read_bytes()).hexdigest()
    interrupted_run(recipe, tmp_path / "run", monkeypatch, 1)
    (tmp_path / "initial.safetensors").unlink()
    result = run.resume(tmp_path / "run")
    assert result["initial_weights"] == {"name": "initial.safetensors", "sha256": digest}


def test_result_identifies_data_by_hash_not_by_path(tiny, tmp_path):
    tiny = replace(tiny, epochs=1)
    first = run.start(tiny, tmp_path / "first")
    shutil.copytree(tmp_path / "digits", tmp_path / "copy")
    copied_recipe = tiny_recipe(tmp_path / "copy", epochs=1, training_images=2, seed=1)
    second = run.start(copied_recipe, tmp_path / "second")
    for name in ("training_data", "validation_data"):
        assert first[name]["sha256"] == second[name]["sha256"] != ""
    assert first["training_data"]["name"] == str(tmp_path / "digits/train.json")
    assert first["validation_data"]["name"] == str(tmp_path / "digits/val.json")
    assert first["training_data"]["sha256"] != first["validation_data"]["sha256"]
    labels = [
        line.split(" | ")[0] for line in report([tmp_path / "first", tmp_path / "second"], "markdown").splitlines()
    ]
    assert labels[2:4] == ["| lambda_resnet20_small training_images=None", "| lambda_resnet20_small training_images=2"]


def test_unreadable_detection_images_are_skipped_and_listed(tiny, tmp_path):
    for name in ("train/train_00002.png", "val/val_00001.png"):
        (tmp_path / "digits" / name).write_bytes(b"no image")
    result = run.start(replace(tiny, epochs=1), tmp_path / "run")
    assert len(result["unreadable"]) == 2
    assert all("it is not an image" in message for message in result["unreadable"])
    assert result["images"] == 1
    assert_finite(tmp_path / "run")


def test_run_without_readable_validation_objects_has_no_ap(tiny, tmp_path):
    edit_annotations(tmp_path / "digits/val.json", annotations=keep_annotations_of_first_image)
    (tmp_path / "digits/val/val_00001.png").write_bytes(b"no image")
    result = run.start(replace(tiny, epochs=1), tmp_path / "run")
    assert result["segm"]["AP"] is None
    assert {row["segm_AP"] for row in read_metrics(tmp_path / "run", "val")} == {"nan"}


@pytest.mark.parametrize("change_categories", [rename_categories, lambda categories: categories[1:]])
def test_rejects_validation_with_other_categories(tiny, change_categories, tmp_path):
    edit_annotations(tmp_path / "digits/val.json", categories=change_categories)
    with pytest.raises(InputError, match=r"val\.json' must have the 10 categories of training .* got"):
        run.start(tiny, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("split", "name"), [("train", "data"), ("val", "validation_data")])
def test_rejects_a_detection_set_without_objects(tiny, split, name, tmp_path):
    remove_annotations(tmp_path / f"digits/{split}.json")
    with pytest.raises(InputError, match=f"^{name} must have at least one object with iscrowd 0, got none"):
        run.start(tiny, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_rejects_more_training_images_than_exist(tiny, tmp_path):
    with pytest.raises(InputError, match="training_images must be at most 4, got 5"):
        run.start(replace(tiny, training_images=5), tmp_path / "run")


def test_dropped_annotations_are_reported_and_counted(tiny, tmp_path, capsys):
    invalid = {"id": 900, "image_id": 1, "category_id": 999, "bbox": [1, 1, 5, 5], "area": 25, "iscrowd": 0}
    edit_annotations(tmp_path / "digits/train.json", annotations=lambda rows: [*rows, invalid])
    edit_annotations(tmp_path / "digits/val.json", annotations=lambda rows: [*rows, {**invalid, "image_id": 77}])
    result = run.start(replace(tiny, epochs=1), tmp_path / "run")
    assert result["dropped"] == {
        "training": {"annotations dropped: no category has their category_id": 1},
        "validation": {"annotations dropped: no image has their image_id": 1},
    }
    output = capsys.readouterr().err
    assert "training: 1 annotations dropped: no category has their category_id (id 900)" in output
    assert "validation: 1 annotations dropped: no image has their image_id (id 900)" in output


def test_findings_json_lists_dropped_annotations_also_after_resuming(tiny, tmp_path, monkeypatch, capsys):
    invalid = [{"id": 900 + n, "image_id": 77, "category_id": 1, "bbox": [1, 1, 5, 5], "area": 25} for n in range(7)]
    edit_annotations(tmp_path / "digits/train.json", annotations=lambda rows: [*rows, *invalid])
    problem = "annotations dropped: no image has their image_id"
    expected = {"training": {problem: list(range(900, 907))}, "validation": {}}
    folder = interrupted_run(tiny, tmp_path / "run", monkeypatch, 1)
    path = folder / "findings.json"
    assert json.loads(path.read_bytes()) == expected
    assert f"903, 904, ...)\nall dropped annotations: {path}\n" in capsys.readouterr().err
    path.unlink()
    run.resume(folder)
    assert json.loads(path.read_bytes()) == expected


def test_steps_without_objects_are_trained_on(tiny, tmp_path):
    edit_annotations(tmp_path / "digits/train.json", annotations=keep_annotations_of_first_image)
    run.start(replace(tiny, batch_size=1, epochs=1), tmp_path / "run")
    assert_finite(tmp_path / "run")


def test_images_too_small_for_batch_norm_are_skipped(tiny, tmp_path):
    # each position of the coarsest feature map covers 4 x 4 pixels
    run.start(replace(tiny, image_size=6, jitter=(0.3, 2.0), micro_batch=1), tmp_path / "run")
    assert_finite(tmp_path / "run")
    with pytest.raises(InputError, match=r"no training batch had .*: the images are too small"):
        run.start(replace(tiny, image_size=4, jitter=(1.0, 1.0), batch_size=1), tmp_path / "smaller")


def test_bfloat16_trains_to_finite_weights(tiny, tmp_path):
    run.start(replace(tiny, precision="bf16-mixed", epochs=1), tmp_path / "run")
    assert_finite(tmp_path / "run")


class NaN(nn.Module):
    def forward(self, x):
        return x * float("nan")


def test_nan_detection_loss_error_names_the_module(tiny, tmp_path, monkeypatch):
    original = task.build_model

    def build_model(*arguments):
        model = original(*arguments)
        model.backbone.network.layer2[0].act2 = NaN()
        return model

    monkeypatch.setattr(task, "build_model", build_model)
    message = r"loss became nan at step 0; the first module .* is backbone\.network\.layer2\.0\.act2 \("
    with pytest.raises(InputError, match=message):
        run.start(tiny, tmp_path / "run")
