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
from lambdanets.evidence.tables import paper, speed, verdicts
from lambdanets.evidence.tables.paper import select_numbers
from lambdanets.evidence.tables.plots import draw
from lambdanets.evidence.tables.rows import ROWS, ModelSpec

pytestmark = pytest.mark.xdist_group("figures")  # one worker counts the models once for both files

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True, scope="module")
def skip_random_initialization():
    """Skip random initialization: on the meta device it has no effect, but takes half of the time."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("normal_", "trunc_normal_", "uniform_", "kaiming_normal_", "kaiming_uniform_", "zeros_", "ones_"):
            patch.setattr(torch.nn.init, name, lambda tensor, *_, **__: tensor)
        yield


def error_line(capsys, *arguments):
    """The only line that a rejected command prints to stderr."""
    assert main(["tables", *map(str, arguments)]) == 2
    (message,) = capsys.readouterr().err.strip().splitlines()
    return message


def test_prints_one_table(capsys):
    assert main(["tables", "12"]) == 0
    text = capsys.readouterr().out
    assert "Table 12. Stages with lambda layers in ResNet-50" in text
    assert "Table 3" not in text
    assert "7 of 8 countable numbers match; 1 not reproducible (see notes)." in text


def test_check_fails_for_a_wrong_paper_number(capsys, monkeypatch):
    wrong = [replace(n, value=26.6) if n.column == "params" and n.value == 25.6 else n for n in select_numbers(["12"])]
    monkeypatch.setattr(paper, "select_numbers", lambda names: wrong)
    assert main(["tables", "--check"]) == 1
    text = capsys.readouterr().out
    assert "table 12, C-C-C-C, params: 26.6 in the paper, 25.557 ours" in text
    assert text.strip().endswith("; 1 differs")


def test_check_fails_for_a_wrong_count(monkeypatch):
    monkeypatch.setattr(verdicts, "_count", lambda column, spec, single_application: 1)
    assert main(["tables", "9", "--check"]) == 1


def test_command_reproduces_the_committed_page(tmp_path):
    page = tmp_path / "tables.md"
    measured = sorted(map(str, (ROOT / "experiments/results/xeon-2-cores/tables").glob("*.json")))
    options = ["--measured", *measured, "--figures", str(tmp_path / "tables"), "--format", "markdown"]
    assert main(["tables", *options, "--out", str(page)]) == 0
    assert page.read_text() == (ROOT / "docs/tables.md").read_text()
    figures = re.findall(r"!\[.*\]\((.*)\)", page.read_text())
    assert len(figures) == 2
    assert all((tmp_path / name).is_file() and (ROOT / "docs" / name).is_file() for name in figures)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["6", "--check", "--format", "json"], "--check prints only a summary"),
        (["21"], "tables must be among 2, 3, 4"),
        (["--repeats", "0", "--measure"], "--repeats must be at least 1, got 0"),
        (["--batch-size", "2"], "--batch-size needs --measure"),
        (["--measure", "--measured", "x.json"], "--measure and --measured must not be given together"),
        (["--check", "--measure"], "--check prints only a summary"),
        (["--measured", "nowhere.json"], "nowhere.json: No such file"),
        (["8", "--measure", "--out", "x"], "tables to measure must be among 4, 5, 10, 12, 13, 18, got 8"),
        (["--out", "nowhere/tables.md"], "--out must be in an existing folder, got nowhere/tables.md"),
        (["--figures", __file__], "--figures must be a folder"),
    ],
)
def test_rejects_invalid_options(capsys, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert message in error_line(capsys, *arguments)
    assert list(tmp_path.iterdir()) == []


def test_rejects_files_that_are_not_measurements(capsys, tmp_path):
    (tmp_path / "other.json").write_text("{}")
    assert "must be a file that lambdanets tables --measure or lambdanets benchmark layer or" in error_line(
        capsys, "--measured", tmp_path / "other.json"
    )


def test_existing_file_is_not_overwritten_by_measurements(capsys, tmp_path):
    (tmp_path / "old.json").write_text("old")
    assert "old.json has no measurements to resume" in error_line(
        capsys, "12", "--measure", "--out", tmp_path / "old.json"
    )
    assert (tmp_path / "old.json").read_text() == "old"


@pytest.fixture
def few_rows(monkeypatch):
    """Two small models in place of Table 12's eight."""
    rows = {"C-C-C-C": ModelSpec("resnet18"), "C-C-C-L": ModelSpec("lambda_resnet20_small")}
    monkeypatch.setattr(speed, "ROWS", ROWS | {"12": rows, "18": {"depth 50, 128px": ModelSpec("resnet18")}})
    monkeypatch.setattr(speed, "estimate_seconds", lambda plan, device: 60.0)


