import json

import pytest

from scripts import call_main, load_script

ROWS = [
    {"part": "kernels", "name": "forward", "eager_us": 40.0, "graph_us": 30.0},
    {"part": "check", "name": "a kernel", "correct": True, "bit_identical": True},
    {"part": "check", "name": "another", "correct": True, "bit_identical": False},
    {"part": "smoke", "name": "whole part", "failure": "CUDA error: an illegal memory access"},
]


def test_table_has_times_and_failures(tmp_path):
    script = load_script("experiments/gpu.py")
    path = tmp_path / "gpu.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS) + '{"part": "half a li')
    table = script.format_table(script.read_rows(path))
    assert table.splitlines()[0].split() == ["kernels", "forward", "30.0", "us"]
    assert "1 of 2 checks are correct and bit-identical" in table
    assert "WRONG check another" in table
    assert "FAILED smoke whole part: CUDA error" in table


@pytest.mark.slow
def test_parts_run_without_a_gpu_on_tiny_problems(tmp_path, monkeypatch):
    pytest.importorskip("triton", reason="the kernels need Triton")
    script = load_script("experiments/gpu.py")
    call_main(script, monkeypatch, "--out", tmp_path, "--parts", "machine", "kernels")
    rows = script.read_rows(tmp_path / "gpu.jsonl")
    if any("only 0-dimensional arrays" in row.get("failure", "") for row in rows):
        pytest.skip("this version of Triton's interpreter does not support this version of NumPy")
    assert not [row for row in rows if "failure" in row]
    assert len([row for row in rows if row.get("eager_us", 0) > 0]) == 4


def test_part_is_killed_at_the_end_of_its_time(tmp_path, monkeypatch):
    script = load_script("experiments/gpu.py")
    (tmp_path / "gpu.py").write_text("import time\ntime.sleep(600)")
    monkeypatch.setattr(script, "__file__", str(tmp_path / "gpu.py"))
    monkeypatch.setattr(script, "SECONDS_TO_STOP", 1)
    script.run_part("check", tmp_path / "gpu.jsonl", 1)
    (row,) = script.read_rows(tmp_path / "gpu.jsonl")
    assert row["failure"] == "exceeded 1 s"
