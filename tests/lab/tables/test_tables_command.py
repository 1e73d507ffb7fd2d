import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

from commands import error_lines
from lambdanets.cli import main
from lambdanets_lab.tables import paper
from lambdanets_lab.tables.paper import select_numbers
from lambdanets_lab.tables.plots import draw
from scripts import ROOT

pytestmark = pytest.mark.xdist_group("figures")  # one worker counts the models once


@pytest.fixture(autouse=True, scope="module")
def skip_random_initialization():
    """Skip random initialization: on the meta device it has no effect, but takes half of the time."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("normal_", "trunc_normal_", "uniform_", "kaiming_normal_", "kaiming_uniform_", "zeros_", "ones_"):
            patch.setattr(torch.nn.init, name, lambda tensor, *_, **__: tensor)
        yield


def test_prints_one_table_and_lists_numbers_that_differ(capsys, monkeypatch):
    assert main(["tables", "12"]) == 0
    text = capsys.readouterr().out
    assert "Table 12. Stages with lambda layers in ResNet-50" in text
    assert "Table 3" not in text
    assert "7 of 8 countable numbers match; 1 not reproducible (see notes)." in text
    wrong = [replace(n, value=26.6) if n.column == "params" and n.value == 25.6 else n for n in select_numbers(["12"])]
    monkeypatch.setattr(paper, "select_numbers", lambda names: wrong)
    assert main(["tables", "12"]) == 0
    text = capsys.readouterr().out
    assert "differs: expected 26.6" in text
    assert text.strip().endswith("; 1 differs.")


def test_command_reproduces_the_committed_page(tmp_path):
    page = tmp_path / "tables.md"
    measured = sorted(map(str, (ROOT / "experiments/results/xeon-2-cores/tables").glob("*.json")))
    options = ["--measured", *measured, "--figures", str(tmp_path / "tables")]
    assert main(["tables", *options, "--out", str(page)]) == 0
    assert page.read_text() == (ROOT / "docs/tables.md").read_text()
    assert "\n56 of 69 countable numbers match; 13 not reproducible (see notes); 14 entries" in page.read_text()
    assert "differs" not in page.read_text()
    figures = re.findall(r"!\[.*\]\((.*)\)", page.read_text())
    assert len(figures) == 2
    assert all((tmp_path / name).is_file() and (ROOT / "docs" / name).is_file() for name in figures)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["21"], "tables must be one of 2, 3, 4"),
        (["--out", "nowhere/tables.md"], "--out must be a file .md in an existing folder, got nowhere/tables.md"),
        (["--out", "tables.csv"], "--out must be a file .md in an existing folder, got tables.csv"),
        (["--measured", "model.json"], "model.json must be results.json of lambdanets benchmark tables"),
        (["--measured", "2.json", "3.json"], "the same machine and setup, got P, 2 of 2 cores, PyTorch 2,"),
    ],
)
def test_rejects_invalid_options(capsys, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    hardware = {"gpu": None, "processor": "P", "threads": 2, "cores": 2}
    for name, kind in (("model", "model"), ("2", "tables"), ("3", "tables")):
        content = {"kind": kind, "device": "cpu", "hardware": hardware, "versions": {"torch": name}, "rows": []}
        content |= {"options": {"batch_size": 2, "image_size": None, "dtype": "float32"}}
        Path(f"{name}.json").write_text(json.dumps(content))
    (error,) = error_lines(capsys, "tables", *arguments)
    assert message in error
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.figures
def test_figures_have_a_panel_for_measured_speeds(tmp_path):
    measured = {("18", "depth 50, 128px", "train step latency"): (9.0, ""), ("10", "3x3", "throughput"): (5.0, "")}
    paper_only = draw(tmp_path / "without", {})
    with_measured = draw(tmp_path / "with", measured, "a machine")
    for smaller, larger in zip(paper_only.values(), with_measured.values(), strict=True):
        assert Image.open(larger).height > 1.3 * Image.open(smaller).height
