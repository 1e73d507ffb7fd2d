"""`lambdanets calibrate`."""

import dataclasses
import re

from lambdanets.cli.arguments import parse
from lambdanets.errors import InputError
from lambdanets.signals import interruptible
from lambdanets.terminal import say


@dataclasses.dataclass(frozen=True)
class Calibrate:
    """What to measure."""

    device: str = "cpu"
    """What to measure: cpu, or a GPU (cuda, cuda:1), on which the fused kernels are tested and timed as well."""
    threads: int | None = None
    """Threads of the CPU to measure with; by default as many as PyTorch takes."""


def main(arguments: list[str]) -> int:
    """Run `lambdanets calibrate` and return its exit code."""
    description = (
        "Measure how fast this machine computes, and keep it for the automatic choice of algorithms. "
        "On a GPU, test the fused kernels in all dtypes and time them beside the plain algorithms, in some minutes."
    )
    options = parse(Calibrate, arguments, prog="lambdanets calibrate", description=description)
    if re.fullmatch(r"cpu|cuda(:\d+)?", options.device) is None:
        raise InputError(f"device must be cpu, cuda or a GPU by its number such as cuda:1, got {options.device!r}")
    if options.threads is not None and options.threads < 1:
        raise InputError(f"threads must be at least 1, got {options.threads}")
    import torch

    from lambdanets import calibration
    from lambdanets.ops.position.rates import built_in, calibration_file
    from lambdanets.text_tables import text_table

    if options.device != "cpu" and not torch.cuda.is_available():
        raise InputError(f"device {options.device} needs a GPU, and PyTorch finds none")
    if options.device != "cpu" and options.threads is not None:
        raise InputError("threads must be left out where a GPU is measured")
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    usual = dataclasses.asdict(built_in(options.device, torch.get_num_threads()))
    report = {} if options.device == "cpu" else {"report": lambda text: say(*text.split("\n"))}
    with interruptible():
        rates = dataclasses.asdict(calibration.calibrate(options.device, **report))
    if report:
        say("")
    rows = [[name.replace("_", " "), f"{value:.3g}", f"{usual[name]:.3g}"] for name, value in rates.items()]
    say(*text_table([["", "measured", "built in"], *rows]).split("\n"))
    say(f"written to {calibration_file()}")
    return 0
