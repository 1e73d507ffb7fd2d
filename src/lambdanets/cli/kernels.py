"""`lambdanets kernels`."""

from lambdanets.cli.options import parse
from lambdanets.errors import InputError
from lambdanets.records import record
from lambdanets.terminal import echo


@record
class Kernels:
    """Show the compiled library for this processor, or check the kernels on a GPU in bfloat16 and float32.

    Each kernel is compiled, and compared with another algorithm in float64.
    """

    device: str = "cpu"
    """cpu, cuda, or one GPU such as cuda:1, whose kernels are compiled and checked."""


def main(arguments: list[str]) -> int:
    """Run `lambdanets kernels` and return its exit code: 1 if a kernel of the GPU fails."""
    options = parse(Kernels, arguments, "kernels")
    import torch

    from lambdanets.device import resolve_device
    from lambdanets.ops.position import fused_check
    from lambdanets.ops.position.fused import gpu_capability
    from lambdanets.ops.position.native import FOLDER, load_library

    device = resolve_device(options.device)
    if device.type == "cpu":
        found = load_library()
        reason = "for this processor" if FOLDER.is_dir() else "since the package was installed without a compiler"
        name = f"none, {reason}; other algorithms are used" if found is None else found.name
        echo(f"compiled library: {name}", f"threads: {torch.get_num_threads()}")
        return 0
    if gpu_capability(str(device)) is None:
        raise InputError(
            "device must be a GPU of compute capability 8.0 or newer, with Triton installed, "
            f"got {options.device!r}; without them, other algorithms are used"
        )
    echo(fused_check.describe(str(device)))
    failures = {dtype: fused_check.failures(str(device), dtype) for dtype in fused_check.TOLERANCES}
    echo(*(f"{dtype}: {failed or 'all kernels are right'}" for dtype, failed in failures.items()))
    return int(any(failures.values()))
