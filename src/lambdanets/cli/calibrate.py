"""`lambdanets calibrate`."""

import dataclasses
from typing import Literal

from lambdanets.arguments import parse
from lambdanets.errors import InputError


@dataclasses.dataclass(frozen=True)
class Calibrate:
    """What to measure."""

    device: Literal["cpu", "cuda"] = "cpu"
    """Whose rates to measure."""
    threads: int | None = None
    """Threads of the CPU to measure with; by default as many as PyTorch takes."""


def main(arguments: list[str]) -> int:
    """Measure how fast this machine computes, for the choice of algorithms: lambdanets calibrate."""
    description = "Measure how fast this machine computes, and keep it for the automatic choice of algorithms."
    options = parse(Calibrate, arguments, prog="lambdanets calibrate", description=description)
    if options.threads is not None and options.threads < 1:
        raise InputError(f"threads must be at least 1, got {options.threads}")
    import torch

    from lambdanets import calibration
    from lambdanets.ops.position.rates import built_in, calibration_file

    if options.device == "cuda" and not torch.cuda.is_available():
        raise InputError("device cuda needs a GPU, and PyTorch finds none")
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    usual = dataclasses.asdict(built_in(options.device, torch.get_num_threads()))
    rates = dataclasses.asdict(calibration.calibrate(options.device))
    print(f"{'':24}{'measured':>12}{'built in':>12}")
    for name, value in rates.items():
        print(f"{name.replace('_', ' '):24}{value:>12.3g}{usual[name]:>12.3g}")
    print(f"written to {calibration_file()}")
    return 0
