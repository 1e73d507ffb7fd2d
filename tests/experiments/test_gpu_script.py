import argparse
import json
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from lambdanets.ops.position import fused
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


class Launches:
    """Takes the place of a kernel, and records the compile-time constants of its launches."""

    def __init__(self, name, launched):
        self.name, self.launched = name, launched

    def __getitem__(self, grid):
        return lambda *arguments, **constants: self.launched.add((self.name, frozenset(constants.items())))


def test_all_kernels_that_any_part_launches_are_compiled_before(monkeypatch):
    pytest.importorskip("triton", reason="the kernels need Triton")
    monkeypatch.syspath_prepend(str(ROOT / "experiments"))
    parts = load_script("experiments/gpu_parts.py")
    from lambdanets.ops.position import fused_kernels, fused_table_kernels

    launched = set()
    monkeypatch.setattr(fused, "gpu_capability", lambda device: (9, 0))
    for name in {*(kernel.function for kernel in fused.KERNELS.values()), "reduce_grad_table"}:
        module = fused_table_kernels if "table" in name else fused_kernels
        monkeypatch.setattr(module, name, Launches(name, launched))
    part = parts.Part(argparse.Namespace(part="x", out=None, dry_run=True, until=0, commit=None))
    part.dry_run, part.device = False, "meta"
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(L2_cache_size=0))
    sizes = [(shape, dtype) for dtype in parts.DTYPES for shape in (*parts.SHAPES, *parts.MORE_SHAPES)]
    for (side, v, scope, batch), dtype in sizes[:12]:
        (tensors, *_), problem = parts.make_inputs(part, (min(side, 8), v, min(scope or 15, 15), batch), dtype)
        for call in parts.kernel_calls(problem).values():
            call(*tensors)
    for case in (*parts.LAYER_CHECKS, *parts.CHECKS, *parts.CASES):
        for dtype in parts.DTYPES[:1] if case in parts.LAYER_CHECKS else parts.DTYPES:
            shape = (case.batch, case.heads, 64, 16), (3, 3, 16, 1), (case.batch, 64, case.v, 1)
            queries, table, values = (torch.empty(size, dtype=dtype, device="meta") for size in shape)
            content = torch.empty(case.batch, 16, case.v, dtype=dtype, device="meta") if case.content else None
            problem = parts.make_problem(queries, table, values, (8, 8), False)
            grad = torch.empty(case.batch, case.heads, 64, case.v, dtype=dtype, device="meta")
            for call in parts.kernel_calls(problem).values():
                call(queries, table, values, content, grad)
    compiled = set()
    for configuration, content in parts.launched_configurations(90):
        dtype = getattr(torch, configuration.dtype)
        constants = fused.kernel_constants(configuration.kernel, configuration.tiles, configuration.heads, dtype)
        if configuration.kernel.startswith(("forward", "grad_queries")):
            constants["CONTENT"] = content
        compiled.add((fused.KERNELS[configuration.kernel].function, frozenset(constants.items())))
    assert len(launched) > 60
    assert {launch for launch in launched if launch[0] != "reduce_grad_table"} <= compiled
