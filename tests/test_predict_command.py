"""`lambdanets predict` for models of every task: outputs, interruptions, and files that cannot be used."""

import csv
import json
import os
import re
import shutil
import signal

import numpy as np
import pytest
import torch
from PIL import Image

import lambdanets as ln
from commands import contents, fail, succeed
from lambdanets.cli import main
from lambdanets.data.image_search import find_images
from lambdanets.files import encode_utf8, is_output
from lambdanets.inference import loading
from lambdanets.work import locked
from lambdanets_lab.demo.examples import draw_nuclei
from training.detection.tiny_detection import TWO_CATEGORIES
from training.segmentation.tiny_segmentation import CLASSES

OUT = {"classification": "out.jsonl", "detection": "out", "segmentation": "out"}


@pytest.fixture
def photos(trained_detector, tmp_path):
    """Images with names in several scripts and an undecodable one, of several sizes, and a text file named .png."""
    folder = tmp_path / "photos"
    (folder / "below").mkdir(parents=True)
    names = ["日本 猫.png", f"{'ї' * 120}.png", os.fsdecode(b"\xff\xfe.png"), "below/日本 猫.png"]
    for name, path in zip(names, sorted((trained_detector / "digits/train").iterdir()), strict=True):
        shutil.copy(path, folder / name)
    Image.new("RGB", (31, 17), "white").save(folder / "white.png")
    (folder / "text.png").write_text("no image")
    (folder / "notes.txt").touch()
    return folder


def read_csv(path):
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def named(path):
    """A path as in tables, whose text is UTF-8."""
    return encode_utf8(str(path)).decode()


def check_classification(out, paths, lines):
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["path"] for row in rows] == list(map(str, paths))
    for row, line in zip(rows, lines, strict=False):
        assert {entry["class"] for entry in row["top"]} == {"dark", "light"}
        assert sum(entry["probability"] for entry in row["top"]) == pytest.approx(1, abs=1e-5)
        assert f"{row['top'][0]['class']} {row['top'][0]['probability']:.3f}" in line
    assert lines[-1] == f"{len(paths)} images, written to {out}"


def check_detection(out, paths, lines):
    index, results = (json.loads((out / name).read_bytes()) for name in ("images.json", "results.json"))
    assert index["categories"] == list(TWO_CATEGORIES)
    assert [image["id"] for image in index["images"]] == list(range(1, len(paths) + 1))
    assert [named(image["file_name"]) for image in index["images"]] == list(map(named, paths))
    assert {result["image_id"] for result in results} <= {image["id"] for image in index["images"]}
    rows, labels = read_csv(out / "objects.csv"), sorted((out / "labels").iterdir())
    assert [path.name for path in labels] == sorted(path.name for path in out.glob("*.png"))
    for image, path, line in zip(index["images"], labels, lines, strict=False):
        pixels, size = np.asarray(Image.open(path)), (image["height"], image["width"])
        assert (pixels.dtype, pixels.shape) == (np.uint16, size)
        own = [row for row in rows if row["image"] == named(image["file_name"])]
        assert [int(row["object"]) for row in own] == list(range(1, pixels.max() + 1))
        assert [int(float(row["area"])) for row in own] == np.bincount(pixels.ravel())[1:].tolist()
        assert all(0.3 <= float(row["score"]) <= 1 for row in own)
        assert line.endswith(f"  {len(own)} objects")
        with Image.open(out / path.name) as figure:
            assert figure.width / size[1] == figure.height / size[0] >= 1
    assert lines[-1].startswith(f"{len(rows)} objects with a score of at least 0.3, not completely covered by others, ")
    assert lines[-1].endswith(f"; {len(results)} detections of any score in results.json, written to {out}")


def check_segmentation(out, paths, lines):
    rows = read_csv(out / "classes.csv")
    expected = [(named(path), str(label), name) for path in paths for label, name in enumerate(CLASSES)]
    assert [(row["image"], row["label"], row["class"]) for row in rows] == expected
    masks = sorted((out / "classes").iterdir())
    assert [path.name for path in masks] == sorted(path.name for path in out.glob("*.png"))
    for number, (path, mask) in enumerate(zip(paths, masks, strict=True)):
        labels = np.asarray(Image.open(mask))
        with Image.open(path) as image, Image.open(out / mask.name) as figure:
            assert labels.shape == image.size[::-1] == figure.size[::-1]
        own = rows[3 * number : 3 * number + 3]
        assert [int(row["pixels"]) for row in own] == np.bincount(labels.ravel(), minlength=3).tolist()
        assert sum(float(row["fraction"]) for row in own) == pytest.approx(1, abs=3e-6)
    assert lines[-1] == f"{len(paths)} images, written to {out}"


