"""`lambdanets segment`: output, files, exit codes, and no traceback for any user error."""

import csv
import json
import os
import shutil
import signal

import numpy as np
import pytest
import torch
from PIL import Image

import lambdanets as ln
from lambdanets.cli import main
from lambdanets.inference import drawing
from training.segmentation.tiny_segmentation import CLASSES


def succeeds(*arguments):
    """Run a command that must exit with code 0."""
    assert main(["segment", *map(str, arguments)]) == 0


def run_failing(capsys, *arguments):
    """Run a command that must exit with code 2, and return the last line of stderr."""
    assert main(["segment", *map(str, arguments)]) == 2
    output = capsys.readouterr().err.strip().splitlines()
    assert "Traceback" not in "".join(output)
    assert output[-1].startswith("lambdanets: ")
    return output[-1]


def contents(folder):
    """The bytes of each file of a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def read_result(trained_segmenter):
    return json.loads((trained_segmenter / "run/result.json").read_text())


@pytest.fixture
def photos(trained_segmenter, tmp_path):
    """Three images of different sizes and a text file named .png."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for name, path in zip("ab", sorted((trained_segmenter / "digits/train").iterdir()), strict=False):
        shutil.copy(path, folder / f"{name}.png")
    Image.new("RGB", (31, 17), "white").save(folder / "日本.jpg")
    (folder / "text.png").write_text("no image")
    return folder


def test_segment_train_prints_the_result_and_resumes(tmp_path, capsys):
    succeeds("train", "digits", "--quicktest", "--run", tmp_path / "run")
    first = capsys.readouterr().out.splitlines()
    result = json.loads((tmp_path / "run/result.json").read_text())
    assert f"predictions: {tmp_path / 'run/predictions.png'}" in first
    assert first[-1].split()[-3:] == [f"{result[name]:.4f}" for name in ("dice", "iou", "boundary_f1")]
    succeeds("train", "--resume", tmp_path / "run")
    assert capsys.readouterr().out.splitlines()[-13:] == first[-13:]
    assert "uses the run's own recipe" in run_failing(capsys, "train", "--resume", tmp_path / "run", "--epochs", "9")
    assert main(["detect", "train", "--resume", str(tmp_path / "run")]) == 2
    assert "lambdanets segment train --resume" in capsys.readouterr().err


def test_segment_evaluate_reproduces_the_scores_and_writes_files(trained_segmenter, tmp_path, capsys):
    out, digits = tmp_path / "out", trained_segmenter / "digits"
    succeeds("evaluate", trained_segmenter / "run")
    expected = capsys.readouterr().out.splitlines()
    data = ["--data", digits / "val.json", "--images", digits / "val", "--batch-size", "2"]
    succeeds("evaluate", trained_segmenter / "run", *data, "--out", out)
    assert capsys.readouterr().out.splitlines() == expected
    result = read_result(trained_segmenter)
    assert expected[0].startswith("classes: 2 (")
    assert "2 images" in expected
    start = expected.index("2 images") + 2
    assert [line.split()[0] for line in expected[start : start + 2]] == list(CLASSES[:2])
    assert expected[-1].split()[-3:] == [f"{result[name]:.4f}" for name in ("dice", "iou", "boundary_f1")]
    assert sorted(path.name for path in out.iterdir()) == ["predictions.png", "scores.json"]
    scores = json.loads((out / "scores.json").read_text())
    assert scores == {name: result[name] for name in ("dice", "iou", "boundary_f1", "classes", "images")}


