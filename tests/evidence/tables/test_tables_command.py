import json
import os
import re
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

from lambdanets.cli import main
from lambdanets.evidence.tables import printed, speed, verdicts
from lambdanets.evidence.tables.plots import draw
from lambdanets.evidence.tables.printed import figures_of
from lambdanets.evidence.tables.rows import ROWS, Build

pytestmark = pytest.mark.xdist_group("figures")  # counted once, for both

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True, scope="module")
def uninitialized():
    """Counts are of meta tensors, whose random initialization changes nothing and takes half of the time."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("normal_", "trunc_normal_", "uniform_", "kaiming_normal_", "kaiming_uniform_", "zeros_", "ones_"):
            patch.setattr(torch.nn.init, name, lambda tensor, *_, **__: tensor)
        yield


def refused(capsys, *arguments):
    assert main(["tables", *map(str, arguments)]) == 2
    (said,) = capsys.readouterr().err.strip().splitlines()
    return said


def test_one_table_is_shown(capsys):
    assert main(["tables", "12"]) == 0
    said = capsys.readouterr().out
    assert "Table 12. Stages on lambda layers in ResNet-50" in said
    assert "Table 3" not in said
    assert "7 of 8 countable numbers match; 1 not reproducible (see notes)." in said


def test_the_check_fails_where_a_figure_is_wrong(capsys, monkeypatch):
    wrong = [replace(f, value=26.6) if f.column == "params" and f.value == 25.6 else f for f in figures_of(["12"])]
    monkeypatch.setattr(printed, "figures_of", lambda names: wrong)
    assert main(["tables", "--check"]) == 1
    said = capsys.readouterr().out
    assert "table 12, C-C-C-C, params: 26.6 printed, 25.557 ours" in said
    assert said.strip().endswith("; 1 differs")


def test_the_check_fails_where_a_count_is_wrong(monkeypatch):
    monkeypatch.setattr(verdicts, "_count", lambda column, build, together: 1)
    assert main(["tables", "9", "--check"]) == 1


def test_the_committed_document_is_what_the_command_writes(tmp_path):
    written = tmp_path / "tables.md"
    measured = sorted(map(str, (ROOT / "experiments/results/xeon-2-cores/tables").glob("*.json")))
    options = ["--measured", *measured, "--figures", str(tmp_path / "tables"), "--format", "markdown"]
    assert main(["tables", *options, "--out", str(written)]) == 0
    assert written.read_text() == (ROOT / "docs/tables.md").read_text()
    pictures = re.findall(r"!\[.*\]\((.*)\)", written.read_text())
    assert len(pictures) == 2
    assert all((tmp_path / name).is_file() and (ROOT / "docs" / name).is_file() for name in pictures)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["6", "--check", "--format", "json"], "--check prints only a summary"),
        (["21"], "there is no table '21' to show, only 2, 3, 4"),
        (["--repeats", "0", "--measure"], "--repeats must be at least 1, got 0"),
        (["--batch-size", "2"], "--batch-size needs --measure"),
        (["--measure", "--measured", "x.json"], "--measure and --measured must not be given together"),
        (["--check", "--measure"], "--check prints only a summary"),
        (["--measured", "nowhere.json"], "nowhere.json: No such file"),
        (["8", "--measure", "--out", "new.json"], "table 8 has no speeds to measure, only 4, 5, 10, 12, 13, 18 have"),
        (["--out", "nowhere/tables.md"], "--out must be in an existing folder, got nowhere/tables.md"),
        (["--figures", __file__], "--figures must be a folder"),
    ],
)
def test_what_does_not_fit_is_told_in_one_sentence(capsys, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert message in refused(capsys, *arguments)
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_something_else_is_refused(capsys, tmp_path):
    (tmp_path / "other.json").write_text("{}")
    assert "is no file that lambdanets tables --measure or lambdanets benchmark layer or" in refused(
        capsys, "--measured", tmp_path / "other.json"
    )


def test_an_existing_file_of_measurements_is_kept(capsys, tmp_path):
    (tmp_path / "old.json").write_text("old")
    assert "old.json has no measurements to resume" in refused(
        capsys, "12", "--measure", "--out", tmp_path / "old.json"
    )
    assert (tmp_path / "old.json").read_text() == "old"


@pytest.fixture
def few_rows(monkeypatch):
    """Two small models in the place of Table 12's eight."""
    rows = {"C-C-C-C": Build("resnet18"), "C-C-C-L": Build("lambda_resnet20_small")}
    monkeypatch.setattr(speed, "ROWS", ROWS | {"12": rows, "18": {"depth 50, 128px": Build("resnet18")}})
    monkeypatch.setattr(speed, "estimate", lambda plan, device: 60.0)


