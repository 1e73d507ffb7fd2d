"""Runs an input in a separate process, and reports the rules that it broke."""

import ctypes
import faulthandler
import os
import re
import resource
import shlex
import signal
import subprocess
import sys
import time
import traceback
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lambdanets import cli

from .inputs import Input

MAX_BYTES = 3 << 30  # resident memory per input
ADDRESS_SPACE = 4 << 30  # additional bytes, beyond which allocations raise MemoryError
PREFIX = "lambdanets: "
CANARY = "code-was-run"  # a file that code in an input would create


@dataclass(frozen=True)
class Outcome:
    """The result of an input; exit_code is None after the time limit, negative after a signal."""

    exit_code: int | None
    seconds: float
    peak_bytes: int
    printed: str
    errors: str
    faults: tuple[str, ...]

    @property
    def last_line(self) -> str:
        return self.errors.rstrip("\n").rpartition("\n")[2]


def attempt(entry: Input, here: Path, places: Mapping[str, Any], scratch: Path, limit: float) -> Outcome:
    """Create the files of an input in the folder `here`, run its command there, and check all rules.

    scratch: the parent of the places and `here`, in which only `here` may change.
    """
    limit = max(limit, entry.seconds)
    here.mkdir(parents=True)
    for make in entry.make:
        make(here, places)
    arguments = [part.format(here=here, **_named(part, places)) for part in shlex.split(entry.command)]
    outside, before = state(scratch, here), state(here)
    code, seconds, peak, printed, errors = _run(entry, arguments, here, limit)
    output = [text.decode("utf-8", "replace") for text in (printed, errors)]
    faults = [*_faults_of_text(entry, code, *output), *_faults_of_bytes(printed + errors)]
    if code is None:
        faults.append(f"exceeded {limit:.0f} s")
    elif code != entry.exit_code and not (entry.alone and code < 0 and not errors):  # killed before our code ran
        faults.append(f"exit code {code}, not {entry.exit_code}")
    if peak > MAX_BYTES:
        faults.append(f"{peak / 2**30:.1f} GiB of memory")
    if entry.exit_code == code == 2:
        left = [path for path in _differences(before, state(here)) if not re.fullmatch(entry.leaves or "", path)]
        faults += [f"left or changed {', '.join(left[:5])}{' ...' if len(left) > 5 else ''}"] if left else []
    faults += [f"changed {path} outside its folder" for path in _differences(outside, state(scratch, here))]
    if (scratch / CANARY).exists():
        (scratch / CANARY).unlink()
        faults.append("ran code of its input")
    if not faults:
        faults += _faults_after(entry, arguments, here, limit)
    return Outcome(code, seconds, peak, *output, tuple(faults))


def _named(part: str, places: Mapping[str, Any]) -> dict[str, Path]:
    return {name: places[name] for name in re.findall(r"\{(\w+)\}", part) if name != "here"}


def _run(entry: Input, arguments: list[str], here: Path, limit: float) -> tuple[int | None, float, int, bytes, bytes]:
    """Exit code, seconds, peak bytes, stdout and stderr."""
    logs = [here.with_name(f"{here.name}.{name}") for name in ("out", "err")]
    start = time.perf_counter()
    if entry.alone:
        with logs[0].open("wb") as out, logs[1].open("wb") as err:
            command = [sys.executable, "-m", "lambdanets", *arguments]
            env = os.environ | {"PYTHONPATH": str(Path(cli.__file__).parents[2])}  # works in any folder
            child = subprocess.Popen(command, cwd=here, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=err).pid
    else:
        child = os.fork()
        if child == 0:
            _run_child(arguments, here, logs, limit)
    if entry.during is not None:
        entry.during(child, here)
    ended = status = highest = 0
    while not ended and time.perf_counter() - start < limit:
        highest = max(highest, _peak_of(child))
        ended, status, used = os.wait4(child, os.WNOHANG)
        time.sleep(0.002)
    if not ended:
        os.kill(child, signal.SIGKILL)
        _, status, used = os.wait4(child, 0)
    seconds = time.perf_counter() - start
    code = os.waitstatus_to_exitcode(status) if ended else None
    texts = [log.read_bytes() for log in logs]
    for log in logs:
        log.unlink()
    # ru_maxrss of a new process includes this process's memory from before exec
    return code, seconds, highest if entry.alone else used.ru_maxrss << 10, texts[0], texts[1]


