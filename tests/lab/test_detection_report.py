import json

import pytest

from lambdanets.errors import InputError
from lambdanets_lab.detection_report import report

NAMES = ("AP", "AP50", "AP75", "APs", "APm", "APl")


@pytest.fixture
def make_run(tmp_path):
    def make(name, boxes, masks, *, seed=0, model="resnet50", options=None, changes=(), data="nuclei", **fields):
        folder = tmp_path / name
        folder.mkdir()
        content = {
            "recipe": {"model": model, "model_options": options or {}, "epochs": 3, "seed": seed, **dict(changes)},
            "bbox": dict(zip(NAMES, boxes, strict=True)),
            "segm": dict(zip(NAMES, masks, strict=True)),
            "data": data,
            "training_data": {"name": "train.json", "sha256": data[0] * 64},
            "validation_data": {"name": "val.json", "sha256": data[0] * 64},
            "initial_weights": None,
            "images": 98,
            "parameters": 44_123_456,
            **fields,
        }
        (folder / "result.json").write_text(json.dumps(content))
        return folder

    return make


BOXES = (0.482, 0.60, 0.50, 0.299, 0.509, 0.649)
MASKS = (0.426, 0.55, 0.45, 0.242, 0.456, None)


def test_rows_are_in_percent_with_gains_over_the_first_row(make_run):
    baseline = make_run("baseline", BOXES, MASKS)
    other = make_run("other", (0.494, 0.5996, 0.51, 0.317, 0.522, 0.65), MASKS, model="l", options={"scope": 7})
    boxes, masks, caption = (part.splitlines() for part in report([baseline, other]).split("\n\n"))
    assert boxes[0] == "| model | params (M) | seeds | box AP | box AP50 | box AP75 | box APs | box APm | box APl |"
    assert boxes[2] == "| resnet50 | 44.1 | 1 | 48.2 | 60.0 | 50.0 | 29.9 | 50.9 | 64.9 |"
    assert boxes[3].startswith("| l scope=7 | 44.1 | 1 | 49.4 (+1.2) | 60.0 (+0.0) | 51.0 (+1.0) | 31.7 (+1.8) |")
    assert masks[2] == "| resnet50 | 44.1 | 1 | 42.6 | 55.0 | 45.0 | 24.2 | 45.6 | - |"
    assert masks[3].endswith("| 45.6 (+0.0) | - |")
    assert "on nuclei, 98 images. In brackets: difference to the first row, over the seeds of both." in caption[0]


def test_seeds_are_one_row_and_gains_are_of_the_same_seeds(make_run):
    runs = [make_run(f"seed{seed}", (ap, *BOXES[1:]), MASKS, seed=seed) for seed, ap in enumerate((0.4, 0.42, 0.47))]
    runs.append(make_run("other", BOXES, MASKS, model="l"))
    _, _, row_1, row_2, *_, caption = report(runs).splitlines()
    assert row_1.startswith("| resnet50 | 44.1 | 3 | 43.0 ± 3.6 | 60.0 ± 0.0 |")
    assert row_2.startswith("| l | 44.1 | 1 | 48.2 (+8.2) | 60.0 (+0.0) |")
    assert caption.endswith("Mean ± std over seeds.")


def test_rejects_runs_that_cannot_be_compared(make_run, tmp_path):
    valid = make_run("valid", BOXES, MASKS)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"empty must be the folder of a finished run, got one without result\.json"):
        report([valid, tmp_path / "empty"])
    with pytest.raises(InputError, match=r"the same validation data, got others in .*valid and .*elsewhere"):
        report([valid, make_run("elsewhere", BOXES, MASKS, data="others")])
    with pytest.raises(InputError, match=r"got .*again with the recipe and seed of another"):
        report([valid, make_run("again", BOXES, MASKS)])


def test_runs_are_named_by_what_differs_in_their_recipes(make_run):
    runs = [make_run(str(count), BOXES, MASKS, changes={"training_images": count}) for count in (None, 2)]
    rows = report(runs).splitlines()[2:4]
    assert [row.split(" | ")[0].split()[-1] for row in rows] == ["training_images=None", "training_images=2"]
