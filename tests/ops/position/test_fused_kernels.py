import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from interpreted_fused import CASES

from lambdanets.ops.position import fused
from lambdanets.ops.position.fused import device, launches
from lambdanets.ops.position.fused.device import KernelDevice
from lambdanets.ops.position.fused.tiles import halved, table_step, tables, tile_and_step, tiles_of
from lambdanets.ops.position.problem import Problem
from lambdanets.ops.position.rates import built_in

PROBLEM = Problem(
    batch=2,
    heads=4,
    grid=(8, 8),
    query_depth=16,
    value_depth=16,
    intra_depth=1,
    before=(2, 2),
    after=(2, 2),
    causal=False,
    dtype=torch.bfloat16,
    device="cuda",
)
GPU = KernelDevice("cuda:0", "a GPU", (9, 0))
RATES = built_in("cuda", 1)
ARCHITECTURES = [80, 90]
MOST_STACK = 8  # bytes a thread; with Triton 3.8 two of the tiles keep an address there, with 3.6 and 3.9 none does
CONFIGURATIONS = {
    f"{kernel}-{architecture}-{'x'.join(str(size) for size in vars(tiles).values())}": (kernel, architecture, tiles)
    for architecture in ARCHITECTURES
    for kernel, rows in tables(architecture // 10, 2).items()
    for whole in rows
    for tiles in dict.fromkeys((whole, halved(kernel, whole)))
}
# The widest needs the most registers, and with half the warps as many a thread; the narrowest has the most rows a warp.
EXTREMES = [
    f"{kernel}-{architecture}-{'x'.join(str(size) for size in vars(tiles).values())}"
    for architecture in ARCHITECTURES
    for kernel, rows in tables(architecture // 10, 2).items()
    for tiles in dict.fromkeys((rows[0], halved(kernel, rows[-1]), rows[-1]))
]


@pytest.fixture(scope="module")
def interpreted():
    """Relative errors of the interpreted kernels, by case."""
    pytest.importorskip("triton", reason="the kernels need Triton")
    script = Path(__file__).parent / "interpreted_fused.py"
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=False)
    if "only 0-dimensional arrays can be converted" in run.stderr:
        pytest.skip("this version of Triton's interpreter does not know this version of NumPy")
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


@pytest.mark.parametrize("case", CASES)
def test_results_and_gradients_equal_the_definition_whatever_lies_around_the_inputs(case, interpreted):
    # One factor between two products and the result are rounded to the dtype: half an epsilon each at most.
    allowed = torch.finfo(CASES[case][0]).eps * (1 if CASES[case][0] == torch.float16 else 2)
    assert all(error <= allowed for error in interpreted[case].values()), interpreted[case]


def compiled(kernel, architecture, tiles, folder, monkeypatch):
    """Triton's code for a kernel, as it is launched for 4 heads and aligned bfloat16 tensors."""
    triton = pytest.importorskip("triton", reason="the kernels need Triton")
    if os.environ.get("TRITON_INTERPRET") == "1":
        pytest.skip("Triton interprets its kernels instead of compiling them")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from lambdanets.ops.position.fused import forward_kernels, gradient_kernels, table_kernels

    modules = gradient_kernels, table_kernels, forward_kernels
    function = next(getattr(module, kernel) for module in modules if hasattr(module, kernel))
    constants = launches.constants_of(kernel, tiles, 4)
    options = {name: constants.pop(name) for name in ("num_warps", "num_stages", "enable_fp_fusion")}
    signature, attributes = {}, {}
    for i, name in enumerate(function.arg_names):
        if name == "q_k_stride":  # dense queries, as Triton sees a 1
            constants[name] = 1
        if name in constants:
            signature[name] = "constexpr"
        elif name.endswith("_ptr"):
            signature[name] = "*fp32" if (kernel, name) == ("table_parts", "out_ptr") else "*bf16"
        else:
            signature[name] = "i32"
        if name.endswith("_ptr") or (name.endswith(("_stride", "_depth")) and name not in constants):
            attributes[(i,)] = [["tt.divisibility", 16]]
    monkeypatch.setenv("TRITON_CACHE_DIR", str(folder))
    source = ASTSource(function, signature, constants, attributes)
    return triton.compile(source, target=GPUTarget("cuda", architecture, 32), options=options)


def check_configuration(name, folder, monkeypatch):
    kernel, architecture, tiles = CONFIGURATIONS[name]
    code = compiled(kernel, architecture, tiles, folder, monkeypatch)
    wgmma = architecture == 90 and kernel == "forward_lambda_order"
    assert ("wgmma.mma_async" in code.asm["ptx"]) == wgmma
    assert ("mma.sync" in code.asm["ptx"]) != wgmma
    assert "cp.async" in code.asm["ptx"]
    # What every device of 8.x has, and the 9.0.
    assert code.metadata.shared <= (227 << 10 if architecture == 90 else 99 << 10)

    from triton import knobs

    cubin = folder / "kernel.cubin"
    cubin.write_bytes(code.asm["cubin"])
    report = subprocess.run(
        [knobs.nvidia.cuobjdump.path, "-res-usage", cubin], capture_output=True, text=True, check=True
    )
    (stack,) = re.findall(r"STACK:(\d+)\b", report.stdout + report.stderr)
    assert int(stack) <= MOST_STACK, report.stdout + report.stderr


@pytest.mark.parametrize("name", EXTREMES)
def test_every_kernel_compiles_to_tensor_core_products_without_spilling_registers(name, tmp_path, monkeypatch):
    check_configuration(name, tmp_path, monkeypatch)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", [name for name in CONFIGURATIONS if name not in EXTREMES])
def test_every_configuration_compiles_to_tensor_core_products_without_spilling_registers(name, tmp_path, monkeypatch):
    check_configuration(name, tmp_path, monkeypatch)


@pytest.mark.parametrize(
    "change",
    [
        {"grid": (4, 4, 4), "before": (1, 1, 1), "after": (1, 1, 1)},
        {"heads": 17},
        {"dtype": torch.float64},
        {"device": "cpu"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_problem_beyond_the_limits_has_no_cost(change, monkeypatch):
    monkeypatch.setattr(fused, "kernel_device", lambda device: GPU if device == "cuda" else None)
    assert fused.cost(PROBLEM, RATES) is not None
    assert fused.cost(replace(PROBLEM, **change), RATES) is None


def test_without_triton_there_is_no_cost(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert fused.cost(PROBLEM, RATES) is not None
    monkeypatch.setattr(device, "TRITON_INSTALLED", False)
    assert fused.cost(PROBLEM, RATES) is None


def test_the_cost_counts_the_pairs_within_the_scope_alone(monkeypatch):
    monkeypatch.setattr(fused, "kernel_device", lambda device: GPU)
    # 8 positions, 2 to either side: 3 + 4 + 5 + 5 + 5 + 5 + 4 + 3 = 34 pairs an axis.
    assert fused.cost(PROBLEM, RATES).operations == 2 * 2 * 34 * 34 * 4 * (16 + 16)


def test_workspace_of_the_backward_pass_counts_the_parts_of_the_table_gradient(monkeypatch):
    monkeypatch.setattr(fused, "kernel_device", lambda device: GPU)
    whole = replace(PROBLEM, batch=1, grid=(256, 256), before=(255, 255), after=(255, 255), value_depth=64)
    forward, backward = fused.cost(whole, RATES).workspaces
    assert forward < 64 << 20
    assert backward > 1 << 30  # 2,044 MiB of parts in float32, of 64 offsets and columns for 8 queries each
    assert sum(fused.cost(replace(whole, batch=8), RATES).workspaces) == forward + backward  # more examples, same parts


@pytest.mark.parametrize(
    ("grid", "reach", "expected"),
    [
        ((1, 50), (0, 50), (1, 16, 1, 32)),  # a line: nothing in rows
        ((56, 56), (11, 11), (2, 8, 8, 4)),  # 24 rows, at most 30 columns: 3 steps by 8, with columns 2 to spare
        ((7, 7), (6, 6), (2, 8, 4, 8)),
    ],
)
def test_tiles_take_the_shape_that_needs_the_fewest_steps(grid, reach, expected):
    assert tile_and_step(grid, reach, 16, 32) == expected


def test_the_table_gradient_takes_more_rows_where_the_map_is_narrow():
    assert table_step((1, 50), (0, 49), 8, 64) == (1, 64)
    assert table_step((7, 7), (6, 6), 8, 64)[1] == 8


def test_a_batch_or_a_map_that_cannot_fill_the_device_takes_half_the_rows_with_half_the_warps():
    def rows_and_warps(batch, positions):
        tiles = tiles_of("forward_query_order", 9, 2, batch, 4, positions, 16)
        return tiles.rows, tiles.warps

    assert rows_and_warps(128, 56 * 56) == (32, 8)
    assert rows_and_warps(4, 128 * 128) == (16, 4)
    assert rows_and_warps(128, 7 * 7) == (16, 4)
