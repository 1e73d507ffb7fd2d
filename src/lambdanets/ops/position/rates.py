"""How fast a device multiplies matrices, copies and starts operations: what predictions of time rest on."""

import json
import math
import os
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache
from pathlib import Path

import torch

from lambdanets.ops.position.gpus import gpu_of


@dataclass(frozen=True)
class Rates:
    """A few constants of a device, built in or measured by `lambdanets.calibrate`.

    operations_per_second: of large float32 matrix products, two for each multiply-add.
    half_side: the side of a matrix at which a product runs at half that rate.
    bytes_per_second: read and written by a copy between layouts.
    seconds_per_call: to start one operation from Python.
    points_per_second: of Fourier transforms of n points, counted as n log2 n.
    bfloat16_gain: how many times faster large products of bfloat16 are.
    """

    operations_per_second: float
    half_side: float
    bytes_per_second: float
    seconds_per_call: float
    points_per_second: float
    bfloat16_gain: float

    def product(self, count: int, rows: int, inner: int, columns: int) -> float:
        """Seconds of `count` products of (rows, inner) and (inner, columns)."""
        slower = (1 + self.half_side / rows) * (1 + self.half_side / inner) * (1 + self.half_side / columns)
        return 2.0 * count * rows * inner * columns / self.operations_per_second * slower

    def copy(self, size: float) -> float:
        """Seconds to copy `size` bytes."""
        return 2 * size / self.bytes_per_second

    def calls(self, count: float) -> float:
        """Seconds to start `count` operations."""
        return count * self.seconds_per_call

    def transforms(self, points: float, length: float) -> float:
        """Seconds of Fourier transforms of `points` numbers in all, each over `length` of them."""
        return points * math.log2(max(2.0, length)) / self.points_per_second

    def for_products_of(self, dtype: torch.dtype) -> "Rates":
        """The rates of products in a dtype: those of bfloat16 run faster or slower."""
        if dtype != torch.bfloat16:
            return self
        return replace(self, operations_per_second=self.operations_per_second * self.bfloat16_gain)


# Measured for one thread of a 2.3 GHz server core with AVX-512.
_OF_A_THREAD = Rates(145e9, 5, 8e9, 6e-6, 11e9, 0.6)
# Of what a GPU's data sheet promises: for large products, copies, and bytes that a Fourier transform's points move.
_PRODUCTS, _COPIES, _TRANSFORMS = 0.7, 0.8, 0.6


# By algorithm and dtype of the problem: measured over predicted time, of the forward and of the backward pass.
Corrections = tuple[tuple[str, str, float, float], ...]


def rates_of(device: str) -> Rates:
    """The rates of a device: as calibrated on this machine, or else built in, for the threads that torch has.

    Tensors on the meta device stand for tensors on the CPU.

    The first call reads the calibration; one made later takes effect in the next process, so that the choice of an
    algorithm does not change within one.
    """
    return _rates_of("cpu", torch.get_num_threads()) if device in ("cpu", "meta") else _rates_of(device, 1)


def corrections_of(device: str) -> Corrections:
    """What `lambdanets calibrate` found the predictions for a GPU to be off by; none for other devices."""
    return _corrections_of(device) if torch.device(device).type == "cuda" else ()


@lru_cache(maxsize=64)
def _rates_of(device: str, threads: int) -> Rates:
    return read_calibration(device, threads) or built_in(device, threads)


@lru_cache(maxsize=64)
def _corrections_of(device: str) -> Corrections:
    return read_corrections(device)


def built_in(device: str, threads: int) -> Rates:
    """The rates used without a calibration; a device of another type counts as a GPU, of which its data sheet tells."""
    if device != "cpu":
        gpu = gpu_of(device)
        gain = max(1.0, gpu.bfloat16 / gpu.float32)
        return Rates(_PRODUCTS * gpu.float32, 64, _COPIES * gpu.memory, 8e-6, _TRANSFORMS * gpu.memory, gain)
    one = asdict(_OF_A_THREAD)
    for name in ("operations_per_second", "bytes_per_second", "points_per_second"):
        one[name] *= threads
    return Rates(**one)


def cache_folder() -> Path:
    """Where measurements of this machine are kept: LAMBDANETS_CACHE, or lambdanets in the user's cache folder.

    Raises OSError for a user without a home folder, as in some containers.
    """
    folder = os.environ.get("LAMBDANETS_CACHE")
    if folder is not None:
        return Path(folder)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lambdanets"
    except RuntimeError as error:
        raise OSError(f"{error} set LAMBDANETS_CACHE to a folder") from error


def calibration_file() -> Path:
    """Where a calibration is kept."""
    return cache_folder() / "rates.json"


def read_calibration(device: str, threads: int) -> Rates | None:
    """Rates measured on this machine for a device, or None; a file that cannot be understood counts as none."""
    try:
        found = json.loads(calibration_file().read_text())[calibration_key(device, threads)]
        rates = Rates(**{field.name: float(found[field.name]) for field in fields(Rates)})
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return rates if all(math.isfinite(value) and value > 0 for value in asdict(rates).values()) else None


def read_corrections(device: str) -> Corrections:
    """Corrections measured on this machine for a GPU; of what cannot be understood, none."""
    try:
        found = json.loads(calibration_file().read_text())[calibration_key(device, 1)]["corrections"]
        rows = tuple((str(name), str(dtype), float(first), float(second)) for name, dtype, first, second in found)
    except (OSError, ValueError, KeyError, TypeError):
        return ()
    return tuple(row for row in rows if all(math.isfinite(factor) and factor > 0 for factor in row[2:]))


def calibration_key(device: str, threads: int) -> str:
    """What a calibration holds for: the device, its threads and the release of torch."""
    is_gpu = torch.device(device).type == "cuda" and torch.cuda.is_available()
    name = torch.cuda.get_device_name(device) if is_gpu else device
    return f"{name}, {threads} threads, torch {torch.__version__}"
