"""`lambdanets kernels`."""

import dataclasses

from lambdanets.cli.arguments import parse
from lambdanets.errors import InputError
from lambdanets.signals import interruptible
from lambdanets.terminal import echo


@dataclasses.dataclass(frozen=True)
class Kernels:
    """Options of kernels."""

    device: str = "cpu"
    """cpu, cuda, or one GPU such as cuda:1, whose kernels are compiled and checked."""


def main(arguments: list[str]) -> int:
    """Run `lambdanets kernels` and return its exit code: 1 if a kernel of the GPU fails."""
    description = (
        "Show the compiled library for this processor, or check the kernels on a GPU in bfloat16 "
        "and float32: each is compiled and compared with the definition in float64."
    )
    options = parse(Kernels, arguments, prog="lambdanets kernels", description=description)
    import torch

    from lambdanets.device import resolve_device
    from lambdanets.ops.position.fused import check
    from lambdanets.ops.position.fused.device import kernel_device
    from lambdanets.ops.position.native import load_library
    from lambdanets.text_tables import text_table

    device = resolve_device(options.device)
    if device.type == "cpu":
        found = load_library()
        name = "none for this processor (see docs/engine.md)" if found is None else found.name
        echo(f"compiled library: {name}", f"threads: {torch.get_num_threads()}")
        return 0
    gpu = kernel_device(str(device))
    if gpu is None:
        raise InputError(
            "device must be a GPU of compute capability 8.0 or newer, with Triton installed, "
            f"got {options.device!r}; without them, other algorithms are used"
        )
    echo(check.describe(gpu))
    failed = False
    for dtype in check.DTYPES:
        with interruptible():
            checks = check.check(gpu, dtype)
        rows = [[check.dtype_name(dtype), "seconds", "error", "allowed", "result"]]
        for name, result in checks.items():
            numbers = (result.seconds, result.error, result.allowed)
            cells = ["-" if number is None else f"{number:.2g}" for number in numbers]
            rows.append([name, *cells, "fails" if result.reason else "right"])
        reasons = [f"{name} {result.reason}" for name, result in checks.items() if result.reason]
        echo("", *text_table(rows).split("\n"), *reasons)
        failed |= bool(reasons)
    return int(failed)