def test_measure_writes_samples_with_provenance_and_prints_them(few_rows, capsys, tmp_path):
    out = tmp_path / "measured.json"
    options = ["--batch-size", "2", "--repeats", "3", "--image-size", "32", "--out", str(out)]
    assert main(["tables", "12", "--measure", *options]) == 0
    text, log = capsys.readouterr()
    assert "about 1.0 minutes on" in log
    assert f"written to {out}" in log
    content = json.loads(out.read_text())
    assert content["finished"]
    assert {"commit", "versions", "hardware", "options"} <= content.keys()
    assert {len(row["seconds"]) for row in content["rows"]} <= {3, 6, 9}  # noisy rows run again
    assert all(row["peak_bytes"] > 2 * 3 * 32 * 32 for row in content["rows"])
    assert main(["tables", "12", "--measured", str(out)]) == 0
    printed_again = capsys.readouterr().out
    assert printed_again.strip() in text
    assert "1.00x the speed of C-C-C-C (paper: 1.00x); batch 2, 32 px, peak" in printed_again
    assert "x the speed of C-C-C-C (paper: 0.99x); batch 2, 32 px, peak" in printed_again
    assert "Speeds measured on " in printed_again


def test_rejects_sizes_that_a_model_does_not_support(few_rows, capsys, tmp_path):
    sizes = ["--image-size", "32", "--batch-size", "1"]
    assert main(["tables", "18", "--measure", *sizes, "--out", str(tmp_path / "measured.json")]) == 2
    message = capsys.readouterr().err.splitlines()[-1]
    assert "depth 50, 128px of table 18 failed with 1 images of 32 x 32 in training: Expected more than 1" in message
    assert "choose another --batch-size or --image-size" in message
    assert not list(tmp_path.iterdir())


def test_interrupted_measurement_keeps_finished_phases_and_resumes(few_rows, tmp_path, monkeypatch, capsys):
    measure_phase, out = speed._measure_phase, tmp_path / "measured.json"

    def with_signal(name, *arguments):
        if name == "18":
            os.kill(os.getpid(), signal.SIGTERM)
        measure_phase(name, *arguments)

    arguments = ["tables", "12", "18", "--measure", "--image-size", "32", "--out", str(out)]
    with monkeypatch.context() as patch:
        patch.setattr(speed, "_measure_phase", with_signal)
        assert main(arguments) == 130
    assert f"interrupted; results so far are in {out}; resume with" in capsys.readouterr().err
    content = json.loads(out.read_text())
    assert not content["finished"]
    assert [row["table"] for row in content["rows"]] == ["12", "12"]
    assert main([*arguments, "--repeats", "4"]) == 2
    assert "was started with options (repeats 3, not 4); remove it" in capsys.readouterr().err
    assert main(arguments) == 0
    resumed = json.loads(out.read_text())
    assert resumed["finished"]
    assert resumed["rows"][:2] == content["rows"]
    assert [row["table"] for row in resumed["rows"]] == ["12", "12", "18"]
    assert [path.name for path in tmp_path.iterdir()] == ["measured.json"]
    assert main(arguments) == 2
    assert "is finished; choose another path" in capsys.readouterr().err


def test_estimated_cost_is_proportional_to_repeats():
    def seconds(**changes):
        plan = replace(speed.Plan(("12",), 1, 3, 32), **changes)
        rows = speed._planned_rows(plan)
        return sum(speed._estimate_flops(spec, plan, training=training) * plan.repeats for _, spec, training in rows)

    assert seconds(repeats=6) == 2 * seconds()
    assert speed.estimate_seconds(speed.Plan(("12",), 1, 1, 32), torch.device("cpu")) > 0


@pytest.mark.figures
def test_figures_are_drawn(tmp_path, capsys):
    assert main(["tables", "10", "--figures", str(tmp_path / "figures")]) == 0
    for name in ("frontier.png", "scope.png"):
        assert min(Image.open(tmp_path / "figures" / name).size) > 300


@pytest.mark.figures
def test_figures_have_a_panel_for_measured_speeds(tmp_path):
    measured = {("18", "depth 50, 128px", "train step latency"): (9.0, ""), ("10", "3x3", "throughput"): (5.0, "")}
    paper_only = draw(tmp_path / "without", {})
    with_measured = draw(tmp_path / "with", measured, "a machine")
    for smaller, larger in zip(paper_only.values(), with_measured.values(), strict=True):
        assert Image.open(larger).height > 1.3 * Image.open(smaller).height
