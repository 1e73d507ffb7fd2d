"""Measures the speed of a device and caches it for the planner, which predicts which algorithm is fastest."""

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

# Measures the speedup of bfloat16 over float32 matrix products. It runs in a subprocess, because some machines
# advertise AMX instructions and then kill the process (SIGILL) that uses them.
_SPEEDUP_SCRIPT = """
import sys, torch
from lambdanets.calibration import median_seconds
torch.set_num_threads(int(sys.argv[1]))
def product(dtype):
    x = torch.randn(1024, 1024).to(dtype)
    return median_seconds(lambda: x @ x, "cpu")
print(product(torch.float32) / product(torch.bfloat16))
"""
# Stored as the speedup if bfloat16 products are not supported, so that the planner avoids them.
_UNSUPPORTED_SPEEDUP = 0.01


def calibrate(device: str = "cpu", report: Callable[[str], None] | None = None) -> Rates:
    """Measure the speed of a device and store it in the user's cache folder (or LAMBDANETS_CACHE).

    device: "cpu", measured in about a second with torch's current number of threads; or "cuda" or "cuda:1", measured
        in minutes.
    report: called with lines of text about the fused kernels.

    Later processes with the same number of threads and the same PyTorch version use the measured rates to choose
    algorithms and in `lambdanets.plan`. The current process does not.

    On a GPU, this also repeats the self-test of all fused kernels, benchmarks them and the other algorithms, and stores
    factors that correct the predicted times. Raises ValueError for an unknown device, and OSError if the folder is not
    writable.
    """
    if device != "cpu" and (re.fullmatch(r"cuda(:\d+)?", device) is None or not torch.cuda.is_available()):
        raise InputError(f"device must be 'cpu', or 'cuda' if there is a GPU, got {device!r}")
    if device != "cpu" and (torch.device(device).index or 0) >= torch.cuda.device_count():
        raise InputError(f"device must be one of {torch.cuda.device_count()} GPUs, got {device!r}")
    path = calibration_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    num_threads = torch.get_num_threads() if device == "cpu" else 1
    corrections: dict[str, object] = {}
    with torch.no_grad(), contextlib.nullcontext() if device == "cpu" else torch.cuda.device(device):
        rates = _measure_rates(device, num_threads)
        if device != "cpu":
            from lambdanets.kernel_calibration import calibrate_kernels

            corrections["corrections"] = calibrate_kernels(device, rates, report or (lambda line: None))
    cached = {}
    with contextlib.suppress(OSError, ValueError):
        cached = json.loads(path.read_text())
    cached[calibration_key(device, num_threads)] = asdict(rates) | corrections
    atomic_write(path, json.dumps(cached, indent=1).encode())
    return rates


def median_seconds(function: Callable[[], object], device: str, num_runs: int = 15) -> float:
    """Measure the median time of a call in seconds, after two warm-up calls."""
    if device != "cpu":
        return _median_seconds_on_gpu(function, num_runs)
    times = []
    for run in range(num_runs + 2):
        start = time.perf_counter()
        function()
        if run > 1:
            times.append(time.perf_counter() - start)
    return statistics.median(times)


def _median_seconds_on_gpu(function: Callable[[], object], num_runs: int) -> float:
    """Measure with CUDA events around several milliseconds of calls. Synchronizing after each call would add 10 us."""
    for _ in range(2):
        function()
    torch.cuda.synchronize()
    start = time.perf_counter()
    function()
    torch.cuda.synchronize()
    num_calls = max(1, min(500, math.ceil(5e-3 / (time.perf_counter() - start))))
    times = []
    for _ in range(num_runs):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(num_calls):
            function()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3 / num_calls)
    return statistics.median(times)


def _measure_rates(device: str, num_threads: int) -> Rates:
    # a GPU is saturated only by larger problems, which must also exceed its L2 cache of up to 126 MB
    side, scale = (1024, 1) if device == "cpu" else (8192, 32)
    large = torch.randn(side, side, device=device)
    operations_per_second = 2 * side**3 / median_seconds(lambda: large @ large, device)
    # a product of shapes (32, 16) and (16, 256) has the size of a tile; it is slower than a large one by the factor
    # (1 + s / 32) (1 + s / 16) (1 + s / 256), where s is `Rates.half_peak_side`
    count = 256 * scale
    first, second = torch.randn(count, 32, 16, device=device), torch.randn(count, 16, 256, device=device)
    slowdown = (
        median_seconds(lambda: torch.bmm(first, second), device) * operations_per_second / (2 * count * 32 * 16 * 256)
    )
    maps = torch.randn(8 * scale, 784, 64, 4, device=device)
    rows = torch.empty(784, 4, 8 * scale, 64, device=device)
    bytes_per_second = 2 * maps.nbytes / median_seconds(lambda: rows.copy_(maps.permute(1, 3, 0, 2)), device)
    small = torch.zeros(4, 4, device=device)
    seconds_per_call = median_seconds(lambda: [small.narrow(0, 0, 2).add_(1) for _ in range(100)], device) / 100
    signals = torch.randn(16 * scale, 96, 96, device=device)
    points = signals.numel() * torch.log2(torch.tensor(96.0**2)).item()
    points_per_second = points / median_seconds(lambda: torch.fft.irfft2(torch.fft.rfft2(signals)), device) * 2
    bfloat16_gain = _bfloat16_speedup(num_threads) if device == "cpu" else _bfloat16_speedup_on_gpu(large)
    half_peak_side = _solve_half_peak_side(slowdown)
    return Rates(
        operations_per_second, half_peak_side, bytes_per_second, seconds_per_call, points_per_second, bfloat16_gain
    )


def _solve_half_peak_side(slowdown: float) -> float:
    """Solve (1 + s / 32) (1 + s / 16) (1 + s / 256) = slowdown for s by bisection. Returns at least 1."""
    low, high = 1.0, 1024.0
    while high - low > 0.01:
        middle = (low + high) / 2
        if (1 + middle / 32) * (1 + middle / 16) * (1 + middle / 256) < slowdown:
            low = middle
        else:
            high = middle
    return low


def _bfloat16_speedup_on_gpu(matrix: torch.Tensor) -> float:
    rounded = matrix.bfloat16()
    return median_seconds(lambda: matrix @ matrix, "cuda") / median_seconds(lambda: rounded @ rounded, "cuda")


def _bfloat16_speedup(num_threads: int) -> float:
    command = [sys.executable, "-c", _SPEEDUP_SCRIPT, str(num_threads)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    return max(_UNSUPPORTED_SPEEDUP, float(process.stdout)) if process.returncode == 0 else _UNSUPPORTED_SPEEDUP