def test_measuring_writes_samples_with_what_they_came_from_and_shows_them(few_rows, capsys, tmp_path):
    out = tmp_path / "measured.json"
    options = ["--batch-size", "2", "--repeats", "3", "--image-size", "32", "--out", str(out)]
    assert main(["tables", "12", "--measure", *options]) == 0
    said, told = capsys.readouterr()
    assert "about 1.0 minutes on" in told
    assert f"written to {out}" in told
    content = json.loads(out.read_text())
    assert content["finished"]
    assert {"commit", "versions", "hardware", "options"} <= content.keys()
    assert {len(row["seconds"]) for row in content["rows"]} <= {3, 6, 9}  # what is noisy runs again
    assert all(row["peak_bytes"] > 2 * 3 * 32 * 32 for row in content["rows"])
    assert main(["tables", "12", "--measured", str(out)]) == 0
    again = capsys.readouterr().out
    assert again.strip() in said
    assert "1.00 x C-C-C-C, the paper's 1.00 x; batch 2, 32 px, peak" in again
    assert "x C-C-C-C, the paper's 0.99 x; batch 2, 32 px, peak" in again
    assert "Speeds measured on " in again


def test_images_that_a_row_cannot_compute_are_refused(few_rows, capsys, tmp_path):
    sizes = ["--image-size", "32", "--batch-size", "1"]
    assert main(["tables", "18", "--measure", *sizes, "--out", str(tmp_path / "measured.json")]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert (
        "depth 50, 128px of table 18 cannot compute 1 images of 32 x 32 in training: Expected more than 1 value" in said
    )
    assert "choose another --batch-size or --image-size" in said
    assert not list(tmp_path.iterdir())


def test_interrupted_measurement_keeps_finished_passes_and_resumes(few_rows, tmp_path, monkeypatch, capsys):
    measured, out = speed._measure_pass, tmp_path / "measured.json"

    def with_signal(name, *given):
        if name == "18":
            os.kill(os.getpid(), signal.SIGTERM)
        measured(name, *given)

    given = ["tables", "12", "18", "--measure", "--image-size", "32", "--out", str(out)]
    with monkeypatch.context() as patch:
        patch.setattr(speed, "_measure_pass", with_signal)
        assert main(given) == 130
    assert f"interrupted; what was measured is written to {out}; resume with" in capsys.readouterr().err
    content = json.loads(out.read_text())
    assert not content["finished"]
    assert [row["table"] for row in content["rows"]] == ["12", "12"]
    assert main([*given, "--repeats", "4"]) == 2
    assert "was started with options (repeats 3, not 4); remove it" in capsys.readouterr().err
    assert main(given) == 0
    again = json.loads(out.read_text())
    assert again["finished"]
    assert again["rows"][:2] == content["rows"]
    assert [row["table"] for row in again["rows"]] == ["12", "12", "18"]
    assert [path.name for path in tmp_path.iterdir()] == ["measured.json"]
    assert main(given) == 2
    assert "is finished; choose another path" in capsys.readouterr().err


def test_an_estimate_grows_with_repeats_and_with_training():
    def seconds(**changes):
        plan = replace(speed.Plan(("12",), 1, 3, 32), **changes)
        return sum(
            speed._operations(build, plan, training=training) * plan.repeats
            for _, build, training in speed._passes(plan)
        )

    assert seconds(repeats=6) == 2 * seconds()
    assert speed.estimate(speed.Plan(("12",), 1, 1, 32), torch.device("cpu")) > 0


@pytest.mark.figures
def test_figures_are_drawn(tmp_path, capsys):
    assert main(["tables", "10", "--figures", str(tmp_path / "pictures")]) == 0
    for name in ("frontier.png", "scope.png"):
        assert min(Image.open(tmp_path / "pictures" / name).size) > 300


@pytest.mark.figures
def test_figures_have_a_panel_more_where_speeds_were_measured(tmp_path):
    measured = {("18", "depth 50, 128px", "train step latency"): (9.0, ""), ("10", "3x3", "throughput"): (5.0, "")}
    without = draw(tmp_path / "without", {})
    with_ = draw(tmp_path / "with", measured, "a machine")
    for one, other in zip(without.values(), with_.values(), strict=True):
        assert Image.open(other).size[0] > 1.5 * Image.open(one).size[0]
