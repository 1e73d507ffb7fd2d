"""Calibration of a GPU, tested on the CPU with PyTorch algorithms instead of fused kernels."""

import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from lambdanets import calibration
from lambdanets.calibration import kernels
from lambdanets.calibration.kernels import Timing, calibrate_kernels, corrections_from
from lambdanets.cli import main
from lambdanets.ops.position import fused, plan, rates
from lambdanets.ops.position.execution import run_backward, run_forward
from lambdanets.ops.position.fused import self_test_process, verification
from lambdanets.ops.position.fused.device import kernel_device
from lambdanets.ops.position.plan import make_plan, predicted_costs
from lambdanets.ops.position.problem import Problem
from lambdanets.ops.position.rates import Rates, built_in_rates, read_corrections

RATES = built_in_rates("cpu", 1)
PROBLEM = Problem(2, 4, (7, 7), 16, 16, 1, (6, 6), (6, 6), False, torch.float32, "cpu")


@pytest.fixture
def gpu(tmp_path, monkeypatch):
    """A CPU that passes the self-test of the kernels, and runs the algorithm query_order instead of them."""
    monkeypatch.setenv("LAMBDANETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    self_test_script = Path(__file__).parent / "ops/position/counted_self_test.py"
    command = (sys.executable, str(self_test_script), str(tmp_path / "runs"))
    monkeypatch.setattr(self_test_process, "SELF_TEST", command)
    monkeypatch.setattr(kernels, "SHAPES", ((2, 4, 7, 23, 16, 16),))

    def forward(order, queries, table, values, problem, content=None):
        return run_forward(queries, table, values, content, problem, "query_order")

    def gradients(order, grad_output, queries, table, values, problem, needs_grad, content=None):
        return run_backward(grad_output, queries, table, values, content, problem, "query_order", needs_grad)[:3]

    monkeypatch.setattr(fused, "forward_in_order", forward)
    monkeypatch.setattr(fused, "gradients", gradients)
    verification.clear()
    plan._make_plan.cache_clear()
    yield kernel_device("cpu")
    verification.clear()
    plan._make_plan.cache_clear()


def calibrate():
    """Return the reported lines, and the corrections by algorithm and dtype."""
    lines = []
    corrections = calibrate_kernels("cpu", RATES, lines.append)
    return lines, {(name, dtype): factors for name, dtype, *factors in corrections}


def test_calibration_verifies_and_times_all_kernels(gpu):
    lines, corrections = calibrate()
    for dtype in verification.DTYPES:
        name = str(dtype).removeprefix("torch.")
        passed = {line.split()[0] for line in lines if f" {name} " in line and line.endswith("passed")}
        assert passed == set(verification.kernels_for_dtype(dtype)) == verification.read_results(gpu, dtype).keys()
        rows = [line.split() for line in lines if line.startswith("7x7") and f" {name} " in line]
        assert [row[5] for row in rows] == ["forward", "backward"]
        assert all(float(row[6]) > 0 and float(row[7]) > 0 and row[8] != "fused" for row in rows)
        assert {"query_order", "fused"} <= {algorithm for algorithm, dtype_name in corrections if dtype_name == name}
    assert all(factor > 0 for factors in corrections.values() for factor in factors)


def test_corrected_predictions_equal_the_measured_times():
    costs = predicted_costs(PROBLEM, RATES)["query_order"]
    times = (3e-3, "forward", costs.seconds), (5e-3, "backward", costs.backward_seconds)
    timings = [Timing(PROBLEM, direction, "query_order", time, cost) for time, direction, cost in times]
    corrections = corrections_from(timings)
    corrected = predicted_costs(PROBLEM, RATES, corrections)
    assert corrected["query_order"].seconds == pytest.approx(3e-3)
    assert corrected["query_order"].backward_seconds == pytest.approx(5e-3)
    assert corrected["mixed"] == predicted_costs(PROBLEM, RATES)["mixed"]


def test_kernel_with_wrong_results_at_a_larger_shape_is_not_used(gpu, monkeypatch):
    forward = fused.forward_in_order

    def add_error(order, queries, *inputs):
        output = forward(order, queries, *inputs)
        return output + 1e-3 if queries.dtype == torch.float32 else output

    monkeypatch.setattr(fused, "forward_in_order", add_error)
    lines, corrections = calibrate()
    assert any(line.startswith("forward_query_order is wrong") and "at 7x7 b=2" in line for line in lines)
    assert corrections["fused", "float32"][0] == 1.0  # not timed
    verification.clear()
    assert "is wrong" in verification.read_results(gpu, torch.float32)["forward_query_order"].reason
    assert make_plan(PROBLEM).chosen != "fused"
    assert make_plan(PROBLEM).backward == "fused"


def test_kernel_that_raises_at_a_larger_shape_is_not_timed(gpu, monkeypatch):
    def raises(*arguments):
        raise RuntimeError("out of resource: shared memory")

    monkeypatch.setattr(fused, "gradients", raises)
    lines, corrections = calibrate()
    assert any(line.startswith("grad_queries raises RuntimeError: out of resource") for line in lines)
    assert corrections["fused", "bfloat16"][1] == 1.0
    assert not any(result.reason for result in verification.read_results(gpu, torch.bfloat16).values())


def test_kernels_that_fail_their_self_test_are_reported_and_not_timed(gpu, monkeypatch):
    monkeypatch.setattr(self_test_process, "SELF_TEST", (sys.executable, "-c", "raise SystemExit('GPU is busy')"))
    lines, corrections = calibrate()
    assert sum(line.endswith("GPU is busy") for line in lines) == 16
    assert not any(algorithm == "fused" for algorithm, _ in corrections)


def test_without_fused_kernels_pytorch_algorithms_are_timed(gpu, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET")
    lines, corrections = calibrate()
    assert lines[0].startswith("no fused kernels: ")
    assert ("query_order", "float32") in corrections


def test_calibrate_caches_rates_and_corrections_of_a_gpu(gpu, monkeypatch, capsys):
    corrections = ("fused", "float32", 0.25, 0.5), ("mixed", "bfloat16", 3.0, 4.0)
    measured = Rates(1e13, 2, 3e12, 4e-6, 5e12, 6)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: ["a GPU"][torch.device(device).index or 0])
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(calibration, "measure_rates", lambda device, threads: measured)
    monkeypatch.setattr(calibration, "calibrate_kernels", lambda device, rates, report: report("timed") or corrections)
    assert main(["calibrate", "--device", "cuda"]) == 0
    assert capsys.readouterr().out.startswith("timed\n\n")
    assert read_corrections("cuda:0") == corrections
    assert rates.read_calibration("cuda:0", 1) == measured
    assert main(["calibrate", "--device", "cuda:3"]) == 2
    assert "device must be cpu or cuda or cuda:0, got 'cuda:3'" in capsys.readouterr().err


@pytest.mark.parametrize("corrections", ["3", '[["fused", "float32", 1]]', '[["fused", "float32", "x", 1]]', "null"])
def test_corrupt_corrections_are_ignored(corrections, tmp_path, monkeypatch):
    monkeypatch.setenv("LAMBDANETS_CACHE", str(tmp_path))
    (tmp_path / "rates.json").write_text(f'{{"{rates.calibration_key("cuda", 1)}": {{"corrections": {corrections}}}}}')
    assert read_corrections("cuda") == ()


@pytest.mark.parametrize("device", ["tpu", "cuda:", "cuda:x", "mps"])
def test_calibrate_rejects_unsupported_devices(device, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert main(["calibrate", "--device", device]) == 2
    assert f"device must be cpu, got '{device}'; PyTorch finds no GPU" in capsys.readouterr().err


def test_calibrate_rejects_threads_for_a_gpu(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert main(["calibrate", "--device", "cuda", "--threads", "2"]) == 2
    assert "threads must be none for a GPU" in capsys.readouterr().err
