"""Measures the speed of a device and caches it for the planner, which predicts which algorithm is fastest."""

import contextlib
import json
from collections.abc import Callable
from dataclasses import asdict

import torch

from lambdanets.calibration.kernels import calibrate_kernels
from lambdanets.calibration.rates import measure_rates
from lambdanets.device import resolve_device
from lambdanets.files import atomic_write
from lambdanets.ops.position.rates import Rates, calibration_file, calibration_key, rates_in_use


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
    on_cpu = resolve_device(device).type == "cpu"
    device = "cpu" if on_cpu else device  # not cpu:0
    path = calibration_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    num_threads = torch.get_num_threads() if on_cpu else 1
    corrections: dict[str, object] = {}
    with torch.no_grad(), contextlib.nullcontext() if on_cpu else torch.cuda.device(device):
        rates = measure_rates(device, num_threads)
        if not on_cpu:
            with rates_in_use(rates):
                corrections["corrections"] = calibrate_kernels(device, rates, report or (lambda line: None))
    cached = {}
    with contextlib.suppress(OSError, ValueError):
        cached = json.loads(path.read_text())
    cached[calibration_key(device, num_threads)] = asdict(rates) | corrections
    atomic_write(path, json.dumps(cached, indent=1).encode())
    return rates
