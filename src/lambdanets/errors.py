"""The error that is the caller's, told in a sentence, once."""

import difflib
import errno
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from pathlib import Path

# What the state of the machine is to blame for, whichever file it was: no space, no more open files, a failing disk.
_OF_MACHINE = {
    getattr(errno, name)
    for name in ("ENOSPC", "EDQUOT", "EFBIG", "EIO", "EROFS", "EMFILE", "ENFILE", "ESTALE")
    if hasattr(errno, name)
}


class InputError(ValueError):
    """Something a person gave cannot be used: the message names it, what was expected and what came.

    The command line prints the message and ends with exit code 2; a program catches it as a ValueError.
    """


def one_line(error: BaseException) -> str:
    """An exception's message without line breaks and full stop, or its type where it has none."""
    try:
        message = str(error)
    except Exception:  # a class of a user's may fail at it
        message = ""
    return " ".join(message.split()).rstrip(".") or type(error).__name__


class KernelWarning(UserWarning):
    """A fused kernel failed its self-test or could not be launched on this GPU; a plain algorithm takes its place."""


class RankZeroFailed(Exception):  # noqa: N818 - it is no error of this process
    """Raised on the other ranks after rank 0 has reported the error: they end without a message."""


def is_for_user(error: OSError) -> bool:
    """Whether a user can mend it: about a file, not one of Python or an installed package, or the machine's state.

    Others, such as a closed file descriptor or a module's missing file, are bugs, which keep their traceback.
    """
    if error.errno in _OF_MACHINE:
        return True
    if not isinstance(error.filename, str | bytes) or error.errno is None:
        return False
    name = error.filename if isinstance(error.filename, str) else error.filename.decode(errors="surrogateescape")
    installed = [Path(sysconfig.get_path(kind)) for kind in ("stdlib", "purelib", "platlib")]
    installed.append(Path(__file__).parent)
    return not any(Path(name).absolute().is_relative_to(folder) for folder in installed)


def need_packages(*packages: str, extra: str) -> None:
    """Raise InputError, which says what to install, unless all packages of an extra are there. Imports none of them."""
    import importlib.util

    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise InputError(f"{extra} needs {package}; install it with: pip install 'lambdanets[{extra}]'")


def nearest(name: str, known: Iterable[str], count: int = 1) -> str:
    """'; the nearest is ...' for a mistyped name, to end a sentence with, or nothing if no known name is close."""
    close = difflib.get_close_matches(name, list(known), n=count, cutoff=0.5)
    if not close:
        return ""
    return f"; the nearest {'is' if len(close) == 1 else 'are'} {', '.join(close)}"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether it says that memory ran out, Python's, a GPU's, or PyTorch's on a processor, which has no type for it."""
    torch = sys.modules.get("torch")  # where PyTorch is not loaded, none of its errors is raised
    if isinstance(error, MemoryError) or (torch is not None and isinstance(error, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


def did_you_mean(name: str, known: Iterable[str], synonyms: Mapping[str, str]) -> str:
    """'; did you mean ...?' for an unknown argument: the known one with the same meaning, or the nearest by spelling.

    Nothing if no known argument is close.
    """
    known = list(known)
    meant = synonyms.get(name)
    close = [meant] if meant in known else difflib.get_close_matches(name, known, n=1, cutoff=0.7)
    return f"; did you mean {close[0]}?" if close else ""
