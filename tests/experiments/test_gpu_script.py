import json
import math
import subprocess
import sys

import pytest
import torch

from scripts import ROOT, load_script

ROWS = [
    {"part": "kernels", "name": "forward", "graph_us": 30.0, "predicted_us": 20.0},
    {"part": "check", "name": "a kernel", "correct": True, "bit_identical": True},
    {"part": "check", "name": "another", "correct": True, "bit_identical": False},
    {"part": "smoke", "name": "whole part", "failure": "CUDA error: an illegal memory access"},
]


def test_table_has_ratios_and_failures(tmp_path):
    script = load_script("experiments/gpu.py")
    path = tmp_path / "gpu.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS) + '{"part": "half a li')
    table = script.format_table(script.read_rows(path))
    assert "30.0       20.0   1.50" in table
    assert "1 of 2 checks are correct and bit-identical" in table
    assert "WRONG check another" in table
    assert "FAILED smoke whole part: CUDA error" in table


@pytest.mark.slow
def test_dry_run_measures_kernels_and_predictions(tmp_path):
    pytest.importorskip("triton", reason="the kernels need Triton")
    command = [
        sys.executable,
        "experiments/gpu.py",
        "--out",
        str(tmp_path),
        "--dry-run",
        "--parts",
        "machine",
        "kernels",
    ]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    rows = [json.loads(line) for line in (tmp_path / "gpu.jsonl").read_text().splitlines()]
    if any("only 0-dimensional arrays" in row.get("failure", "") for row in rows):
        pytest.skip("this version of Triton's interpreter does not support this version of NumPy")
    assert run.returncode == 0, run.stderr
    assert not [row for row in rows if "failure" in row]
    assert {row["part"] for row in rows} == {"machine", "kernels"}
    timed = [row for row in rows if "predicted_us" in row]
    assert len(timed) == 4
    assert all(row["predicted_us"] > 0 < row["eager_us"] for row in timed)


def test_part_that_exceeds_its_time_is_recorded(tmp_path, monkeypatch):
    script = load_script("experiments/gpu.py")

    def time_out(command, environment, errors, limit):
        raise subprocess.TimeoutExpired(command, limit)

    monkeypatch.setattr(script, "run_group", time_out)
    script.run_part("check", tmp_path / "gpu.jsonl", 30, False)
    (row,) = script.read_rows(tmp_path / "gpu.jsonl")
    assert row["failure"] == "exceeded 30 s"


def test_part_continues_without_a_kernel_that_corrupted_the_context(tmp_path, monkeypatch):
    script = load_script("experiments/gpu.py")
    out, commands = tmp_path / "gpu.jsonl", []

    def run(command, environment, errors, limit):
        commands.append(command)
        if len(commands) == 1:
            out.write_text(json.dumps({"part": "check", "name": "x", "broken_by": "grad_values"}) + "\n")
        return script.BROKEN_CONTEXT if len(commands) == 1 else 0

    monkeypatch.setattr(script, "run_group", run)
    script.run_part("check", out, 30, False)
    assert "--without" not in commands[0]
    assert commands[1][-2:] == ["--without", "grad_values"]
    assert "failure" not in script.read_rows(out)[-1]


def test_smoke_error_is_nan_if_any_result_is_nan(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "experiments"))
    parts = load_script("experiments/gpu_parts.py")
    ones = torch.ones(3)
    assert parts.max_error([ones, 1.5 * ones], [ones, ones]) == pytest.approx(0.5)
    assert math.isnan(parts.max_error([ones, ones * torch.nan, ones], [ones] * 3))
