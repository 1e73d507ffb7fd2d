import json
import statistics
from pathlib import Path
from types import SimpleNamespace

import pytest

from scripts import ROOT, call_main, load_script

PAGE = ROOT / "docs/detection.md"


@pytest.fixture
def script():
    return load_script("experiments/nuclei.py")


def without_table(script, page):
    text = PAGE.read_text(encoding="utf-8")
    table = text.partition(script.BEGIN)[2].partition(script.END)[0]
    page.write_text(text.replace(script.BEGIN + table, script.BEGIN), encoding="utf-8")
    return table


def test_nuclei_page_has_the_committed_results(script, monkeypatch, tmp_path):
    page = tmp_path / "detection.md"
    table = without_table(script, page)
    call_main(script, monkeypatch, "--page", page)
    assert page.read_text(encoding="utf-8") == PAGE.read_text(encoding="utf-8")
    assert "| masks, lambda layers, 1.19 M parameters |" in table


def mask_scores(path, recipe):
    runs = json.loads(path.read_text(encoding="utf-8"))["runs"]
    return [100 * run["segm"]["AP"] for run in runs if run["recipe"] == recipe]


def test_readme_has_the_means_of_the_committed_results(script):
    means = [statistics.mean(mask_scores(script.RESULTS, recipe)) for recipe in script.RECIPES]
    sentence = f"mask AP {means[0]:.1f} with lambda layers and {means[1]:.1f} with 3x3 convolutions"
    assert sentence in " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())


def test_page_has_the_results_without_frozen_batch_norm(script):
    path = script.RESULTS.with_name("nuclei_norms_not_frozen.json")
    lambda_layers, convolutions = (script.format_mean(mask_scores(path, recipe)) for recipe in script.RECIPES)
    sentence = f"mask AP was {lambda_layers} with lambda layers and {convolutions} with convolutions"
    assert sentence in " ".join(PAGE.read_text(encoding="utf-8").split())


def test_both_networks_are_trained_with_each_seed(script, monkeypatch, tmp_path):
    page, out, commands = tmp_path / "detection.md", tmp_path / "nuclei.json", []
    without_table(script, page)

    def train(command, check):
        commands.append(command)
        run, seed = Path(command[command.index("--run") + 1]), int(command[command.index("--seed") + 1])
        scores = dict.fromkeys(script.COLUMNS, (seed + 1) / 10) | {"APl": None}
        result = dict.fromkeys(script.RESULT_FIELDS, 7) | {"seconds": 60 * (seed + 1), "bbox": scores, "segm": scores}
        run.mkdir(parents=True)
        (run / "result.json").write_text(
            json.dumps(result | {"hardware": {"processor": "test processor", "threads": 1}})
        )
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr("seeded_runs.subprocess", SimpleNamespace(run=train))
    options = ["--work", tmp_path / "runs", "--jobs", 2, "--out", out, "--page", page]
    call_main(script, monkeypatch, tmp_path / "nuclei", *options, "--seeds", 0)
    call_main(script, monkeypatch, tmp_path / "nuclei", *options, "--seeds", 1)
    trained = sorted((command[4], command[6]) for command in commands)
    assert trained == [(recipe, seed) for recipe in ("nuclei", "nuclei_convolution") for seed in "01"]
    table = page.read_text(encoding="utf-8").partition(script.BEGIN)[2].partition(script.END)[0]
    assert "1 to 2 minutes per run on test processor, 2 at a time with " in " ".join(table.split())
    assert table.count("| 15.0 ± 7.1 |") > 0
    assert table.count(" - |") == 6
    assert "| masks, paired difference, 95% interval | +0.00 (+0.00 to +0.00) |" in table
    assert str(tmp_path) not in out.read_text()
