"""Measures the few constants of a device that predictions of time rest on, and keeps them for later processes."""

import contextlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict

import torch

from lambdanets.files import write_whole
from lambdanets.ops.position.rates import Rates, calibration_file, calibration_key

# A product of bfloat16 over one of float32, in a process of its own: it would end this one on a machine that announces
# instructions and refuses them.
_GAIN = """
import sys, torch
from lambdanets.calibration import seconds_of
torch.set_num_threads(int(sys.argv[2]))
def product(dtype):
    x = torch.randn(1024, 1024, device=sys.argv[1]).to(dtype)
    return seconds_of(lambda: x @ x, sys.argv[1])
print(product(torch.float32) / product(torch.bfloat16))
"""
# The gain where bfloat16 cannot be computed at all.
_NONE = 0.01


def calibrate(device: str = "cpu") -> Rates:
    """Measure a type of device, "cpu" or "cuda", for the threads that torch has now, in about a second.

    What it returns is written to the user's cache folder (LAMBDANETS_CACHE names another) and read by later processes
    with as many threads and the same release of PyTorch: `lambdanets.explain` predicts by it, and the automatic choice
    of algorithms rests on it. This process goes on with the rates it has. Raises ValueError for another device, OSError
    where the folder cannot be written.
    """
    if device not in ("cpu", "cuda") or (device == "cuda" and not torch.cuda.is_available()):
        raise ValueError(f"device must be 'cpu', or 'cuda' where there is a GPU, got {device!r}")
    threads = torch.get_num_threads() if device == "cpu" else 1
    with torch.no_grad():
        rates = _measure(device, threads)
    path = calibration_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    found = {}
    with contextlib.suppress(OSError, ValueError):
        found = json.loads(path.read_text())
    found[calibration_key(device, threads)] = asdict(rates)
    write_whole(path, json.dumps(found, indent=1).encode())
    return rates


def seconds_of(function: Callable[[], object], device: str, runs: int = 15) -> float:
    """The median time of a call, after two to warm up."""
    times = []
    for run in range(runs + 2):
        start = time.perf_counter()
        function()
        if device == "cuda":
            torch.cuda.synchronize()
        if run > 1:
            times.append(time.perf_counter() - start)
    return statistics.median(times)


def _measure(device: str, threads: int) -> Rates:
    side = 1024 if device == "cpu" else 4096
    large = torch.randn(side, side, device=device)
    operations = 2 * side**3 / seconds_of(lambda: large @ large, device)
    # products like those of a tile: (1 + s / 32) (1 + s / 16) (1 + s / 256) = how many times slower than large ones
    first, second = torch.randn(256, 32, 16, device=device), torch.randn(256, 16, 256, device=device)
    slower = seconds_of(lambda: torch.bmm(first, second), device) * operations / (2 * 256 * 32 * 16 * 256)
    maps = torch.randn(8, 784, 64, 4, device=device)
    rows = torch.empty(784, 4, 8, 64, device=device)
    copied = 2 * maps.nbytes / seconds_of(lambda: rows.copy_(maps.permute(1, 3, 0, 2)), device)
    small = torch.zeros(4, 4, device=device)
    call = seconds_of(lambda: [small.narrow(0, 0, 2).add_(1) for _ in range(100)], device) / 100
    waves = torch.randn(16, 96, 96, device=device)
    points = waves.numel() * torch.log2(torch.tensor(96.0**2)).item()
    transformed = points / seconds_of(lambda: torch.fft.irfft2(torch.fft.rfft2(waves)), device) * 2
    return Rates(operations, _half_side(slower), copied, call, transformed, _bfloat16_gain(device, threads))


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


def _bfloat16_gain(device: str, threads: int) -> float:
    run = subprocess.run(
        [sys.executable, "-c", _GAIN, device, str(threads)], capture_output=True, text=True, check=False
    )
    return max(_NONE, float(run.stdout)) if run.returncode == 0 else _NONE
