"""`lambdanets calibrate`."""

import dataclasses

from lambdanets.cli.arguments import parse
from lambdanets.errors import InputError
from lambdanets.signals import interruptible
from lambdanets.terminal import echo


@dataclasses.dataclass(frozen=True)
class Calibrate:
    """Options of calibrate."""

    device: str = "cpu"
    """cpu, cuda, or one GPU such as cuda:1. On a GPU, the fused kernels are tested and timed as well."""
    threads: int | None = None
    """Number of CPU threads; by default that of PyTorch."""


def main(arguments: list[str]) -> int:
    """Run `lambdanets calibrate` and return its exit code."""
    description = (
        "Measure the speed of this device and save it for the automatic choice of algorithms. On a GPU, the fused "
        "kernels are tested in all dtypes and timed against the other algorithms, which takes a few minutes."
    )
    options = parse(Calibrate, arguments, prog="lambdanets calibrate", description=description)
    if options.threads is not None and options.threads < 1:
        raise InputError(f"threads must be at least 1, got {options.threads}")
    import torch

    from lambdanets import calibration
    from lambdanets.device import resolve_device
    from lambdanets.ops.position.rates import built_in_rates, calibration_file
    from lambdanets.text_tables import text_table

    on_cpu = resolve_device(options.device).type == "cpu"
    if not on_cpu and options.threads is not None:
        raise InputError(f"threads must be none for a GPU, got {options.threads}")
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    built_in = dataclasses.asdict(built_in_rates(options.device, torch.get_num_threads()))
    gpu_options = {} if on_cpu else {"report": lambda text: echo(*text.split("\n"))}
    with interruptible():
        rates = dataclasses.asdict(calibration.calibrate(options.device, **gpu_options))
    if gpu_options:
        echo("")
    rows = [[name.replace("_", " "), f"{value:.3g}", f"{built_in[name]:.3g}"] for name, value in rates.items()]
    echo(*text_table([["", "measured", "built-in"], *rows]).split("\n"))
    echo(f"written to {calibration_file()}")
    return 0
