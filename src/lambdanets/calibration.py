"""Measures the throughput constants of a device for the planner, and caches them."""

import contextlib
import json
import math
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict

import torch

from lambdanets.errors import InputError
from lambdanets.files import atomic_write
from lambdanets.ops.position.rates import Rates, calibration_file, calibration_key

# Measures the speedup of bfloat16 over float32 products. In a subprocess: SIGILL kills it on a machine that advertises
# instructions (AMX) that it does not permit.
_GAIN_SCRIPT = """
import sys, torch
from lambdanets.calibration import seconds_of
torch.set_num_threads(int(sys.argv[1]))
def product(dtype):
    x = torch.randn(1024, 1024).to(dtype)
    return seconds_of(lambda: x @ x, "cpu")
print(product(torch.float32) / product(torch.bfloat16))
"""
# The gain if bfloat16 products are not supported.
_UNSUPPORTED_GAIN = 0.01


def calibrate(device: str = "cpu", report: Callable[[str], None] | None = None) -> Rates:
    """Measure the rates of a device: "cpu", with torch's current number of threads, in about a second; "cuda" or
    "cuda:1", in minutes.

    The rates are stored in the user's cache folder (or LAMBDANETS_CACHE), and used by later processes with the same
    number of threads and version of PyTorch for the choice of algorithms and for `lambdanets.plan`. This process
    keeps its rates.

    On a GPU it also repeats the self-test of all fused kernels, benchmarks them and the other algorithms, and stores
    correction factors of the predictions; `report` is called with lines of text about these.
    Raises ValueError for an unknown device, OSError if the folder is not writable.
    """
    if device != "cpu" and (re.fullmatch(r"cuda(:\d+)?", device) is None or not torch.cuda.is_available()):
        raise InputError(f"device must be 'cpu', or 'cuda' if there is a GPU, got {device!r}")
    if device != "cpu" and (torch.device(device).index or 0) >= torch.cuda.device_count():
        raise InputError(f"device must be one of {torch.cuda.device_count()} GPUs, got {device!r}")
    path = calibration_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    threads = torch.get_num_threads() if device == "cpu" else 1
    corrections: dict[str, object] = {}
    with torch.no_grad(), contextlib.nullcontext() if device == "cpu" else torch.cuda.device(device):
        rates = _measure(device, threads)
        if device != "cpu":
            from lambdanets.kernel_calibration import calibrate_kernels

            corrections["corrections"] = calibrate_kernels(device, rates, report or (lambda line: None))
    found = {}
    with contextlib.suppress(OSError, ValueError):
        found = json.loads(path.read_text())
    found[calibration_key(device, threads)] = asdict(rates) | corrections
    atomic_write(path, json.dumps(found, indent=1).encode())
    return rates


def seconds_of(function: Callable[[], object], device: str, runs: int = 15) -> float:
    """The median time of a call in seconds, after two warm-up calls."""
    if device != "cpu":
        return _seconds_on_gpu(function, runs)
    times = []
    for run in range(runs + 2):
        start = time.perf_counter()
        function()
        if run > 1:
            times.append(time.perf_counter() - start)
    return statistics.median(times)


def _seconds_on_gpu(function: Callable[[], object], runs: int) -> float:
    """Timed by CUDA events around several milliseconds of calls: synchronizing after each would add about 10 us."""
    for _ in range(2):
        function()
    torch.cuda.synchronize()
    start = time.perf_counter()
    function()
    torch.cuda.synchronize()
    calls = max(1, min(500, math.ceil(5e-3 / (time.perf_counter() - start))))
    times = []
    for _ in range(runs):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(calls):
            function()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3 / calls)
    return statistics.median(times)


def _measure(device: str, threads: int) -> Rates:
    # a GPU needs larger problems to be saturated, and larger than its L2 cache of up to 126 MB
    side, scale = (1024, 1) if device == "cpu" else (8192, 32)
    large = torch.randn(side, side, device=device)
    operations = 2 * side**3 / seconds_of(lambda: large @ large, device)
    # products of the size of a tile are slower by (1 + s / 32) (1 + s / 16) (1 + s / 256), s the half side
    count = 256 * scale
    first, second = torch.randn(count, 32, 16, device=device), torch.randn(count, 16, 256, device=device)
    slowdown = seconds_of(lambda: torch.bmm(first, second), device) * operations / (2 * count * 32 * 16 * 256)
    maps = torch.randn(8 * scale, 784, 64, 4, device=device)
    rows = torch.empty(784, 4, 8 * scale, 64, device=device)
    copied = 2 * maps.nbytes / seconds_of(lambda: rows.copy_(maps.permute(1, 3, 0, 2)), device)
    small = torch.zeros(4, 4, device=device)
    call = seconds_of(lambda: [small.narrow(0, 0, 2).add_(1) for _ in range(100)], device) / 100
    waves = torch.randn(16 * scale, 96, 96, device=device)
    points = waves.numel() * torch.log2(torch.tensor(96.0**2)).item()
    transformed = points / seconds_of(lambda: torch.fft.irfft2(torch.fft.rfft2(waves)), device) * 2
    gain = _bfloat16_gain(threads) if device == "cpu" else _gain_on_gpu(large)
    return Rates(operations, _half_side(slowdown), copied, call, transformed, gain)


def _half_side(slowdown: float) -> float:
    """s with (1 + s / 32) (1 + s / 16) (1 + s / 256) = slowdown, by bisection; at least 1."""
    low, high = 1.0, 1024.0
    while high - low > 0.01:
        middle = (low + high) / 2
        if (1 + middle / 32) * (1 + middle / 16) * (1 + middle / 256) < slowdown:
            low = middle
        else:
            high = middle
    return low


def _gain_on_gpu(large: torch.Tensor) -> float:
    narrow = large.bfloat16()
    return seconds_of(lambda: large @ large, "cuda") / seconds_of(lambda: narrow @ narrow, "cuda")


def _bfloat16_gain(threads: int) -> float:
    command = [sys.executable, "-c", _GAIN_SCRIPT, str(threads)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    return max(_UNSUPPORTED_GAIN, float(run.stdout)) if run.returncode == 0 else _UNSUPPORTED_GAIN
