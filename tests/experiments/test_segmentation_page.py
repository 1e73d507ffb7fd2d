"""The Python code of docs/segmentation.md runs, and its results are those of experiments/segmentation.py."""

import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from scripts import ROOT, call_main, load_script

PAGE = ROOT / "docs/segmentation.md"


@pytest.fixture
def script():
    return load_script("experiments/segmentation.py")


def section_of(text, begin, end):
    section = text.partition(begin)[2].partition(end)[0]
    assert section
    return section


def test_python_code_of_the_page_segments_a_photo(trained_segmenter, tmp_path, monkeypatch, capsys):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/regions").symlink_to(trained_segmenter / "run")
    shutil.copy(sorted((trained_segmenter / "digits/train").iterdir())[0], tmp_path / "photo.png")
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    variables: dict = {}
    exec(code, variables)
    assert [line.rpartition(" ")[0] for line in capsys.readouterr().out.splitlines()[-3:]] == [
        *variables["segmentation"].classes
    ]
    assert variables["model"].num_classes == 3


def test_segmentation_page_has_the_committed_results(script, monkeypatch, tmp_path):
    page = tmp_path / "segmentation.md"
    text = PAGE.read_text(encoding="utf-8")
    empty = text
    for begin, end in (script.NUCLEI.section, script.DIGITS.section):
        empty = empty.replace(section_of(empty, begin, end), "")
    page.write_text(empty, encoding="utf-8")
    call_main(script, monkeypatch, "--page", page)
    assert page.read_text(encoding="utf-8") == text


def value_of(folder):
    seed = int(folder.name[-1])
    return 0.8 + 0.02 * seed + (0 if "convolution" in folder.name else 0.01 * seed)


@pytest.fixture
def trained(script, monkeypatch):
    """The arguments of the trainings, which write only a result."""
    commands = []

    def train(command, check):
        commands.append(command[3:])
        run, seed = Path(command[command.index("--run") + 1]), int(command[command.index("--seed") + 1])
        result = dict.fromkeys(script.RUN_FIELDS, 7) | dict.fromkeys(script.SCORES, value_of(run))
        result |= {"seconds": 60 * (seed + 1), "images": 60}
        run.mkdir(parents=True, exist_ok=True)
        (run / "result.json").write_text(
            json.dumps(result | {"hardware": {"processor": "test processor", "threads": 1}})
        )
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr("seeded_runs.subprocess", SimpleNamespace(run=train))
    return commands


def test_script_trains_both_networks_and_keeps_other_results(script, trained, monkeypatch, tmp_path):
    page, out = tmp_path / "segmentation.md", tmp_path / "results/segmentation.json"
    shutil.copy(PAGE, page)

    def score(folder, data):
        return {"test": dict.fromkeys(script.SCORES, value_of(folder)), "test_images": 84}

    monkeypatch.setattr(script, "score", score)
    options = ["--work", tmp_path / "runs", "--out", out, "--page", page, "--jobs", 2]
    call_main(script, monkeypatch, tmp_path / "nuclei", *options, "--seeds", 0)
    call_main(script, monkeypatch, tmp_path / "nuclei", *options, "--seeds", 1)
    assert sorted((command[1], command[3]) for command in trained) == [
        (recipe, seed) for recipe in ("nuclei_masks", "nuclei_masks_convolution") for seed in "01"
    ]
    runs = json.loads(out.read_text())["runs"]
    assert len(runs) == 4
    assert all({"commit", "versions", "hardware"} <= run.keys() for run in runs)
    section = section_of(page.read_text(encoding="utf-8"), *script.NUCLEI.section)
    assert "84 test images" in section
    assert "1 to 2\nminutes per run on test processor, 2 at a time" in section
    assert "| paired difference to 3x3 convolutions, 95% interval | +0.50 (-5.85 to +6.85) |" in section
    assert "| 81.5 ± 2.1 |" in section
    assert "| 81.0 ± 1.4 |" in section
    assert str(tmp_path) not in out.read_text()


def test_script_trains_on_scattered_digits_without_data(script, trained, monkeypatch, tmp_path):
    page, out = tmp_path / "segmentation.md", tmp_path / "results.json"
    shutil.copy(PAGE, page)
    options = ["--work", tmp_path / "runs", "--out", out, "--page", page, "--seeds", 0, 1]
    call_main(script, monkeypatch, "digits", *options)
    assert sorted((command[1], command[3]) for command in trained) == [
        (recipe, seed) for recipe in ("digit_masks", "digit_masks_convolution") for seed in "01"
    ]
    assert not any("--data" in command for command in trained)
    section = section_of(page.read_text(encoding="utf-8"), *script.DIGITS.section)
    assert "60 validation images" in section
    assert "| paired difference to 3x3 convolutions, 95% interval | +0.50 (-5.85 to +6.85) |" in section
