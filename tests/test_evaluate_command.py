"""`lambdanets evaluate` for models of every task: the scores of the run, on its data or on other data."""

import csv
import json
import shutil

import pytest
from PIL import Image

import lambdanets as ln
from commands import succeed
from lambdanets.files import is_output
from training.detection.tiny_detection import TWO_CATEGORIES, edit_annotations
from training.teachers import write_teacher

FILES = {
    "classification": [
        *("confusion_matrix.csv", "confusion_matrix.png", "predictions.csv", "predictions.png"),
        "scores.json",
    ],
    "detection": ["predictions.png", "results.json", "scores.json"],
    "segmentation": ["predictions.png", "scores.json"],
}


@pytest.mark.parametrize("task", FILES)
def test_evaluate_reproduces_the_scores_of_the_run_and_writes_them(task, runs, tmp_path, capsys):
    succeed("evaluate", runs[task], "--out", tmp_path / "out", "--device", "cpu")
    result = json.loads((runs[task] / "result.json").read_text())
    *lines, last = capsys.readouterr().out.splitlines()
    assert lines[-len(result["summary"]) :] == result["summary"]
    assert lines[-len(result["summary"]) - 1].startswith(f"{result.get('images', 4)} images")
    assert any(line.startswith("classes: 2 (") for line in lines)
    assert last == f"scores and figures: {tmp_path / 'out'}"
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == FILES[task]
    assert is_output({*FILES[task]})
    scores = json.loads((tmp_path / "out/scores.json").read_text())
    assert scores == {name: result[name] for name in scores}
    assert {"classification": "top1", "detection": "AP_by_category", "segmentation": "classes"}[task] in scores


def test_evaluation_of_annotated_images_does_not_need_the_training_data(runs, tmp_path, capsys):
    run = shutil.copytree(runs["detection"], tmp_path / "run")
    recipe = json.loads((run / "recipe.json").read_text())
    gone = {"data": str(tmp_path / "gone.json"), "images": str(tmp_path / "gone")}
    (run / "recipe.json").write_text(json.dumps(recipe | gone))
    succeed("evaluate", run)
    summary = json.loads((run / "result.json").read_text())["summary"]
    assert capsys.readouterr().out.splitlines()[-2:] == summary


def test_evaluation_on_other_data_reports_dropped_annotations(runs, trained_detector, tmp_path, capsys):
    data, digits = tmp_path / "train.json", trained_detector / "digits"
    shutil.copy(digits / "train.json", data)
    stray = {"id": 900, "segmentation": []}
    missing = {"id": 50, "file_name": "missing.png", "height": 9, "width": 9}
    edit_annotations(data, annotations=lambda rows: [*rows, rows[0] | stray], images=lambda rows: [*rows, missing])
    succeed("evaluate", runs["detection"], "--data", data, "--images", digits, "--out", tmp_path / "out")
    output = capsys.readouterr()
    assert output.err.splitlines()[-2:] == [
        "data: annotations dropped: no segmentation, or one without pixels (1 id: 900)",
        "data: images dropped: their files are missing (1 id: 50)",
    ]
    results = json.loads((tmp_path / "out/results.json").read_bytes())
    assert f"4 images, {len(results)} detections" in output.out.splitlines()
    assert {result["category_id"] for result in results} <= {category["id"] for category in TWO_CATEGORIES}


@pytest.mark.figures
def test_confusion_matrix_counts_every_image(two_classes, tmp_path, capsys):
    names = ("dark", "light", "=a$x^$b 猫")  # the third class has no images
    teacher, out = write_teacher(tmp_path / "teacher", names), tmp_path / "out"
    succeed("evaluate", teacher, "--data", two_classes, "--out", out, "--device", "cpu", "--batch-size", 3)
    evaluation = ln.evaluate(teacher, two_classes)
    matrix = evaluation.confusion_matrix.tolist()
    output = capsys.readouterr().out.splitlines()
    assert output[1:3] == ["classes: 3 (dark, light, =a$x^$b 猫)", "left out: no files"]
    by_class = [line.split() for line in output[5:8]]
    assert by_class[:2] == [[names[i], "10", f"{matrix[i][i] / 10:.4f}"] for i in range(2)]
    assert by_class[2][-2:] == ["0", "-"]
    assert output[8] == f"top-1 {evaluation.top1:.4f}"
    with (out / "predictions.csv").open(encoding="utf-8") as file:
        predictions = list(csv.DictReader(file))
    assert sum(row["class"] == row["predicted"] for row in predictions) == round(20 * evaluation.top1)
    assert all(f"/{row['class']}/" in row["image"] for row in predictions)
    rows = [line.split(",") for line in (out / "confusion_matrix.csv").read_text().splitlines()]
    counts = [[name, *map(str, row)] for name, row in zip(names, matrix, strict=True)]
    assert rows == [["true \\ predicted", *names], *counts]
    assert evaluation.accuracy_by_class == {"dark": matrix[0][0] / 10, "light": matrix[1][1] / 10, names[2]: None}
    assert min(Image.open(out / "confusion_matrix.png").size) > 200
