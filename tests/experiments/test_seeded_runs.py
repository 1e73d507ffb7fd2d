"""Scripts that train networks over seeds: which runs they start, and the tables of their results."""

import itertools
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import lambdanets
from scripts import call_main, load_script


@pytest.fixture
def commands(monkeypatch):
    """The options of the trainings, which write only a result."""
    started = []
    load_script("experiments/pages.py")  # adds the folder to the path

    def train(command, check):
        options = dict(itertools.pairwise(command))
        run, seed = Path(options["--run"]), int(options["--seed"])
        rate, size = float(options.get("--learning-rate", 0)), int(options.get("--image-size", 0))
        value = 0.8 + 0.02 * seed + (0 if "convolution" in run.name else 0.01 * seed) + size / 1000
        value += 0.001 * (-1) ** seed if "only" in run.name or "Performer" in run.name else 0
        scores = dict.fromkeys(("top1", "dice", "iou", "boundary_f1"), value) | {"held_out_top1": rate}
        average_precision = dict.fromkeys(("AP", "AP50", "AP75", "APs", "APm"), value) | {"APl": None}
        result = dict.fromkeys(("parameters", "epochs", "images", "training_images", "validation_images"), 7)
        result |= {"bbox": average_precision, "segm": average_precision, "images_per_second": 3.0, **scores}
        result |= {"seconds": 60 * (seed + 1), "commit": "abc", "versions": {}}
        result |= {"hardware": {"processor": "CPU", "threads": 1}}
        run.mkdir(parents=True)
        (run / "result.json").write_text(json.dumps(result), encoding="utf-8")
        (run / "metrics.csv").write_text(f"split,top1\nval,0.5\nval,{value}\n", encoding="utf-8")
        started.append(options | {"recipe": command[5]})
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr("seeded_runs.subprocess", SimpleNamespace(run=train))
    return started


def write_empty_page(path, name):
    script, _, part = name.partition(" ")
    word = part and f" {part}"
    path.write_text(f"<!-- written by experiments/{script}.py{word} -->\n<!-- end of {name} -->\n", encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "data", "options", "num_runs"),
    [
        ("nuclei", "nuclei", (), 4),
        ("segmentation", "nuclei", (), 4),
        ("segmentation digits", "digits", (), 4),
        ("unet_ablation", "digits", (), 30),
        ("photographs", "photographs", ("--sizes", 64, 96), 8),
    ],
)
def test_networks_are_trained_with_each_seed_once(name, data, options, num_runs, commands, tmp_path, monkeypatch):
    script = load_script(f"experiments/{name.split()[0]}.py")
    page, out = tmp_path / "page.md", tmp_path / "results/runs.json"
    write_empty_page(page, name)
    scores = {"test": dict.fromkeys(("dice", "iou", "boundary_f1"), 0.81), "test_images": 84}

    def score(folder, data):
        result = json.loads((folder / "result.json").read_text())
        return scores | {"test": {key: result[key] for key in scores["test"]}}

    monkeypatch.setattr(script, "score", score, raising=False)
    arguments = ["--work", tmp_path / "runs", "--jobs", 2, "--out", out, "--page", page, *options]
    for seeds in ([0], [1], [0, 1]):
        call_main(script, monkeypatch, data, *arguments, "--seeds", *seeds)
    assert len(commands) == num_runs
    runs = json.loads(out.read_text(encoding="utf-8"))["runs"]
    assert len(runs) == num_runs
    assert all({"commit", "versions", "hardware", "seed"} <= run.keys() for run in runs)
    assert str(tmp_path) not in out.read_text(encoding="utf-8")
    assert "\n| " in page.read_text(encoding="utf-8")


def test_holm_corrects_the_smallest_p_value_most():
    holm = load_script("experiments/questions.py").holm
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_failed_run_does_not_stop_the_others(tmp_path, monkeypatch):
    seeded_runs = load_script("experiments/seeded_runs.py")

    def train(command, check):
        (tmp_path / command[-1] / "result.json").write_text('{"top1": 0.5}', encoding="utf-8")
        return SimpleNamespace(returncode=int(command[-1] == "failing"))

    names = ("failing", "finished")
    for name in names:
        (tmp_path / name).mkdir()
    monkeypatch.setattr(seeded_runs, "subprocess", SimpleNamespace(run=train))
    runs = seeded_runs.train({tmp_path / name: [name] for name in names}, jobs=1)
    assert next(runs) == (tmp_path / "finished", {"top1": 0.5})
    with pytest.raises(SystemExit, match=r"failing \(exit code 1\)"):
        next(runs)


def test_mixers_with_the_same_seed_have_equal_initial_weights():
    networks = []
    for mixer in ("convolution", "lambda"):
        torch.manual_seed(3)
        networks.append(lambdanets.create_model("resnet20_mixer_small", mixer=mixer, pattern="CCLL").state_dict())
    shared = [name for name, x in networks[0].items() if name in networks[1] and x.shape == networks[1][name].shape]
    assert len(shared) > 100
    assert all(networks[0][name].equal(networks[1][name]) for name in shared)
