"""Runs an input in a separate process, and checks that the command violated no rule."""

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

import psutil

from lambdanets import cli

from .inputs import Input

MAX_BYTES = 3 << 30  # resident memory per input; of a fork, in addition to that of its parent
ADDRESS_SPACE = 4 << 30  # bytes in addition to those of the parent; larger allocations raise MemoryError
PREFIX = "lambdanets: "
CANARY = "code-was-run"  # name of the file that code in a malicious input creates


@dataclass(frozen=True)
class Outcome:
    """The result of an input; exit_code is None after the time limit, negative after a signal."""

    exit_code: int | None
    seconds: float
    peak_bytes: int
    stdout: str
    stderr: str
    violations: tuple[str, ...]

    @property
    def last_line(self) -> str:
        return self.stderr.rstrip("\n").rpartition("\n")[2]


def run_input(entry: Input, cwd: Path, fixtures: Mapping[str, Any], scratch: Path, limit: float) -> Outcome:
    """Run a case in the folder `cwd`: create its files, run its command, and return the outcome with all violations.

    scratch: parent folder of the fixtures and of `cwd`; the command may change files only in `cwd`.
    limit: seconds.
    """
    limit = max(limit, entry.time_limit)
    cwd.mkdir(parents=True)
    for setup in entry.setup:
        setup(cwd, fixtures)
    arguments = [part.format(cwd=cwd, **_paths_in(part, fixtures)) for part in shlex.split(entry.command)]
    outside_before, before = file_states(scratch, skip=cwd), file_states(cwd)
    code, seconds, peak_bytes, stdout, stderr = _run(entry, arguments, cwd, limit)
    texts = [output.decode("utf-8", "replace") for output in (stdout, stderr)]
    violations = [*_check_output(entry, code, *texts), *_check_characters(stdout + stderr)]
    if code is None:
        violations.append(f"exceeded {limit:.0f} s")
    elif code != entry.exit_code and not (entry.new_process and code < 0 and not stderr):  # killed before our code ran
        violations.append(f"exit code {code}, not {entry.exit_code}")
    if peak_bytes > MAX_BYTES:
        violations.append(f"{peak_bytes / 2**30:.1f} GiB of memory")
    if entry.exit_code == code == 2:
        changed = _changed_paths(before, file_states(cwd))
        changed = [path for path in changed if not re.fullmatch(entry.allowed_files or "", path)]
        if changed:
            violations.append(f"left or changed {', '.join(changed[:5])}{' ...' if len(changed) > 5 else ''}")
    outside_after = file_states(scratch, skip=cwd)
    violations += [f"changed {path} outside its folder" for path in _changed_paths(outside_before, outside_after)]
    if (scratch / CANARY).exists():
        (scratch / CANARY).unlink()
        violations.append("ran code of its input")
    if not violations:
        violations += _check_files(entry, arguments, cwd, limit)
    return Outcome(code, seconds, peak_bytes, *texts, tuple(violations))


def _paths_in(argument: str, fixtures: Mapping[str, Any]) -> dict[str, Path]:
    """The fixtures whose names are in the argument."""
    return {name: fixtures[name] for name in re.findall(r"\{(\w+)\}", argument) if name != "cwd"}


def _run(entry: Input, arguments: list[str], cwd: Path, limit: float) -> tuple[int | None, float, int, bytes, bytes]:
    """Run a command; returns exit code, seconds, peak bytes, stdout and stderr."""
    logs = [cwd.with_name(f"{cwd.name}.{name}") for name in ("out", "err")]
    start = time.perf_counter()
    parent_bytes = psutil.Process().memory_info().rss
    if entry.new_process:
        with logs[0].open("wb") as out, logs[1].open("wb") as err:
            command = [sys.executable, "-m", "lambdanets", *arguments]
            env = os.environ | {"PYTHONPATH": str(Path(cli.__file__).parents[2])}  # works in any folder
            child = subprocess.Popen(command, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=err).pid
    else:
        child = os.fork()
        if child == 0:
            _run_child(arguments, cwd, logs, limit)
    if entry.while_running is not None:
        entry.while_running(child, cwd)
    ended = status = peak_bytes = 0
    while not ended and time.perf_counter() - start < limit:
        peak_bytes = max(peak_bytes, _peak_bytes_since_exec(child))
        ended, status, usage = os.wait4(child, os.WNOHANG)
        time.sleep(0.002)
    if not ended:
        os.kill(child, signal.SIGKILL)
        _, status, usage = os.wait4(child, 0)
    seconds = time.perf_counter() - start
    code = os.waitstatus_to_exitcode(status) if ended else None
    stdout, stderr = (log.read_bytes() for log in logs)
    for log in logs:
        log.unlink()
    if not entry.new_process:  # ru_maxrss of a new process includes this process's memory from before exec
        peak_bytes = max(0, (usage.ru_maxrss << 10) - parent_bytes)
    return code, seconds, peak_bytes, stdout, stderr


