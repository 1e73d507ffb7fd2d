import json
import sys

import pytest

from lambdanets_lab.pseudo.tables import select
from scripts import load_script


@pytest.fixture
def script():
    return load_script("experiments/selection.py")


@pytest.mark.slow
def test_script_checks_a_selection_of_synthetic_labels(script, monkeypatch, tmp_path, capsys):
    options = "--rows 3000 --shard-rows 800 --classes 5 --top 2 --per-class 600"
    argv = ["selection.py", str(tmp_path / "synthetic"), *options.split(), "--out", str(tmp_path / "select.json")]
    monkeypatch.setattr(sys, "argv", argv)
    script.main()
    assert "every class has its images" in capsys.readouterr().out
    result = json.loads((tmp_path / "select.json").read_text())
    assert result["images"] == 3000
    assert result["peak_bytes"] >= result["imported_bytes"] > 0
    assert str(tmp_path) not in json.dumps(result)
    assert [path.name for path in tmp_path.iterdir()] == ["select.json"]


def test_check_fails_for_a_selection_without_its_best_rows(script, tmp_path):
    size = script.Size(500, 200, 5, 2)
    script.generate(tmp_path / "labels", size)
    select(tmp_path / "labels", tmp_path / "out", confidence=0.3, per_class=20)
    script.check(tmp_path / "labels", tmp_path / "out", size, 0.3, 20)
    with pytest.raises(AssertionError):
        script.check(tmp_path / "labels", tmp_path / "out", size, 0.3, 21)
    (tmp_path / "out/train-00001.parquet").unlink()
    with pytest.raises(AssertionError):
        script.check(tmp_path / "labels", tmp_path / "out", size, 0.3, 20)