CHECKS = {"classification": check_classification, "detection": check_detection, "segmentation": check_segmentation}
SCORE = {"classification": [], "detection": ["--score", "0.3"], "segmentation": []}


@pytest.mark.parametrize("task", OUT)
def test_predict_writes_and_prints_a_result_for_each_readable_image(task, runs, photos, tmp_path, capsys):
    out = tmp_path / OUT[task]
    succeed("predict", runs[task], photos, "--out", out, "--device", "cpu", *SCORE[task])
    output = capsys.readouterr()
    readable = [path for path in find_images([str(photos)])[0] if path.name != "text.png"]
    assert len(output.out.splitlines()) == len(readable) + 1
    CHECKS[task](out, readable, output.out.splitlines())
    assert task == "classification" or is_output({path.name for path in out.iterdir()})
    assert "left out: 1 .txt\n" in output.err
    assert "skipped 1 unreadable image:\n" in output.err
    assert "text.png" in output.err


def test_figures_have_the_objects_above_the_score_and_results_all(runs, photos, tmp_path):
    image = photos / f"{'ї' * 120}.png"
    for score in ("0", "1"):
        succeed("predict", runs["detection"], image, "--out", tmp_path / score, "--score", score)
    low, high = (tmp_path / score for score in ("0", "1"))
    assert (low / "results.json").read_bytes() == (high / "results.json").read_bytes()
    drawn, empty = (np.asarray(Image.open(next(folder.glob("*.png"))).convert("RGB")) for folder in (low, high))
    assert (empty.min(2) == empty.max(2)).all()  # gray, like the image
    assert (drawn.min(2) != drawn.max(2)).any()


def test_detector_divides_large_images_of_several_channels_into_tiles(runs, photos, tmp_path, capsys):
    tifffile = pytest.importorskip("tifffile", reason="tifffile is not installed")
    pixels = np.asarray(Image.open(photos / f"{'ї' * 120}.png").convert("L"))
    mosaic = np.tile(pixels, (2, 3)).astype(np.uint16) * 16
    tifffile.imwrite(tmp_path / "large.tif", np.stack([np.zeros_like(mosaic), mosaic]), metadata={"axes": "CYX"})
    command = ("predict", runs["detection"], tmp_path / "large.tif", "--no-figures", "--stretch", "on")
    assert "0 of 1 image could be read" in fail(capsys, *command, "--out", tmp_path / "none")
    tiles = ("--channel", "1", "--tile-size", "96", "--batch-size", "2", "--score", "0.3")
    succeed(*command, *tiles, "--out", tmp_path / "out")
    assert is_output({path.name for path in (tmp_path / "out").iterdir()})
    (path,) = (tmp_path / "out/labels").iterdir()
    labels = np.asarray(Image.open(path))
    assert labels.shape == mosaic.shape
    assert labels.max() > 10
    results = json.loads((tmp_path / "out/results.json").read_bytes())
    assert {tuple(result["segmentation"]["size"]) for result in results} == {mosaic.shape}
    succeed(*command, "--channel", "1", "--tile-size", "0", "--out", tmp_path / "whole")
    assert len(json.loads((tmp_path / "whole/results.json").read_bytes())) != len(results)