def test_segment_predict_writes_semantic_masks_figures_and_a_table(trained_segmenter, photos, tmp_path, capsys):
    out = tmp_path / "out"
    succeeds("predict", trained_segmenter / "run", photos, "--out", out, "--batch-size", "2", "--device", "cpu")
    output = capsys.readouterr()
    assert output.out.splitlines()[-1] == f"3 images, written to {out}"
    assert "skipped 1 unreadable images" in output.err
    names = ["00001-a.png", "00002-b.png", "00003-日本.png"]
    assert sorted(path.name for path in out.iterdir()) == [*names, "classes", "classes.csv"]
    with (out / "classes.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["label"], row["class"]) for row in rows] == [*zip("012", CLASSES, strict=True)] * 3
    for index, (name, path) in enumerate(zip(names, sorted(photos.glob("[!t]*")), strict=True)):
        labels = np.asarray(Image.open(out / "classes" / name))
        with Image.open(path) as image, Image.open(out / name) as figure:
            assert labels.shape == image.size[::-1] == figure.size[::-1]
        assert labels.dtype == np.uint8
        image_rows = rows[3 * index : 3 * index + 3]
        assert {row["image"] for row in image_rows} == {str(path)}
        assert [int(row["pixels"]) for row in image_rows] == np.bincount(labels.ravel(), minlength=3).tolist()
        assert [float(row["fraction"]) for row in image_rows] == pytest.approx(
            [(labels == label).mean() for label in range(3)], abs=1e-6
        )
    succeeds("predict", trained_segmenter / "run", photos / "a.png", "--out", tmp_path / "maps", "--no-figures")
    assert sorted(path.name for path in (tmp_path / "maps").iterdir()) == ["classes", "classes.csv"]


def test_segment_predict_divides_large_images_into_tiles(trained_segmenter, tmp_path):
    path = tmp_path / "large.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (50, 130, 3), np.uint8)).save(path)
    segmenter = ln.load(trained_segmenter / "run", device="cpu")
    (whole,), (tiled,), (untiled,) = (segmenter.predict(path, tile_size=size) for size in (None, 48, 65))
    assert not whole.probabilities.equal(tiled.probabilities)
    assert whole.probabilities.equal(untiled.probabilities)
    torch.testing.assert_close(tiled.probabilities.sum(0), torch.ones(50, 130))
    succeeds("predict", trained_segmenter / "run", path, "--out", tmp_path / "out", "--tile-size", "48")
    np.testing.assert_array_equal(Image.open(tmp_path / "out/classes/00001-large.png"), tiled.labels)
    with pytest.raises(ValueError, match="tile_size must be greater than or equal to 16, got 8"):
        segmenter.predict(path, tile_size=8)


def test_interrupted_segment_predict_resumes_to_the_same_files(
    trained_segmenter, photos, tmp_path, monkeypatch, capsys
):
    calls, draw = [], drawing.overlay_classes

    def with_signal(*arguments):
        if len(calls) == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        calls.append(None)
        return draw(*arguments)

    command = ["segment", "predict", str(trained_segmenter / "run"), str(photos), "--out"]
    assert main([*command, str(tmp_path / "uninterrupted")]) == 0
    with monkeypatch.context() as patch:
        patch.setattr(drawing, "overlay_classes", with_signal)
        assert main([*command, str(tmp_path / "out")]) == 130
    assert (tmp_path / "out/classes.csv").read_text().count("\n") == 1 + 3
    assert "run the same command to resume" in capsys.readouterr().err
    assert main([*command, str(tmp_path / "out")]) == 0
    assert "resuming: 1 of " in capsys.readouterr().err
    assert contents(tmp_path / "out") == contents(tmp_path / "uninterrupted")


ERRORS = [
    (["trian"], "action must be one of train, evaluate, predict, got 'trian'; the nearest is train"),
    (["train", "nucleus"], "recipe must be one of digits, nuclei, regions, got 'nucleus'; the nearest is nuclei"),
    (["train", "nuclei"], "data must be given; set it with --data PATH"),
    (["train", "--jiter", "1"], "has no option --jiter; the nearest is --jitter"),
    (["train", "--image-size", "8"], "--image-size must be greater than or equal to 32, got '8'"),
    (["train", "--model", "unet"], "there is no model named 'unet'"),
    (["train", "--model", "resnet18"], "choose a U-Net such as lambda_unet_small"),
    (["train", "--data", "a.json"], "images must be set with data 'a.json', got none"),
    (["evaluate", "nowhere"], "nowhere must be a run folder"),
    (["evaluate", "RUN", "--data", "a.json"], "data and images must be given together"),
    (["evaluate", "RUN", "--data", "a.json", "--images", "a"], "cannot read the COCO instances 'a.json'"),
    (["evaluate", "RUN", "--batch-size", "0"], "--batch-size must be greater than 0"),
    (["evaluate", "RUN", "--out", "PHOTOS"], "is not empty"),
    (["evaluate", "nuclei"], "must be a segmentation model, got a detection model"),
    (["predict", "RUN"], "IMAGES must be at least one file, folder or glob, got none"),
    (["predict", "RUN", "nowhere.png"], "nowhere.png"),
    (["predict", "RUN", "PHOTOS/text.png", "--out", "NEW"], "none of the 1 images could be read"),
    (["predict", "RUN", "PHOTOS", "--out", "PHOTOS"], "is not empty"),
    (["predict", "RUN", "PHOTOS", "--device", "tpu"], "device must be"),
    (["predict", "RUN", "PHOTOS", "--tile-size", "8"], "--tile-size must be greater than or equal to 16"),
]


@pytest.mark.parametrize(("arguments", "message"), ERRORS, ids=[" ".join(arguments) for arguments, _ in ERRORS])
def test_segment_reports_user_errors_in_one_line(
    arguments, message, trained_segmenter, photos, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    before = contents(tmp_path)
    paths = {"RUN": trained_segmenter / "run", "PHOTOS": photos, "NEW": tmp_path / "new"}
    for name, path in paths.items():
        arguments = [argument.replace(name, str(path)) for argument in arguments]
    assert message in run_failing(capsys, *arguments)
    assert contents(tmp_path) == before
