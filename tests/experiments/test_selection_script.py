import json

import pytest

from scripts import call_main, load_script


@pytest.mark.slow
def test_script_measures_a_selection_of_synthetic_labels(monkeypatch, tmp_path):
    options = ["--rows", "3000", "--shard-rows", "800", "--classes", "5", "--top", "2", "--per-class", "600"]
    script, out = load_script("experiments/selection.py"), tmp_path / "select.json"
    call_main(script, monkeypatch, tmp_path / "synthetic", *options, "--out", out)
    result = json.loads(out.read_text())
    assert result["images"] == 3000
    assert result["peak_bytes"] >= result["imported_bytes"] > 0
    assert str(tmp_path) not in json.dumps(result)
    assert [path.name for path in tmp_path.iterdir()] == ["select.json"]
