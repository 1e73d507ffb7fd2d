"""`lambdanets detect`: output, files, exit codes, and no traceback for any user error."""

import csv
import json
import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from lambdanets.cli import main
from lambdanets.files import encode_utf8
from lambdanets.inference import drawing
from lambdanets.training.classification.recipe import ClassificationRecipe
from lambdanets.training.tasks import read_recipe
from training.detection.tiny_detection import TWO_CATEGORIES, edit_annotations, tiny_recipe


def succeeds(*arguments):
    """Run a command that must exit with code 0."""
    assert main(["detect", *map(str, arguments)]) == 0


def run_failing(capsys, *arguments):
    """Run a command that must exit with code 2, and return the last line of stderr."""
    assert main(["detect", *map(str, arguments)]) == 2
    output = capsys.readouterr().err.strip().splitlines()
    assert "Traceback" not in "".join(output)
    assert output[-1].startswith("lambdanets: ")
    return output[-1]


def contents(folder):
    """The bytes of each file of a folder."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def metric_lines(result):
    """The last two lines that a command prints: the metrics of boxes and masks."""
    lines = []
    for iou_type, label in (("bbox", "boxes"), ("segm", "masks")):
        metrics = [f"{name} {'-' if value is None else f'{value:.4f}'}" for name, value in result[iou_type].items()]
        lines.append("  ".join([label, *metrics]))
    return lines


def test_repeated_quicktest_prints_the_same_scores(tmp_path, capsys):
    command = ["train", "digits", "--quicktest", "--run", tmp_path / "run"]
    succeeds(*command)
    output = capsys.readouterr().out.splitlines()
    result = json.loads((tmp_path / "run/result.json").read_text())
    assert output[-2:] == metric_lines(result)
    assert f"predictions:      {tmp_path / 'run/predictions.png'}" in output
    succeeds(*command)
    assert capsys.readouterr().out.splitlines()[-2:] == metric_lines(result)


def test_detect_evaluate_reproduces_the_scores_of_the_run(trained_detector, capsys):
    succeeds("evaluate", trained_detector / "run")
    result = json.loads((trained_detector / "run/result.json").read_text())
    output = capsys.readouterr().out.splitlines()
    assert output[2].startswith("4 images, ")
    assert output[-2:] == metric_lines(result)


def test_evaluate_does_not_need_the_training_data(trained_detector, tmp_path, capsys):
    run = shutil.copytree(trained_detector / "run", tmp_path / "run")
    recipe = json.loads((run / "recipe.json").read_text())
    gone = {"data": str(tmp_path / "gone.json"), "images": str(tmp_path / "gone")}
    (run / "recipe.json").write_text(json.dumps(recipe | gone))
    succeeds("evaluate", run)
    result = json.loads((trained_detector / "run/result.json").read_text())
    assert capsys.readouterr().out.splitlines()[-2:] == metric_lines(result)


def test_evaluate_on_other_data_writes_results_and_figures(trained_detector, tmp_path, capsys):
    out = tmp_path / "out"
    data = ["--data", trained_detector / "digits/train.json", "--images", trained_detector / "digits"]
    succeeds("evaluate", trained_detector / "run", *data, "--out", out)
    assert sorted(path.name for path in out.iterdir()) == [
        "precision_recall.png",
        "predictions.png",
        "results.json",
        "scores.json",
    ]
    results = json.loads((out / "results.json").read_bytes())
    output = capsys.readouterr().out.splitlines()
    assert output[2] == f"4 images, {len(results)} detections"
    assert {result["category_id"] for result in results} <= {4, 7}
    assert output[-2:] == metric_lines(json.loads((trained_detector / "run/result.json").read_text()))


def test_evaluate_reports_dropped_annotations(trained_detector, tmp_path, capsys):
    data = tmp_path / "train.json"
    shutil.copy(trained_detector / "digits/train.json", data)
    stray = {"id": 900, "image_id": 77, "category_id": 4, "bbox": [1, 1, 5, 5], "area": 25, "iscrowd": 0}
    missing = {"id": 50, "file_name": "missing.png", "height": 9, "width": 9}
    edit_annotations(data, annotations=lambda rows: [*rows, stray], images=lambda rows: [*rows, missing])
    succeeds("evaluate", trained_detector / "run", "--data", data, "--images", trained_detector / "digits")
    assert capsys.readouterr().err.splitlines()[-2:] == [
        "data: 1 annotations dropped: no image has their image_id (id 900)",
        "data: 1 images dropped: their files are missing (id 50)",
    ]


def test_evaluate_writes_scores_per_category(trained_detector, tmp_path):
    succeeds("evaluate", trained_detector / "run", "--out", tmp_path / "out")
    scores = json.loads((tmp_path / "out/scores.json").read_text())
    result = json.loads((trained_detector / "run/result.json").read_text())
    assert scores == {name: result[name] for name in ("bbox", "segm", "AP_by_category", "images")}
    for iou_type, by_category in scores["AP_by_category"].items():
        assert list(by_category) == [category["name"] for category in TWO_CATEGORIES]
        assert sum(by_category.values()) / 2 == pytest.approx(scores[iou_type]["AP"])


def test_evaluate_creates_its_folder_before_it_predicts(trained_detector, tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("a file")
    monkeypatch.setattr("lambdanets.inference.detection.DetectionEvaluator", lambda *_: pytest.fail("predicted"))
    assert "Not a directory" in run_failing(
        capsys, "evaluate", trained_detector / "run", "--out", tmp_path / "file/out"
    )


def test_evaluate_keeps_its_scores_if_drawing_fails(trained_detector, tmp_path, monkeypatch, capsys):
    def full(*_):
        raise OSError(28, "No space left on device", "predictions.png")

    monkeypatch.setattr("lambdanets.inference.figures.draw_detections", full)
    command = ["detect", "evaluate", str(trained_detector / "run"), "--out", str(tmp_path / "out")]
    assert main(command) == 2
    output = capsys.readouterr()
    assert output.out.splitlines()[-2:] == metric_lines(json.loads((trained_detector / "run/result.json").read_text()))
    assert "No space left on device" in output.err
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["results.json", "scores.json"]


def test_evaluate_rejects_other_categories_and_nonempty_folders(trained_detector, tmp_path, capsys):
    run, digits = trained_detector / "run", trained_detector / "digits"
    other = ["--data", digits / "val.json", "--images", digits / "val"]
    assert "must have the 2 categories" in run_failing(capsys, "evaluate", run, *other)
    assert "data and images must be given together" in run_failing(capsys, "evaluate", run, *other[:2])
    (tmp_path / "thesis.tex").write_text("years of work")
    assert "is not empty" in run_failing(capsys, "evaluate", run, "--out", tmp_path)
    assert "must be a run folder" in run_failing(capsys, "evaluate", digits)
    assert "nowhere" in run_failing(capsys, "evaluate", tmp_path / "nowhere")


@pytest.fixture
def photos(trained_detector, tmp_path):
    """Images with names in several scripts and an undecodable one, and a text file named .png."""
    source = trained_detector / "digits/train"
    folder = tmp_path / "photos"
    (folder / "below").mkdir(parents=True)
    names = ["日本 猫.png", f"{'ї' * 120}.png", os.fsdecode(b"\xff\xfe.png"), "below/日本 猫.png"]
    for name, path in zip(names, sorted(source.iterdir()), strict=True):
        shutil.copy(path, folder / name)
    (folder / "text.png").write_text("no image")
    return folder


def test_predict_writes_results_image_ids_and_one_drawing_per_image(trained_detector, photos, tmp_path, capsys):
    out = tmp_path / "out"
    succeeds("predict", trained_detector / "run", photos, "--out", out, "--score", "0")
    output = capsys.readouterr()
    index = json.loads((out / "images.json").read_bytes())
    results = json.loads((out / "results.json").read_bytes())
    assert index["categories"] == list(TWO_CATEGORIES)
    assert [image["id"] for image in index["images"]] == [1, 2, 3, 4]
    assert {"日本 猫.png", f"{'ї' * 120}.png"} < {Path(image["file_name"]).name for image in index["images"]}
    assert results
    assert {result["image_id"] for result in results} <= {1, 2, 3, 4}
    drawings = sorted(path.name for path in out.glob("*.png"))
    assert len(drawings) == 4
    assert sum(name.endswith("-日本 猫.png") for name in drawings) == 2
    for image, name in zip(index["images"], drawings, strict=True):
        with Image.open(out / name) as drawing:
            assert drawing.width / image["width"] == drawing.height / image["height"] >= 1
    with (out / "objects.csv").open(encoding="utf-8") as file:
        counted = [row["image"] for row in csv.DictReader(file)]
    *lines, last = output.out.splitlines()
    assert [line.rsplit(" ", 2)[1] for line in lines] == [str(counted.count(line.rsplit("  ", 1)[0])) for line in lines]
    assert last.startswith(
        f"{len(counted)} objects with a score of at least 0, not completely covered by others, in 4 "
    )
    assert last.endswith(f"; {len(results)} detections of any score in results.json; written to {out}")
    assert "skipped 1 unreadable images" in output.err
    assert "text.png" in output.err


def test_predict_draws_above_the_score_and_writes_all_detections(trained_detector, tmp_path):
    image = sorted((trained_detector / "digits/train").iterdir())[1]
    for score in ("0", "1"):
        succeeds("predict", trained_detector / "run", image, "--out", tmp_path / score, "--score", score)
    low, high = (tmp_path / score for score in ("0", "1"))
    assert (low / "results.json").read_bytes() == (high / "results.json").read_bytes()
    with_boxes, without_boxes = (
        np.asarray(Image.open(next(folder.glob("*.png"))).convert("RGB")) for folder in (low, high)
    )
    assert (without_boxes.min(2) == without_boxes.max(2)).all()  # gray, like the image
    assert (with_boxes.min(2) != with_boxes.max(2)).any()


def test_predict_no_figures_draws_nothing(trained_detector, tmp_path):
    image = sorted((trained_detector / "digits/train").iterdir())[0]
    succeeds("predict", trained_detector / "run", image, "--no-figures", "--out", tmp_path / "x")
    expected = ["images.json", "labels", "objects.csv", "results.json"]
    assert sorted(path.name for path in (tmp_path / "x").iterdir()) == expected
    succeeds("predict", trained_detector / "run", image, "--no-figures", "--no-labels", "--out", tmp_path / "y")
    assert sorted(path.name for path in (tmp_path / "y").iterdir()) == ["images.json", "results.json"]


def test_predict_writes_label_images_and_a_table_of_their_objects(trained_detector, photos, tmp_path):
    out = tmp_path / "out"
    succeeds("predict", trained_detector / "run", photos, "--out", out, "--score", "0.3")
    with (out / "objects.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert rows
    figures, labels = sorted(out.glob("*.png")), sorted((out / "labels").iterdir())
    assert [path.name for path in figures] == [path.name for path in labels]
    index = json.loads((out / "images.json").read_bytes())["images"]
    for path, entry in zip(labels, index, strict=True):
        pixels = np.asarray(Image.open(path))
        assert pixels.dtype == np.uint16
        assert pixels.shape == (entry["height"], entry["width"])
        image_rows = [row for row in rows if row["image"] == encode_utf8(entry["file_name"]).decode()]
        assert [int(row["object"]) for row in image_rows] == list(range(1, pixels.max() + 1))
        assert [int(float(row["area"])) for row in image_rows] == np.bincount(pixels.ravel())[1:].tolist()
        assert all(0.3 <= float(row["score"]) <= 1 for row in image_rows)
        assert {row["class"] for row in image_rows} <= {category["name"] for category in TWO_CATEGORIES}


def test_predict_divides_large_images_of_several_channels_into_tiles(trained_detector, tmp_path, capsys):
    tifffile = pytest.importorskip("tifffile", reason="tifffile is not installed")
    pixels = np.asarray(Image.open(sorted((trained_detector / "digits/train").iterdir())[1]).convert("L"))
    mosaic = np.tile(pixels, (2, 3)).astype(np.uint16) * 16
    tifffile.imwrite(tmp_path / "large.tif", np.stack([np.zeros_like(mosaic), mosaic]), metadata={"axes": "CYX"})
    command = ("predict", trained_detector / "run", tmp_path / "large.tif", "--no-figures", "--stretch", "on")
    assert "none of the 1 images could be read" in run_failing(capsys, *command, "--out", tmp_path / "none")
    tiles = ("--channel", "1", "--tile-size", "96", "--batch-size", "2", "--score", "0.3")
    succeeds(*command, *tiles, "--out", tmp_path / "out")
    (path,) = (tmp_path / "out/labels").iterdir()
    labels = np.asarray(Image.open(path))
    assert labels.shape == mosaic.shape
    assert labels.max() > 10
    results = json.loads((tmp_path / "out/results.json").read_bytes())
    assert {tuple(result["segmentation"]["size"]) for result in results} == {mosaic.shape}
    whole = (*command, "--channel", "1", "--tile-size", "0", "--no-labels")
    succeeds(*whole, "--out", tmp_path / "whole")
    assert len(json.loads((tmp_path / "whole/results.json").read_bytes())) != len(results)


def test_predict_keeps_nonempty_folders_and_creates_none_without_images(trained_detector, photos, tmp_path, capsys):
    run = trained_detector / "run"
    (tmp_path / "full").mkdir()
    (tmp_path / "full/results.json").write_text("kept")
    assert "is not empty" in run_failing(capsys, "predict", run, photos, "--out", tmp_path / "full")
    assert (tmp_path / "full/results.json").read_text() == "kept"
    assert "none of the 1 images" in run_failing(capsys, "predict", run, photos / "text.png", "--out", tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda signum: signum.name)
def test_predict_keeps_detections_on_a_signal_and_resumes(
    signum, trained_detector, photos, tmp_path, monkeypatch, capsys
):
    calls, draw = [], drawing.draw_predicted

    def with_signal(*arguments):
        if len(calls) == 2:
            os.kill(os.getpid(), signum)
        calls.append(None)
        return draw(*arguments)

    command = ["detect", "predict", trained_detector / "run", photos, "--score", "0", "--out"]
    assert main([*map(str, command), str(tmp_path / "uninterrupted")]) == 0
    capsys.readouterr()
    with monkeypatch.context() as patch:
        patch.setattr(drawing, "draw_predicted", with_signal)
        assert main([*map(str, command), str(tmp_path / "out")]) == 130
    output = capsys.readouterr()
    index = json.loads((tmp_path / "out/images.json").read_bytes())
    assert [image["id"] for image in index["images"]] == [1, 2]
    assert {result["image_id"] for result in json.loads((tmp_path / "out/results.json").read_bytes())} <= {1, 2}
    assert " in 2 images; " in output.out
    assert "run the same command to resume" in output.err
    assert not list((tmp_path / "out").glob(".*"))
    assert main([*map(str, command), str(tmp_path / "out")]) == 0
    assert "resuming: 2 of " in capsys.readouterr().err
    assert contents(tmp_path / "out") == contents(tmp_path / "uninterrupted")


def test_predict_interrupted_in_its_first_drawing_resumes(trained_detector, photos, tmp_path, monkeypatch, capsys):
    draw = drawing.draw_predicted

    def with_signal(*arguments):
        figure = draw(*arguments)

        def save(file, kind):
            Image.Image.save(figure, file, kind)
            os.kill(os.getpid(), signal.SIGTERM)

        figure.save = save
        return figure

    command = ["detect", "predict", str(trained_detector / "run"), str(photos), "--out", str(tmp_path / "out")]
    with monkeypatch.context() as patch:
        patch.setattr(drawing, "draw_predicted", with_signal)
        assert main(command) == 130
    assert len(list((tmp_path / "out").glob("*.png"))) == 1
    assert main(command) == 0
    assert "resuming: 1 of " in capsys.readouterr().err


def test_out_of_memory_is_reported_in_one_line(trained_detector, photos, monkeypatch, capsys):
    monkeypatch.setattr("lambdanets.inference.loading.load_one_of", lambda *_: torch.empty(1 << 50))
    for command in (["evaluate", trained_detector / "run"], ["predict", trained_detector / "run", photos]):
        error = run_failing(capsys, *command)
        assert error == "lambdanets: out of memory; free memory, or choose a smaller model or smaller images"


def test_report_compares_finished_runs(trained_detector, capsys):
    succeeds("report", trained_detector / "run", "--format", "markdown")
    assert "| lambda_resnet20_small" in capsys.readouterr().out
    assert "RUNS must be at least one folder" in run_failing(capsys, "report")
    assert "result.json" in run_failing(capsys, "report", trained_detector / "digits")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("trian", "got 'trian'; the nearest is train"),
        ("train digit", "got 'digit'; the nearest is digits"),
        ("train coco", "data must be given"),
        ("train --proposal 7", "no option --proposal; the nearest is --proposals"),
        ("train --max-detections 0", "--max-detections must be greater than 0, got '0'"),
        ("predict nuclei", "IMAGES must be at least one file"),
        ("predict nuclei nowhere.png", "nowhere.png"),
        ("predict nuclei a.png --score 2", "--score must be less than or equal to 1"),
        ("predict nuclei a.png --tile-size 3", "--tile-size must be greater than or equal to 16, got '3'"),
    ],
)
def test_detect_reports_user_errors_in_one_line(arguments, message, capsys):
    assert message in run_failing(capsys, *arguments.split())


def test_rejects_a_network_whose_padding_cannot_be_hidden(tmp_path, capsys):
    command = ["train", "--model", "vit_tiny_patch16_224", "--levels", "1", "2", "--run", tmp_path / "run"]
    assert "padding cannot be hidden in network.model.blocks" in run_failing(capsys, *command)
    assert not (tmp_path / "run").exists()


def test_resume_prints_the_result_of_a_run_trained_by_options(tmp_path, capsys):
    recipe = tiny_recipe(tmp_path / "digits")
    options = ["--data", recipe.data, "--images", recipe.images, "--validation-data", recipe.validation_data]
    options += ["--validation-images", recipe.validation_images, "--image-size", "32", "--levels", "2", "3"]
    options += ["--epochs", "1", "--jitter", "1.0", "1.5", "--pyramid-channels", "8", "--batch-size", "2"]
    succeeds("train", *options, "--run", tmp_path / "run")
    written = read_recipe(tmp_path / "run/recipe.json")
    assert (written.levels, written.jitter, written.data) == ((2, 3), (1.0, 1.5), recipe.data)
    first = capsys.readouterr().out
    succeeds("train", "--resume", tmp_path / "run")
    assert capsys.readouterr().out.splitlines()[-2:] == first.splitlines()[-2:]
    assert "uses the run's own recipe" in run_failing(capsys, "train", "--resume", tmp_path / "run", "--epochs", "9")


def test_resume_of_the_other_task_names_the_right_command(trained_detector, tmp_path, capsys):
    run = trained_detector / "run"
    assert main(["train", "--resume", str(run)]) == 2
    error = capsys.readouterr().err
    assert f"lambdanets detect train --resume {run}" in error
    (tmp_path / "recipe.json").write_text(ClassificationRecipe(model="resnet18").to_json())
    error = run_failing(capsys, "train", "--resume", tmp_path)
    assert error.endswith(f"lambdanets train --resume {tmp_path}")


def test_train_does_not_overwrite_a_run_of_another_task(trained_detector, two_classes, capsys):
    command = ["train", "--data", str(two_classes), "--channels", "3", "--run", str(trained_detector / "run")]
    assert main(command) == 2
    assert "must be empty or contain a classification run, got" in capsys.readouterr().err
