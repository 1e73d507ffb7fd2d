"""InputError, the error for a user's mistake, and helpers for error messages."""

import contextlib
import difflib
import errno
import os
import re
import sys
from collections.abc import Collection, Iterable, Iterator

# Failures of the machine that may occur anywhere: disk full, no temporary folder, too many open files, I/O errors.
_FIXABLE = ["ENOENT", "ENOSPC", "EDQUOT", "EFBIG", "EIO", "EROFS", "EMFILE", "ENFILE", "ESTALE", "ENOMEM", "EAGAIN"]

# The extra of this package that installs each optional dependency, by import name.
EXTRAS = {
    **dict.fromkeys(("lightning", "sklearn", "matplotlib", "scipy", "pyarrow"), "train"),
    **dict.fromkeys(("faster_coco_eval", "skimage", "imagecodecs"), "detection"),
    **dict.fromkeys(("onnx", "onnxscript", "onnxruntime", "openvino", "nncf"), "export"),
    **dict.fromkeys(("starlette", "uvicorn"), "demo"),
}


class InputError(ValueError):
    """A user's argument or file is invalid. Format of the message: `{argument} must be {expected}, got {value}`.

    The command line prints the message and exits with code 2.
    """


def one_line(error: BaseException) -> str:
    """Return the message of an exception on one line without a final period, or the type's name if it is empty."""
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__


class KernelWarning(UserWarning):
    """A compiled library cannot be loaded, or a fused kernel failed its check: a slower exact algorithm replaces it."""


def describe_failure(error: Exception) -> str | None:
    """Describe an error that a user can fix in one line; None for a bug, which is shown with its traceback.

    A user can fix an OSError of a file or of the machine, but not that of a closed file descriptor.
    """
    if isinstance(error, InputError):
        return str(error)
    if isinstance(error, OSError):
        if isinstance(error.filename, str | bytes) and error.strerror:
            return f"{os.fsdecode(error.filename)}: {error.strerror}"
        return error.strerror if errno.errorcode.get(error.errno or 0) in _FIXABLE else None
    if isinstance(error, RuntimeError) and str(error).startswith("DataLoader worker"):
        memory = "memory, or in a container /dev/shm,"
        return f"a data loading worker was killed, probably because {memory} ran out; use fewer --workers"
    # gloo raises a RuntimeError whose message begins with the path of one of its source files
    is_of_gloo = re.match(r"\[\S*/gloo/\S+:\d+\] ", str(error)) is not None
    is_of_nccl = type(error).__name__ == "DistBackendError" and "ncclRemoteError" in str(error)
    if is_of_gloo or is_of_nccl or type(error).__name__ in ("DistNetworkError", "DistStoreError"):
        return f"connection to another rank was lost: {one_line(error)[:200]}"
    if is_out_of_memory(error):
        return "out of memory; free memory, or choose a smaller batch (in training --micro-batch), model or image size"
    return None


@contextlib.contextmanager
def explain_missing_extras() -> Iterator[None]:
    """Raise InputError with the install command if an import in the block fails because an extra is not installed.

    It is the smallest extra with the missing package.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        command = f'pip install "lambdanets[{EXTRAS[package]}]"'
        raise InputError(f"{package} is not installed; install it with: {command}") from error


def nearest_hint(name: str, known: Iterable[str], count: int = 1) -> str:
    """Return '; the nearest is ...' for a message about an unknown name, or "" if no known name is similar."""
    close = difflib.get_close_matches(name, list(known), n=count, cutoff=0.5)
    if not close:
        return ""
    return f"; the nearest {'is' if len(close) == 1 else 'are'} {', '.join(close)}"


def check_choice(argument: str, value: object, choices: Collection[str], more: Iterable[str] = ()) -> None:
    """Raise InputError with the nearest choice unless the value is one. more: choices that the message omits."""
    known = [*choices, *more]
    if value not in known:
        hint = nearest_hint(str(value), known)
        raise InputError(f"{argument} must be one of {', '.join(choices)}, got {value!r}{hint}")


def first_few(values: Iterable[object]) -> str:
    """Format up to five values for a message, separated by commas."""
    texts = [str(value) for value in values]
    return ", ".join(texts[:5]) + (", ..." if len(texts) > 5 else "")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the error is out of memory in Python, on a GPU, or in PyTorch on the CPU or a CUDA library."""
    torch = sys.modules.get("torch")  # without PyTorch loaded, the error is not PyTorch's
    if isinstance(error, MemoryError) or (torch is not None and isinstance(error, torch.OutOfMemoryError)):
        return True
    messages = (
        "can't allocate memory",
        "unable to find an engine",  # cuDNN's, with little memory
        "CUBLAS_STATUS_ALLOC_FAILED",
        "CUDNN_STATUS_ALLOC_FAILED",
        "Triton Error [CUDA]: out of memory",
    )
    return isinstance(error, RuntimeError) and any(message in str(error) for message in messages)