def _peak_bytes_since_exec(process: int) -> int:
    """Peak memory of a process since its exec; 0 if it has ended."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return 0
    match = re.search(r"^VmHWM:\s+(\d+) kB$", status, flags=re.MULTILINE)
    return int(match[1]) << 10 if match else 0


def run_command(arguments: list[str], cwd: Path, limit: float = 600.0) -> tuple[int | None, str]:
    """Run a command in a fork; returns its exit code (None after the time limit) and its output."""
    code, _, _, stdout, stderr = _run(Input("", 0, ""), arguments, cwd, limit)
    return code, (stdout + stderr).decode("utf-8", "replace")


def _run_child(arguments: list[str], cwd: Path, logs: list[Path], limit: float) -> None:
    code = 1
    try:
        os.chdir(cwd)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number, log in enumerate(logs, 1):
            os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT), number)
        sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1, encoding="utf-8") for number in (1, 2))
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _drop_root_capabilities()
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


def _drop_root_capabilities() -> None:
    """Let file permissions apply to root, too."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # version 3, this process
    capabilities = (ctypes.c_uint32 * 6)()
    libc.capget(header, capabilities)
    capabilities[0] &= ~0b110  # effective: CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
    libc.capset(header, capabilities)


def _check_output(entry: Input, code: int | None, stdout: str, stderr: str) -> list[str]:
    """The rules that a command's output violates."""
    output = stdout + stderr
    violations = [f"printed {phrase!r}" for phrase in ("Traceback", "Exception ignored") if phrase in output]
    if "weights_only" in output and not violations:
        violations.append("advised loading a file that may contain code")
    if re.search(r"\w+Warning: ", output):
        violations.append("printed a Python warning")
    not_printed = f"did not print {entry.output!r}"
    if entry.prints_report or (code is not None and code != 2):
        return violations if re.search(entry.output, output) else [*violations, not_printed]
    *lines, last = stderr.rstrip("\n").split("\n")
    lines += stdout.splitlines()
    if not last.startswith(PREFIX):
        violations.append(f"the last line does not begin with {PREFIX!r}")
    if not re.search(entry.output, last):
        violations.append(not_printed)
    additional = [line for line in lines if not re.search(entry.allowed_lines or r"\A(?!)", line)]
    if entry.required_line and not any(re.search(entry.required_line, line) for line in lines):
        violations.append(f"did not print {entry.required_line!r}")
    return violations + [f"printed an additional line: {line!r}" for line in additional[:3]]


def _check_characters(output: bytes) -> list[str]:
    """A violation if the output is invalid UTF-8 or has control characters."""
    try:
        controls = {character for character in output.decode() if unicodedata.category(character) == "Cc"} - {"\n"}
    except UnicodeDecodeError:
        return ["printed invalid UTF-8"]
    return [f"printed the control characters {sorted(controls)}"] if controls else []


def _check_files(entry: Input, arguments: list[str], cwd: Path, limit: float) -> list[str]:
    """The rules that the files of an accepted or interrupted command violate."""
    if entry.rerun:
        code, output = run_command(arguments, cwd, limit)
        if code != 0:
            return [f"the second run ended with exit code {code}: {output[-300:]}"]
    if entry.check is not None:
        try:
            entry.check(cwd)
        except (AssertionError, ValueError, OSError, KeyError) as error:
            return [f"wrote invalid files: {type(error).__name__}: {error}"]
    return []


def file_states(folder: Path, skip: Path | None = None) -> dict[str, tuple[int, ...]]:
    """Mode, inode, size and mtime of all paths in a folder, except those in the folder `skip`."""
    states: dict[str, tuple[int, ...]] = {}
    for parent, folders, files in os.walk(folder):
        if skip is not None:
            folders[:] = [name for name in folders if Path(parent, name) != skip]
        for name in (*folders, *files):
            path = os.path.join(parent, name)  # noqa: PTH118 - faster, and names may be invalid UTF-8
            stat = os.lstat(path)
            size_and_time = () if name in folders else (stat.st_size, stat.st_mtime_ns)
            states[os.path.relpath(path, folder)] = (stat.st_mode, stat.st_ino, *size_and_time)
    return states


def _changed_paths(before: Mapping[str, tuple[int, ...]], after: Mapping[str, tuple[int, ...]]) -> Iterable[str]:
    return sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))
