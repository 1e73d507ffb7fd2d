"""Tests that fused kernels are chosen only after they pass the self-test, and that all of its failures are handled.

Triton's interpreter on the CPU replaces a GPU; the plan, the subprocess of the self-test, its time limit, the file of
results and the warnings are as on a GPU.
"""

import contextlib
import json
import multiprocessing
import os
import re
import sys
import threading
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from interactions import assert_all_close, make_inputs, run
from torch._subclasses.fake_tensor import FakeTensorMode

import lambdanets as ln
from lambdanets.errors import KernelWarning
from lambdanets.ops import definition, position_interaction
from lambdanets.ops.position import fused, plan
from lambdanets.ops.position.fused import device, launches, self_test_process, verification
from lambdanets.ops.position.fused.device import KernelDevice, kernel_device
from lambdanets.ops.position.problem import make_problem

pytest.importorskip("triton", reason="the kernels need Triton")

HERE = Path(__file__).parent
GRID, SIDES = (7, 7), (13, 13)  # sizes for which the plan chooses the kernels


def make_kernel_inputs(dtype=torch.float32, batch=2):
    return make_inputs(GRID, SIDES, batch=batch, heads=4, k=16, v=16, dtype=dtype)


def plan_for(dtype=torch.float32, **options):
    return ln.plan(*make_kernel_inputs(dtype), GRID, **options)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Set an empty cache folder, and interpret the kernels."""
    monkeypatch.setenv("LAMBDANETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(fused, "_EXCLUDED", {})
    verification.clear()
    plan._make_plan.cache_clear()
    yield tmp_path / "cache"
    verification.clear()
    verification.versions.cache_clear()
    plan._make_plan.cache_clear()


@pytest.fixture
def inject_fault(cache, monkeypatch):
    """Return a function that injects a fault into the kernels of the self-test."""

    def inject(fault):
        monkeypatch.setattr(self_test_process, "SELF_TEST", (sys.executable, str(HERE / "faulty_kernels.py"), fault))

    return inject


@pytest.fixture
def self_test_runs(cache, tmp_path, monkeypatch):
    """Replace the self-test by one that always passes; return a function that returns the dtypes of its runs."""
    log_file = tmp_path / "runs"
    command = (sys.executable, str(HERE / "counted_self_test.py"), str(log_file))
    monkeypatch.setattr(self_test_process, "SELF_TEST", command)
    return lambda: log_file.read_text().split() if log_file.exists() else []


@contextlib.contextmanager
def another_process(monkeypatch):
    """Simulate a later process that has only the cache folder; fail if it runs the self-test."""
    verification.clear()
    monkeypatch.setattr(self_test_process, "SELF_TEST", (sys.executable, "-c", "raise SystemExit('tested again')"))
    with warnings.catch_warnings():
        warnings.simplefilter("error", KernelWarning)
        yield


@pytest.mark.slow
def test_kernels_are_chosen_after_passing_the_self_test(inject_fault, cache, monkeypatch):
    inject_fault("none")
    kernel_plan = plan_for(torch.bfloat16)
    assert (kernel_plan.chosen, kernel_plan.backward, kernel_plan.excluded) == ("fused", "fused", {})
    (stored,) = json.loads((cache / "kernels.json").read_text()).values()
    assert stored["bfloat16"].keys() == {*verification.kernels_for_dtype(torch.bfloat16)}
    assert all(0 < result["error"] <= result["allowed"] for result in stored["bfloat16"].values())
    with another_process(monkeypatch):
        assert plan_for(torch.bfloat16).chosen == "fused"


@pytest.mark.slow
def test_raising_kernel_is_replaced_with_one_warning(inject_fault, monkeypatch):
    inject_fault("raises")
    with pytest.warns(KernelWarning) as warned:
        kernel_plan = plan_for()
    (warning,) = warned
    versions = f"torch {torch.__version__}", "triton ", "lambdanets ", "Triton's interpreter, compute capability 9.0"
    reason = "forward_query_order raises RuntimeError: out of resource: shared memory, Required: 303104"
    assert all(text in str(warning.message) for text in (*versions, "float32", reason))
    for process in contextlib.nullcontext(), another_process(monkeypatch):
        with process:
            kernel_plan = plan_for()
            assert kernel_plan.chosen != "fused"
            assert kernel_plan.backward == "fused"  # its kernels passed
            assert reason in str(kernel_plan)
            inputs = make_kernel_inputs()
            result = position_interaction(*inputs, GRID)
            exact = definition.position_interaction(*(x.double() for x in inputs), GRID)
            assert_all_close([result.double()], [exact], 1e-5)


@pytest.mark.slow
def test_kernels_wrong_in_one_dtype_are_used_in_others(inject_fault):
    inject_fault("wrong_in_bfloat16")
    wrong_element = r"forward_query_order is wrong: max relative error 0\.\d+, tolerance 0\.06"
    unwritten_element = "grad_queries is wrong: max relative error nan"
    with pytest.warns(KernelWarning, match=f"for bfloat16: .*{wrong_element}.*{unwritten_element}"):
        results = verification.get_results(kernel_device("cpu"), torch.bfloat16)
    assert {name for name, result in results.items() if result.reason} == {"forward_query_order", "grad_queries"}
    assert plan_for(torch.float32).chosen == "fused"


@pytest.mark.slow
def test_hanging_kernel_is_killed_at_the_time_limit(self_test_runs, inject_fault, cache, monkeypatch):
    healthy = self_test_process.SELF_TEST
    inject_fault("hangs")
    cache.mkdir()
    monkeypatch.setenv("LAMBDANETS_KERNEL_TEST_SECONDS", "1")
    with pytest.warns(KernelWarning, match="forward_query_order took longer than 1 s to compile and test"):
        kernel_plan = plan_for()
    assert "fused" not in (kernel_plan.chosen, kernel_plan.backward)
    with pytest.raises(ProcessLookupError):
        os.kill(int((cache / "pid").read_text()), 0)
    # the next process tests the remaining kernels, but not the one that hung
    monkeypatch.setattr(self_test_process, "SELF_TEST", healthy)
    verification.clear()
    kernel_plan = plan_for()
    assert (kernel_plan.chosen == "fused", kernel_plan.backward) == (False, "fused")
    assert "took longer than 1 s" in str(kernel_plan)


@pytest.mark.slow
def test_crash_of_the_self_test_disables_only_the_current_kernel(inject_fault):
    inject_fault("crashes")
    with pytest.warns(KernelWarning, match="grad_queries ended the self-test's process, exit code -11"):
        kernel_plan = plan_for()
    assert kernel_plan.chosen == "fused"
    assert kernel_plan.backward != "fused"
    results = verification.get_results(kernel_device("cpu"), torch.float32)
    assert [name for name, result in results.items() if result.reason] == ["grad_queries"]


def test_untested_kernels_are_tested_by_the_next_process(self_test_runs, cache, monkeypatch):
    command = self_test_process.SELF_TEST
    monkeypatch.setattr(self_test_process, "SELF_TEST", (sys.executable, "-c", "raise SystemExit('GPU is busy')"))
    with pytest.warns(KernelWarning, match=r"could not be tested.*GPU is busy.*the next process tests again") as warned:
        assert plan_for().chosen != "fused"
    assert len(warned) == 1
    assert plan_for().chosen != "fused"
    assert "GPU is busy" in str(plan_for())
    monkeypatch.setattr(self_test_process, "SELF_TEST", command)
    verification.clear()
    assert plan_for().chosen == "fused"


@pytest.mark.slow
def test_self_test_on_another_device_gives_no_result(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    gpu = KernelDevice("cuda:0", "a GPU that nobody has", (9, 0))
    tested, untested = self_test_process.run_self_test(gpu, torch.float32, ["grad_queries"])
    assert tested == {}
    assert re.search(
        "could not be tested: .*cuda:0 must be a GPU that nobody has",
        untested["grad_queries"].reason,
    )


def test_fused_is_not_chosen_if_the_self_test_cannot_start(cache, monkeypatch):
    monkeypatch.setattr(self_test_process, "SELF_TEST", (str(cache / "no python"),))
    with pytest.warns(KernelWarning, match="could not be tested: .*no python does not start"):
        assert plan_for().chosen != "fused"


CORRUPT_FILES = ["", "{", "[]", '{"%s": 3}', '{"%s": {"float32": []}}', '{"%s": {"float32": {"grad_queries": {}}}}']
CORRUPT_FILES += ['{"%s": {"float32": {"grad_queries": {"reason": 1}, "grad_values": 2}}}', "\udc80"]


@pytest.mark.parametrize("text", CORRUPT_FILES)
def test_corrupt_result_file_triggers_a_new_self_test(text, self_test_runs, cache):
    cache.mkdir()
    key = verification.describe(kernel_device("cpu"))
    (cache / "kernels.json").write_bytes(text.replace("%s", key).encode("utf-8", "surrogateescape"))
    assert plan_for().chosen == "fused"
    assert self_test_runs() == ["float32"]
    assert json.loads((cache / "kernels.json").read_text())[key]["float32"].keys() >= {"grad_queries"}
    verification.clear()
    assert plan_for().chosen == "fused"
    assert self_test_runs() == ["float32"]


@pytest.mark.parametrize("changed", ["torch", "lambdanets"])
def test_new_version_triggers_a_new_self_test(changed, self_test_runs, cache, monkeypatch):
    assert plan_for().chosen == "fused"
    monkeypatch.setattr(sys.modules[changed], "__version__", "99.0")
    verification.versions.cache_clear()
    verification.clear()
    assert plan_for().chosen == "fused"
    assert self_test_runs() == ["float32", "float32"]
    assert len(json.loads((cache / "kernels.json").read_text())) == 2


def test_results_are_used_in_process_if_the_cache_is_not_writable(self_test_runs, monkeypatch):
    monkeypatch.setenv("LAMBDANETS_CACHE", os.devnull)
    for _ in range(2):
        assert plan_for().chosen == "fused"
    assert self_test_runs() == ["float32"]


def test_results_are_used_in_process_without_a_home_folder(self_test_runs, monkeypatch):
    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("LAMBDANETS_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    for _ in range(2):
        assert plan_for().chosen == "fused"
    assert self_test_runs() == ["float32"]


def test_concurrent_threads_run_one_self_test(self_test_runs):
    chosen = []
    threads = [threading.Thread(target=lambda: chosen.append(plan_for().chosen)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (chosen, self_test_runs()) == (["fused"] * 4, ["float32"])


@pytest.mark.forks
def test_concurrent_processes_run_one_self_test(self_test_runs):
    def verify():
        results = verification.get_results(kernel_device("cpu"), torch.float32)
        sys.exit(any(result.reason for result in results.values()))

    processes = [multiprocessing.get_context("fork").Process(target=verify) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=120)
    assert [process.exitcode for process in processes] == [0, 0]
    assert self_test_runs() == ["float32"]


def test_explicit_fused_algorithm_needs_no_self_test(self_test_runs):
    kernel_plan = plan_for(algorithm="fused")
    assert (kernel_plan.chosen, kernel_plan.backward) == ("fused", "fused")
    assert self_test_runs() == []


def test_self_test_does_not_run_if_another_algorithm_is_faster(self_test_runs):
    assert plan_for(torch.float64).chosen != "fused"
    assert self_test_runs() == []


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "2 minutes", ""])
def test_rejects_invalid_time_limits(text, cache, monkeypatch):
    monkeypatch.setenv("LAMBDANETS_KERNEL_TEST_SECONDS", text)
    message = f"LAMBDANETS_KERNEL_TEST_SECONDS must be a positive number of seconds, got {text!r}"
    with pytest.raises(ValueError, match=message):
        plan_for()


@pytest.fixture
def failing_launches(self_test_runs, monkeypatch):
    """Return a function that makes all launches raise an error, and returns a list for the names of the launches."""
    names = []

    def raise_on_launch(error):
        def launch(name):
            def fails(*arguments):
                names.append(name)
                raise error

            return fails

        for name in ("forward", "grad_queries", "grad_values", "grad_table"):
            monkeypatch.setattr(launches, name, launch(name))
        return names

    return raise_on_launch


def test_failed_launch_falls_back_for_that_problem_only(failing_launches):
    names = failing_launches(RuntimeError("out of resource: shared memory"))
    inputs = make_kernel_inputs()
    expected = run(inputs, GRID, algorithm="query_order")
    with pytest.warns(KernelWarning, match=r"out of resource.*batch=2.*|batch=2.*out of resource") as warned:
        results = run(inputs, GRID)
    assert len(warned) == 2  # forward and backward
    assert_all_close(results, expected, 1e-5)
    assert names == ["forward", "grad_queries"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_all_close(run(inputs, GRID), expected, 1e-5)
        assert "the forward pass raised RuntimeError: out of resource" in str(ln.plan(*inputs, GRID))
    assert len(names) == 2
    with pytest.warns(KernelWarning, match="batch=3"):
        position_interaction(*make_kernel_inputs(batch=3), GRID)


def test_failed_launch_falls_back_in_a_compiled_graph(failing_launches):
    failing_launches(RuntimeError("out of resource"))
    queries, table, values = make_kernel_inputs()
    with pytest.warns(KernelWarning, match="out of resource"):
        result = torch.ops.lambdanets.position_interaction(
            queries, table[..., None], values[..., None], None, GRID, 1, False, "auto"
        )
    assert_all_close([result], [position_interaction(queries, table, values, GRID, algorithm="mixed")], 1e-5)


def test_explicit_fused_algorithm_is_never_replaced(failing_launches):
    failing_launches(RuntimeError("out of resource"))
    with pytest.raises(RuntimeError, match="out of resource"):
        position_interaction(*make_kernel_inputs(), GRID, algorithm="fused")


def test_out_of_memory_does_not_disable_a_kernel(failing_launches):
    failing_launches(torch.OutOfMemoryError("CUDA out of memory"))
    with pytest.raises(torch.OutOfMemoryError):
        position_interaction(*make_kernel_inputs(), GRID)
    assert plan_for().chosen == "fused"


def test_problems_and_kernel_devices_have_the_index_of_the_gpu(monkeypatch):
    gpus = {0: (9, "H100"), 1: (7, "T4")}

    def properties(index):
        major, name = gpus[index]
        return SimpleNamespace(major=major, minor=0, name=name)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    monkeypatch.setattr(torch.version, "hip", None)
    device._cuda_device.cache_clear()
    assert device.kernel_device("cuda:0") == device.kernel_device("cuda") == KernelDevice("cuda:0", "H100", (9, 0))
    assert device.kernel_device("cuda:1") is None
    device._cuda_device.cache_clear()
    monkeypatch.undo()  # fake tensors would initialize a GPU that is said to be available
    with FakeTensorMode():
        problems = [
            make_problem(
                *(torch.empty(shape, device=gpu) for shape in ((1, 1, 4, 2), (3, 3, 2, 1), (1, 4, 2, 1))), (2, 2), False
            )
            for gpu in ("cuda:0", "cuda:1")
        ]
    assert [problem.device for problem in problems] == ["cuda:0", "cuda:1"]
