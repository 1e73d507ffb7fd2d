"""Throughput constants of devices, used to predict run times."""

import contextlib
import json
import math
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache
from pathlib import Path

import torch

from lambdanets.files import user_cache_folder
from lambdanets.ops.position.gpus import device_gpu_spec


@dataclass(frozen=True)
class Rates:
    """Throughput constants of a device, built in or measured by `lambdanets calibrate`.

    operations_per_second: FLOP/s of large float32 matrix products, two FLOPs per multiply-add.
    half_peak_side: matrix side for which products run at half that rate.
    bytes_per_second: bytes read plus bytes written per second when copying between layouts.
    seconds_per_call: overhead of one PyTorch operation.
    points_per_second: n log2 n per second for FFTs of n points.
    bfloat16_gain: speedup of large bfloat16 matrix products over float32.
    """

    operations_per_second: float
    half_peak_side: float
    bytes_per_second: float
    seconds_per_call: float
    points_per_second: float
    bfloat16_gain: float

    def matmul_seconds(self, count: int, rows: int, inner: int, columns: int) -> float:
        """Predict the seconds of `count` matrix products of (rows, inner) and (inner, columns)."""
        slowdown = (
            (1 + self.half_peak_side / rows) * (1 + self.half_peak_side / inner) * (1 + self.half_peak_side / columns)
        )
        return 2.0 * count * rows * inner * columns / self.operations_per_second * slowdown

    def copy_seconds(self, size: float) -> float:
        """Predict the seconds to copy `size` bytes."""
        return 2 * size / self.bytes_per_second

    def call_overhead(self, count: float) -> float:
        """Predict the overhead of `count` PyTorch operations, in seconds."""
        return count * self.seconds_per_call

    def fft_seconds(self, points: float, length: float) -> float:
        """Predict the seconds of FFTs of the given length over `points` numbers in total."""
        return points * math.log2(max(2.0, length)) / self.points_per_second

    def for_matmul_dtype(self, dtype: torch.dtype) -> "Rates":
        """Return the rates for matrix products in this dtype."""
        if dtype != torch.bfloat16:
            return self
        return replace(self, operations_per_second=self.operations_per_second * self.bfloat16_gain)


# Measured with one thread of a 2.3 GHz server CPU with AVX-512.
_CPU_THREAD = Rates(145e9, 5, 8e9, 6e-6, 11e9, 0.6)
# Fractions of the specified GPU throughput that large matrix products, copies and FFTs reach.
_MATMUL_EFFICIENCY, _COPY_EFFICIENCY, _FFT_EFFICIENCY = 0.7, 0.8, 0.6


# Rows of algorithm, dtype, and the ratios of measured to predicted time of the forward and the backward pass.
Corrections = tuple[tuple[str, str, float, float], ...]


def device_rates(device: str) -> Rates:
    """Return the rates of a device for the current number of threads: calibrated on this machine, or else built in.

    The meta device has the rates of the CPU. The calibration is read only once per process, so that the choice of an
    algorithm does not change within a process.
    """
    if _measured is not None and device not in ("cpu", "meta"):
        return _measured
    return _device_rates("cpu", torch.get_num_threads()) if device in ("cpu", "meta") else _device_rates(device, 1)


_measured: Rates | None = None  # of GPUs, within `rates_in_use`


@contextlib.contextmanager
def rates_in_use(rates: Rates) -> Iterator[None]:
    """Within the block, GPUs have these rates, so that calibration runs the plans whose times it predicts."""
    global _measured
    previous, _measured = _measured, rates
    try:
        yield
    finally:
        _measured = previous


def device_corrections(device: str) -> Corrections:
    """Return the factors by which `lambdanets calibrate` corrects predictions for a GPU; empty for other devices."""
    return _device_corrections(device) if torch.device(device).type == "cuda" else ()


@lru_cache(maxsize=64)
def _device_rates(device: str, threads: int) -> Rates:
    return read_calibration(device, threads) or built_in_rates(device, threads)


@lru_cache(maxsize=64)
def _device_corrections(device: str) -> Corrections:
    return read_corrections(device)


def built_in_rates(device: str, threads: int) -> Rates:
    """Return the rates without calibration. All devices except the CPU are treated as GPUs."""
    if device != "cpu":
        gpu = device_gpu_spec(device)
        gain = max(1.0, gpu.bfloat16_flops / gpu.float32_flops)
        bandwidth = gpu.memory_bandwidth
        return Rates(
            operations_per_second=_MATMUL_EFFICIENCY * gpu.float32_flops,
            half_peak_side=64,
            bytes_per_second=_COPY_EFFICIENCY * bandwidth,
            seconds_per_call=8e-6,
            points_per_second=_FFT_EFFICIENCY * bandwidth,
            bfloat16_gain=gain,
        )
    rates = asdict(_CPU_THREAD)
    for name in ("operations_per_second", "bytes_per_second", "points_per_second"):
        rates[name] *= threads
    return Rates(**rates)


def cache_folder() -> Path:
    """Return the folder for measurements on this machine: LAMBDANETS_CACHE, or lambdanets in the user's cache folder.

    Raises OSError if there is no home folder, as in some containers.
    """
    folder = os.environ.get("LAMBDANETS_CACHE")
    if folder is not None:
        return Path(folder)
    try:
        return user_cache_folder()
    except OSError as error:
        raise OSError(f"{error} set LAMBDANETS_CACHE to a folder") from error


def calibration_file() -> Path:
    """Return the path of the file with the calibrations."""
    return cache_folder() / "rates.json"


def read_calibration(device: str, threads: int) -> Rates | None:
    """Read the rates measured on this machine for a device; None if missing or malformed."""
    try:
        stored = json.loads(calibration_file().read_text())[calibration_key(device, threads)]
        rates = Rates(**{field.name: float(stored[field.name]) for field in fields(Rates)})
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return rates if all(math.isfinite(value) and value > 0 for value in asdict(rates).values()) else None


def read_corrections(device: str) -> Corrections:
    """Read the corrections measured on this machine for a GPU; empty if missing or malformed."""
    try:
        stored = json.loads(calibration_file().read_text())[calibration_key(device, 1)]["corrections"]
        rows = tuple((str(name), str(dtype), float(fwd), float(bwd)) for name, dtype, fwd, bwd in stored)
    except (OSError, ValueError, KeyError, TypeError):
        return ()
    return tuple(row for row in rows if all(math.isfinite(factor) and factor > 0 for factor in row[2:]))


def calibration_key(device: str, threads: int) -> str:
    """Return the key of a calibration: device, number of threads and torch version."""
    is_gpu = torch.device(device).type == "cuda" and torch.cuda.is_available()
    name = torch.cuda.get_device_name(device) if is_gpu else device
    return f"{name}, {threads} threads, torch {torch.__version__}"