def test_python_and_the_command_use_the_tiles_and_stretching_of_a_model(tmp_path):
    path = tmp_path / "large.png"
    draw_nuclei(99, seed=0, side=600)[0].crop((0, 0, 600, 48)).point(lambda value: value // 4).save(path)
    nuclei, scores = ln.load("nuclei", device="cpu"), []
    for words, options in (("", {}), ("--tile-size 0", {"tile_size": 0}), ("--stretch off", {"stretch": False})):
        (found,) = nuclei.predict(path, **options)
        out = tmp_path / f"out{words}"
        succeed("predict", "nuclei", path, "--out", out, "--device", "cpu", *words.split())
        results = json.loads((out / "results.json").read_bytes())
        assert [result["score"] for result in results] == found.scores.tolist() not in scores
        scores.append(found.scores.tolist())
    box = {"id": 1, "image_id": 1, "category_id": nuclei.card.category_ids[0], "bbox": [9, 9, 9, 9], "area": 81}
    truth = {
        "images": [{"id": 1, "file_name": "large.png", "height": 48, "width": 600}],
        "categories": [{"id": category.id, "name": category.name} for category in nuclei.categories],
        "annotations": [box | {"segmentation": [[9, 9, 18, 9, 18, 18, 9, 18]]}],
    }
    (tmp_path / "truth.json").write_text(json.dumps(truth))
    evaluation = ln.evaluate("nuclei", tmp_path / "truth.json", images=tmp_path, device="cpu")
    assert [result["score"] for result in evaluation.measures[0][1]] == scores[0]  # in tiles, too


def test_segmenter_divides_large_images_into_tiles(runs, tmp_path):
    path = tmp_path / "large.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (50, 130, 3), np.uint8)).save(path)
    segmenter = ln.load(runs["segmentation"], device="cpu")
    (whole,), (tiled,), (untiled,) = (segmenter.predict(path, tile_size=size) for size in (None, 48, 65))
    assert not whole.probabilities.equal(tiled.probabilities)
    assert whole.probabilities.equal(untiled.probabilities)
    torch.testing.assert_close(tiled.probabilities.sum(0), torch.ones(50, 130))
    succeed("predict", runs["segmentation"], path, "--out", tmp_path / "out", "--tile-size", "48")
    np.testing.assert_array_equal(Image.open(tmp_path / "out/classes/00001-large.png"), tiled.labels)


@pytest.mark.parametrize(
    ("task", "signum", "options"),
    [
        ("classification", signal.SIGINT, ["--top", "1"]),
        ("detection", signal.SIGTERM, ["--score", "0"]),
        ("segmentation", signal.SIGHUP, ["--tile-size", "16"]),
    ],
)
def test_predict_interrupted_by_a_signal_resumes_to_the_same_files(
    task, signum, options, runs, photos, tmp_path, monkeypatch, capsys
):
    kind = type(ln.load(runs[task]))
    write, calls = kind.write, []

    def write_with_signal(*arguments):
        calls.append(None)
        if len(calls) == 2:
            os.kill(os.getpid(), signum)
        return write(*arguments)

    for name in ("reference", "interrupted"):
        (tmp_path / name).mkdir()
    out = tmp_path / "interrupted" / OUT[task]
    command = ["predict", runs[task], photos, "--out"]
    succeed(*command, tmp_path / "reference" / OUT[task])
    with monkeypatch.context() as patch:
        patch.setattr(kind, "write", write_with_signal)
        assert main([*map(str, command), str(out)]) == 130
    output = capsys.readouterr().err
    assert "stopped; finished images are saved in " in output
    assert "; run the same command to resume\n" in output
    assert not [path for path in tmp_path.rglob(".*") if "lock" in path.name or "unfinished" in path.name]
    (journal,) = tmp_path.rglob("*.partial")
    journal.write_bytes(journal.read_bytes()[:-5])  # as after a kill while it is written
    error = fail(capsys, *command, out, *options)
    assert re.search("(top|score|tile_size) must be .*, as in .*; remove it", error)
    images = photos / "white.png"
    assert "of the command to resume must be among its images" in fail(capsys, *command[:2], images, "--out", out)
    # the options that were used, also if they are given now, since the first command left them to the model
    succeed(*command, out, "--stretch", "off", *([] if task == "classification" else ["--tile-size", "0"]))
    assert "resuming: 1 of 6 images done" in capsys.readouterr().err
    assert contents(tmp_path / "interrupted") == contents(tmp_path / "reference")


def test_predict_refuses_an_output_that_exists_or_is_in_use(runs, photos, tmp_path, monkeypatch, capsys):
    image, out = photos / "white.png", tmp_path / "out.jsonl"
    command = ("predict", runs["classification"], image, "--out", out)
    with locked(tmp_path / ".out.jsonl.lock", out):
        assert "out.jsonl is in use by another process" in fail(capsys, *command)
    load = loading.load

    def slow(*arguments, **options):
        out.write_text("from another process")
        return load(*arguments, **options)

    monkeypatch.setattr(loading, "load", slow)
    for _ in range(2):
        assert "exists; choose another file" in fail(capsys, *command)
        assert out.read_text() == "from another process"


def test_out_of_memory_is_reported_in_one_line(runs, photos, monkeypatch, capsys):
    monkeypatch.setattr(loading, "load", lambda *_, **__: torch.empty(1 << 50))
    for command in (["evaluate", runs["detection"]], ["predict", runs["detection"], photos]):
        assert fail(capsys, *command).startswith("lambdanets: out of memory; free memory, or choose a smaller batch")