def _peak_of(process: int) -> int:
    """Peak bytes of a process since its exec; 0 if it has ended."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return 0
    found = re.search(r"^VmHWM:\s+(\d+) kB$", status, flags=re.MULTILINE)
    return int(found[1]) << 10 if found else 0


def run_command(arguments: list[str], here: Path, limit: float = 600.0) -> tuple[int | None, str]:
    """Run a command in a fork; returns its exit code (None after the time limit) and its output."""
    code, _, _, printed, errors = _run(Input("", 0, ""), arguments, here, limit)
    return code, (printed + errors).decode("utf-8", "replace")


def _run_child(arguments: list[str], here: Path, logs: list[Path], limit: float) -> None:
    code = 1
    try:
        os.chdir(here)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number, log in enumerate(logs, 1):
            os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT), number)
        sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1, encoding="utf-8") for number in (1, 2))
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _obey_permissions()
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit_bytes = pages * resource.getpagesize() + ADDRESS_SPACE
        resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, resource.RLIM_INFINITY))
        faulthandler.dump_traceback_later(0.95 * limit, exit=False)  # shows where it hangs
        code = cli.main(arguments)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        os.write(2, traceback.format_exc().encode(errors="backslashreplace"))
    finally:
        sys.stdout.flush()
        os._exit(code)


def _obey_permissions() -> None:
    """Drop root's capability to bypass file permissions."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # version 3, this process
    capabilities = (ctypes.c_uint32 * 6)()
    libc.capget(header, capabilities)
    capabilities[0] &= ~0b110  # effective: CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
    libc.capset(header, capabilities)


def _faults_of_text(entry: Input, code: int | None, printed: str, errors: str) -> list[str]:
    """The rules that a command's output breaks."""
    both = printed + errors
    faults = [f"printed {words!r}" for words in ("Traceback", "Exception ignored") if words in both]
    if "weights_only" in both and not faults:
        faults.append("advised loading a file that may contain code")
    if re.search(r"\w+Warning: ", both):
        faults.append("printed a Python warning")
    if entry.report or (code is not None and code != 2):
        return faults if re.search(entry.says, both) else [*faults, f"did not print {entry.says!r}"]
    *lines, last = errors.rstrip("\n").split("\n")
    lines += printed.splitlines()
    if not last.startswith(PREFIX):
        faults.append(f"the last line does not begin with {PREFIX!r}")
    if not re.search(entry.says, last):
        faults.append(f"did not print {entry.says!r}")
    additional = [line for line in lines if not re.search(entry.lines or r"\A(?!)", line)]
    if entry.tells and not any(re.search(entry.tells, line) for line in lines):
        faults.append(f"did not print {entry.tells!r}")
    return faults + [f"printed an additional line: {line!r}" for line in additional[:3]]


def _faults_of_bytes(text: bytes) -> list[str]:
    try:
        controls = {character for character in text.decode() if unicodedata.category(character) == "Cc"} - {"\n"}
    except UnicodeDecodeError:
        return ["printed invalid UTF-8"]
    return [f"printed the control characters {sorted(controls)}"] if controls else []


def _faults_after(entry: Input, arguments: list[str], here: Path, limit: float) -> list[str]:
    """The rules that the files of an accepted or interrupted command break."""
    if entry.again:
        code, output = run_command(arguments, here, limit)
        if code != 0:
            return [f"the repeated command ended with {code}: {output[-300:]}"]
    if entry.check is not None:
        try:
            entry.check(here)
        except (AssertionError, ValueError, OSError, KeyError) as error:
            return [f"wrote invalid files: {type(error).__name__}: {error}"]
    return []


def state(folder: Path, but: Path | None = None) -> dict[str, tuple[int, ...]]:
    """Mode, inode, size and mtime of all paths below a folder, except those in the folder `but`."""
    found: dict[str, tuple[int, ...]] = {}
    for place, folders, files in os.walk(folder):
        if but is not None:
            folders[:] = [name for name in folders if Path(place, name) != but]
        for name in (*folders, *files):
            path = os.path.join(place, name)  # noqa: PTH118 - faster, and names may be invalid UTF-8
            known = os.lstat(path)
            is_folder = name in folders
            found[os.path.relpath(path, folder)] = (
                known.st_mode,
                known.st_ino,
                *(() if is_folder else (known.st_size, known.st_mtime_ns)),
            )
    return found


def _differences(one: Mapping[str, tuple[int, ...]], other: Mapping[str, tuple[int, ...]]) -> Iterable[str]:
    return sorted(path for path in one.keys() | other.keys() if one.get(path) != other.get(path))
