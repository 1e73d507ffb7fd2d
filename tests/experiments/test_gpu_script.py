import json
import subprocess
import sys

import pytest

from scripts import ROOT, call_main, load_script

ROWS = [
    {"part": "kernels", "name": "forward", "graph_us": 30.0},
    {"part": "check", "name": "a kernel", "correct": True, "bit_identical": True},
    {"part": "check", "name": "another", "correct": True, "bit_identical": False},
    {"part": "smoke", "name": "whole part", "failure": "CUDA error: an illegal memory access"},
]


def test_table_has_times_and_failures(tmp_path):
    script = load_script("experiments/gpu.py")
    path = tmp_path / "gpu.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS) + '{"part": "half a li')
    table = script.format_table(script.read_rows(path))
    assert table.splitlines()[1].split() == ["kernels", "forward", "30.0"]
    assert "1 of 2 checks are correct and bit-identical" in table
    assert "WRONG check another" in table
    assert "FAILED smoke whole part: CUDA error" in table


@pytest.mark.slow
def test_dry_run_measures_kernels(tmp_path, monkeypatch):
    pytest.importorskip("triton", reason="the kernels need Triton")
    script, calls = load_script("experiments/gpu.py"), []
    monkeypatch.setattr(script, "run_group", lambda command, environment, *_: calls.append((command, environment)))
    call_main(script, monkeypatch, "--out", tmp_path, "--dry-run", "--parts", "machine", "kernels")
    # one process for both parts, because imports take seconds
    code = f"import sys, gpu_parts\nfor sys.argv in {[command[1:] for command, _ in calls]}: gpu_parts.main()"
    folder, environment = ROOT / "experiments", calls[0][1]
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    rows = [json.loads(line) for line in (tmp_path / "gpu.jsonl").read_text().splitlines()]
    if any("only 0-dimensional arrays" in row.get("failure", "") for row in rows):
        pytest.skip("this version of Triton's interpreter does not support this version of NumPy")
    assert run.returncode == 0, run.stderr
    assert not [row for row in rows if "failure" in row]
    assert {row["part"] for row in rows} == {"machine", "kernels"}
    times = [row["eager_us"] for row in rows if "eager_us" in row]
    assert len(times) == 4
    assert min(times) > 0


def test_part_is_killed_at_the_end_of_its_time(tmp_path, monkeypatch):
    script = load_script("experiments/gpu.py")
    (tmp_path / "gpu_parts.py").write_text("import time\ntime.sleep(600)")
    monkeypatch.setattr(script, "__file__", str(tmp_path / "gpu.py"))
    monkeypatch.setattr(script, "SECONDS_TO_STOP", 1)
    script.run_part("check", tmp_path / "gpu.jsonl", 1, False)
    (row,) = script.read_rows(tmp_path / "gpu.jsonl")
    assert row["failure"] == "exceeded 1 s"
