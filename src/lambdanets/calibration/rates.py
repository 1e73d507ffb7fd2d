"""Measures the rates of a device, such as operations and bytes per second."""

import subprocess
import sys

import torch

from lambdanets.calibration.timing import median_seconds
from lambdanets.ops.position.rates import Rates

# Measures the speedup of bfloat16 over float32 matrix products. It runs in a subprocess, because some machines
# advertise AMX instructions and then kill the process (SIGILL) that uses them.
_SPEEDUP_SCRIPT = """
import sys, torch
from lambdanets.calibration.timing import median_seconds
torch.set_num_threads(int(sys.argv[1]))
def product(dtype):
    x = torch.randn(1024, 1024).to(dtype)
    return median_seconds(lambda: x @ x, "cpu")
print(product(torch.float32) / product(torch.bfloat16))
"""
# Stored as the speedup if bfloat16 products are not supported, so that the planner avoids them.
_UNSUPPORTED_SPEEDUP = 0.01


def measure_rates(device: str, num_threads: int) -> Rates:
    """Measure the rates of a device that the predicted times of algorithms depend on. num_threads: of a CPU."""
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
