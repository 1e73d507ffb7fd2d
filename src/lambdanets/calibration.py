"""Measures the few constants of a device that predictions of time rest on, and keeps them for later processes."""

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

# A product of bfloat16 over one of float32, in a process of its own: it would end this one on a machine that announces
# instructions and refuses them.
_GAIN = """
import sys, torch
from lambdanets.calibration import seconds_of
torch.set_num_threads(int(sys.argv[1]))
def product(dtype):
    x = torch.randn(1024, 1024).to(dtype)
    return seconds_of(lambda: x @ x, "cpu")
print(product(torch.float32) / product(torch.bfloat16))
"""
# The gain where bfloat16 cannot be computed at all.
_NONE = 0.01


def calibrate(device: str = "cpu", report: Callable[[str], None] | None = None) -> Rates:
    """Measure a device: "cpu", for the threads that torch has now, in about a second; "cuda" or "cuda:1", in minutes.

    What it returns is written to the user's cache folder (LAMBDANETS_CACHE names another) and read by later processes
    with as many threads and the same release of PyTorch: `lambdanets.plan` predicts by it, and the automatic choice
    of algorithms rests on it. This process continues with the rates it has.

    On a GPU it also runs the self-test of all fused kernels, whatever is known of them, times them beside the plain
    algorithms, and keeps by how much predictions were off; `report` takes lines about these.
    Raises ValueError for another device, OSError where the folder cannot be written.
    """
    if device != "cpu" and (re.fullmatch(r"cuda(:\d+)?", device) is None or not torch.cuda.is_available()):
        raise InputError(f"device must be 'cpu', or 'cuda' where there is a GPU, got {device!r}")
    if device != "cpu" and (torch.device(device).index or 0) >= torch.cuda.device_count():
        raise InputError(f"device must be one of {torch.cuda.device_count()} GPUs, got {device!r}")
    path = calibration_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    threads = torch.get_num_threads() if device == "cpu" else 1
    kept: dict[str, object] = {}
    with torch.no_grad(), contextlib.nullcontext() if device == "cpu" else torch.cuda.device(device):
        rates = _measure(device, threads)
        if device != "cpu":
            from lambdanets.kernel_calibration import calibrate_kernels

            kept["corrections"] = calibrate_kernels(device, rates, report or (lambda line: None))
    found = {}
    with contextlib.suppress(OSError, ValueError):
        found = json.loads(path.read_text())
    found[calibration_key(device, threads)] = asdict(rates) | kept
    atomic_write(path, json.dumps(found, indent=1).encode())
    return rates


def seconds_of(function: Callable[[], object], device: str, runs: int = 15) -> float:
    """The median time of a call, after two to warm up."""
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
    """By events around as many calls as take some milliseconds: waiting for each would add about 10 us to it."""
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
    # a GPU needs more work to be busy, and its second-level cache holds up to 126 MB
    side, more = (1024, 1) if device == "cpu" else (8192, 32)
    large = torch.randn(side, side, device=device)
    operations = 2 * side**3 / seconds_of(lambda: large @ large, device)
    # products like those of a tile: (1 + s / 32) (1 + s / 16) (1 + s / 256) = how many times slower than large ones
    count = 256 * more
    first, second = torch.randn(count, 32, 16, device=device), torch.randn(count, 16, 256, device=device)
    slower = seconds_of(lambda: torch.bmm(first, second), device) * operations / (2 * count * 32 * 16 * 256)
    maps = torch.randn(8 * more, 784, 64, 4, device=device)
    rows = torch.empty(784, 4, 8 * more, 64, device=device)
    copied = 2 * maps.nbytes / seconds_of(lambda: rows.copy_(maps.permute(1, 3, 0, 2)), device)
    small = torch.zeros(4, 4, device=device)
    call = seconds_of(lambda: [small.narrow(0, 0, 2).add_(1) for _ in range(100)], device) / 100
    waves = torch.randn(16 * more, 96, 96, device=device)
    points = waves.numel() * torch.log2(torch.tensor(96.0**2)).item()
    transformed = points / seconds_of(lambda: torch.fft.irfft2(torch.fft.rfft2(waves)), device) * 2
    gain = _bfloat16_gain(threads) if device == "cpu" else _gain_on_gpu(large)
    return Rates(operations, _half_side(slower), copied, call, transformed, gain)


def _half_side(slower: float) -> float:
    """s with (1 + s / 32) (1 + s / 16) (1 + s / 256) = slower, by bisection; at least 1."""
    low, high = 1.0, 1024.0
    while high - low > 0.01:
        middle = (low + high) / 2
        if (1 + middle / 32) * (1 + middle / 16) * (1 + middle / 256) < slower:
            low = middle
        else:
            high = middle
    return low


def _gain_on_gpu(large: torch.Tensor) -> float:
    narrow = large.bfloat16()
    return seconds_of(lambda: large @ large, "cuda") / seconds_of(lambda: narrow @ narrow, "cuda")


def _bfloat16_gain(threads: int) -> float:
    run = subprocess.run([sys.executable, "-c", _GAIN, str(threads)], capture_output=True, text=True, check=False)
    return max(_NONE, float(run.stdout)) if run.returncode == 0 else _NONE
