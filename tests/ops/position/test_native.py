"""The native engine: every instruction set, any number of threads, forks, DataLoader workers, missing libraries."""

import itertools
import math
from pathlib import Path

import interactions
import pytest
import torch
from interactions import make_inputs, needs_native
from numpy.random import bit_generator

import lambdanets as ln
from lambdanets.errors import KernelWarning
from lambdanets.ops.position import choose, native
from lambdanets.ops.position.native import FOLDER, Library, load_library
from lambdanets.ops.position.position_term import compute_position_term

pytestmark = needs_native
CAPABILITIES = {"DEFAULT": ("x86-64-v2", "aarch64"), "AVX2": ("x86-64-v3",), "AVX512": ("x86-64-v4",)}
# Maps, tiles of a large map, a sequence as a map, tiles of one, a volume; odd depths and incomplete vectors.
CASES = {
    "map": ((14, 11), (9, 7), {}),
    "large map": ((150, 131), (7, 5), {"batch": 1}),
    "column": ((70, 1), (139, 1), {}),
    "tiles of a sequence": ((1500,), (9,), {}),
    "volume": ((3, 5, 6), (3, 3, 5), {"u": 2}),
    "volume with slices apart": ((3, 4, 5), (1, 3, 3), {}),
    "one position": ((1, 1), (1, 1), {}),
}
cases = pytest.mark.parametrize(("grid", "sides", "options"), CASES.values(), ids=CASES.keys())


def supported_libraries():
    """Those for this processor: of the instruction set that PyTorch uses, and of smaller ones."""
    used, capabilities = torch.backends.cpu.get_cpu_capability(), list(CAPABILITIES)
    rank = capabilities.index(used) if used in capabilities else 0
    names = {name for capability in capabilities[: rank + 1] for name in CAPABILITIES[capability]}
    return [path for path in sorted(FOLDER.iterdir()) if path.stem in names]


def run(algorithm, grid, sides, *, dtype=torch.float32, causal=False, **options):
    """Return the output and all gradients."""
    inputs = [x.to(dtype) for x in make_inputs(grid, sides, k=5, v=19, **options)]
    return interactions.run(inputs, grid, causal=causal, algorithm=algorithm)


def test_library_is_the_nearest_to_the_instruction_set_of_pytorch(monkeypatch, tmp_path):
    for level in (2, 3, 4):  # an installation for x86-64
        (tmp_path / f"x86-64-v{level}.so").touch()
    monkeypatch.setattr(native, "FOLDER", tmp_path)
    monkeypatch.setattr(native, "Library", lambda path: path.stem)
    monkeypatch.setattr("platform.machine", lambda: "ARM64")  # of Python for x86-64 on Windows for ARM
    unknown = {"NO AVX": "x86-64-v2", "AVX10.2": "x86-64-v3", "AVX512_FP16": "x86-64-v4", "X": "x86-64-v2"}
    known = {capability: names[0] for capability, names in CAPABILITIES.items()}
    for capability, name in (known | unknown).items():
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda capability=capability: capability)
        assert load_library.__wrapped__() == name


@cases
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_library_equals_the_definition(grid, sides, options, dtype, monkeypatch):
    expected = run("query_order", grid, sides, dtype=torch.float64, **options)
    plain = run("query_order", grid, sides, dtype=dtype, **options)
    for path in supported_libraries():
        monkeypatch.setattr(native, "load_library", lambda path=path: Library(path))
        choose.choose.cache_clear()
        actual = run("native", grid, sides, dtype=dtype, **options)
        for result, reference, exact in zip(actual, plain, expected, strict=True):
            allowed = 3 * (reference - exact).norm() + 8 * torch.finfo(dtype).eps * exact.norm()
            assert (result - exact).norm() <= allowed, path.name


@cases
def test_results_have_the_same_bits_for_any_number_of_threads(grid, sides, options, monkeypatch):
    results = []
    for streamed_bytes, count in itertools.product((native._STREAMED_BYTES, 0), (1, 2, 3, 8)):
        monkeypatch.setattr(native, "_STREAMED_BYTES", streamed_bytes)  # maps above are written past the cache
        choose.choose.cache_clear()
        torch.set_num_threads(count)
        results.append(run("native", grid, sides, **options))
    for others in results[1:]:
        assert all(torch.equal(x, y) for x, y in zip(results[0], others, strict=True))


@pytest.mark.parametrize(
    ("grid", "sides"), [((2048,), (4095,)), ((48, 40), (95, 79)), ((1, 512), (1, 1023)), ((4, 9, 9), (7, 17, 17))]
)
def test_first_causal_sums_are_as_exact_as_direct_sums(grid, sides):
    options = {"batch": 1, "causal": True}
    exact = run("query_order", grid, sides, dtype=torch.float64, **options)
    direct, actual = (run(algorithm, grid, sides, **options) for algorithm in ("query_order", "native"))
    n = len(exact[0][0, 0])
    for position in (0, 1, 5, 40, n // 3):
        first = slice(position, position + max(1, position // 4))
        last = slice(n - first.stop, n - first.start)
        # Outputs and gradients of queries have the fewest terms at first, those of values at last.
        for i, rows in ((0, first), (1, first), (3, last)):
            expected = exact[i][..., rows, :]
            error, budget = ((x[i][..., rows, :] - expected).norm() / expected.norm() for x in (actual, direct))
            assert error <= 4 * budget + 2e-6, (i, position)


@pytest.mark.parametrize("content", [b"not a library", Path(bit_generator.__file__).read_bytes()])
def test_without_a_library_other_algorithms_are_used(content, monkeypatch, tmp_path):
    expected = run("query_order", (14, 11), (9, 7))
    (tmp_path / f"{load_library().name}.so").write_bytes(content)
    monkeypatch.setattr(native, "FOLDER", tmp_path)
    with pytest.warns(KernelWarning, match=r"\.so is not used"):
        assert load_library.__wrapped__() is None
    monkeypatch.setattr(native, "load_library", lambda: None)
    choose.choose.cache_clear()
    actual = run("auto", (14, 11), (9, 7))
    with pytest.raises(ValueError, match="'native' has no compiled library"):
        run("native", (14, 11), (9, 7))
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


def test_working_memory_of_a_large_map_is_bounded():
    shapes = (1, 4, 2**20, 16), (2047, 2047, 16), (1, 2**20, 16)
    plan = ln.plan(*(torch.empty(shape, device="meta") for shape in shapes), (1024, 1024))
    assert plan.costs["native"].workspace_bytes < 3 << 30


@cases
def test_channels_may_be_maps(grid, sides, options):
    factors = make_inputs(grid, sides, k=5, v=19, dtype=torch.float32, **options)
    grad_output = torch.randn(*factors[0].shape[:3], 19, generator=torch.Generator().manual_seed(1))
    results = []
    for channels_first in (False, True):
        inputs = [x.clone().requires_grad_() for x in factors]
        output = compute_position_term(*inputs, None, grid, 1, False, "native", channels_first)
        assert output.mT.is_contiguous() == channels_first or math.prod(grid) == 1
        g = grad_output.mT.contiguous().mT if channels_first else grad_output
        results.append([output, *torch.autograd.grad(output, inputs, g)])
    assert all(torch.equal(x, y) for x, y in zip(*results, strict=True))


@cases
def test_every_element_of_a_result_is_written(grid, sides, options):
    expected = run("native", grid, sides, **options)
    torch.use_deterministic_algorithms(True)  # fills new tensors with NaN
    try:
        actual = run("native", grid, sides, **options)
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(x, y) for x, y in zip(actual, expected, strict=True))
