import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from interpreted_fused import CASES

from lambdanets.ops.position import fused
from lambdanets.ops.position.algorithm import Problem
from lambdanets.ops.position.fused import Fused
from scripts import load_script

# Two examples, four heads, depths of queries and values of 16, a scope of 5 x 5.
PROBLEM = Problem(2, 4, (8, 8), 16, 16, 1, (2, 2), (2, 2), causal=False, dtype=torch.bfloat16, device="cuda")
KERNELS = load_script("experiments/kernels.py")
# Each kernel with one of: the least and the most heads, the largest value depth and a depth of 24, and batch 1.
CONFIGURATIONS = [
    configuration
    for i, (architecture, heads, depth, batch) in enumerate(((80, 1, 128, 1), (90, 4, 64, 128), (120, 16, 24, 128)))
    for configuration in KERNELS.configurations([architecture], [heads], [depth], ["bfloat16"], [batch])
    if (i + [*fused.KERNELS].index(configuration.kernel)) % 3 == 1
]


@pytest.fixture(scope="module")
def interpreted():
    """Results of `interpreted_fused.py`."""
    pytest.importorskip("triton", reason="the kernels need Triton")
    script = Path(__file__).parent / "interpreted_fused.py"
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=False)
    if "only 0-dimensional arrays can be converted" in run.stderr:
        pytest.skip("this version of Triton's interpreter does not support this version of NumPy")
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


@pytest.mark.parametrize("case", CASES)
def test_kernels_equal_the_definition_if_inputs_are_surrounded_by_nan(case, interpreted):
    # The intermediate result between two products and the final result are rounded by half an epsilon each.
    allowed = torch.finfo(CASES[case][0]).eps * (1 if CASES[case][0] == torch.float16 else 2)
    assert all(error <= allowed for error in interpreted["errors"][case].values()), interpreted["errors"][case]


def test_kernels_are_chosen_after_they_were_right(interpreted):
    auto = interpreted["auto"]
    assert auto["algorithm"] == "fused"
    assert auto["error"] < 1e-6


def test_gradients_of_float16_inputs_may_exceed_the_range_of_float16(interpreted):
    assert interpreted["large table gradient"] <= torch.finfo(torch.float16).eps


def test_inputs_may_have_more_than_2_to_the_31_elements(interpreted):
    for dtype, errors in interpreted["large strides"].items():
        assert all(error <= 2 * torch.finfo(getattr(torch, dtype)).eps for error in errors.values()), errors


@pytest.mark.parametrize("configuration", CONFIGURATIONS, ids=str)
def test_compiled_kernels_fit_the_device_and_prefetch(configuration, tmp_path, monkeypatch):
    pytest.importorskip("triton", reason="the kernels need Triton")
    if os.environ.get("TRITON_INTERPRET") == "1":
        pytest.skip("Triton interprets its kernels instead of compiling them")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    reasons, _ = KERNELS.examine(configuration)
    assert reasons == []


@pytest.mark.parametrize("change", [{"grid": (4, 4, 4)}, {"heads": 17}, {"dtype": torch.float64}, {"device": "cpu"}])
def test_fused_says_which_problems_it_does_not_support(change, monkeypatch):
    monkeypatch.setattr(fused, "gpu_capability", lambda device: (9, 0) if device == "cuda" else None)
    assert Fused.unsupported(PROBLEM) == ""
    assert Fused.unsupported(PROBLEM._replace(**change)) != ""


def test_fused_needs_triton(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(fused, "TRITON_INSTALLED", False)
    assert "with Triton installed" in Fused.unsupported(PROBLEM)
