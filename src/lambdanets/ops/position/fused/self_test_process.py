"""Runs the self-test of the fused kernels in a subprocess, which may crash or hang."""

import contextlib
import json
import math
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lambdanets.ops.position.fused.device import KernelDevice

# The command, without its arguments: device, its name, dtype and kernels.
SELF_TEST = (sys.executable or "python", "-m", "lambdanets.ops.position.fused.self_test")
SECONDS_TO_START = 300.0  # time limit until "ready": with a slow disk, imports take minutes


@dataclass(frozen=True)
class Verdict:
    """The result of the self-test of a kernel in a dtype on a device.

    reason: why it failed; "" if it passed. error, allowed: the largest relative error and its tolerance. seconds: the
    duration of the test, compilation included.
    """

    reason: str
    error: float | None = None
    allowed: float | None = None
    seconds: float | None = None


def time_limit() -> float:
    """The time limit per kernel in seconds, compilation included: LAMBDANETS_KERNEL_TEST_SECONDS, or 120."""
    text = os.environ.get("LAMBDANETS_KERNEL_TEST_SECONDS", "120")
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise ValueError(f"LAMBDANETS_KERNEL_TEST_SECONDS must be a positive number of seconds, got {text!r}")
    return seconds


def dtype_name(dtype: torch.dtype) -> str:
    """The name of a dtype, such as "float32"."""
    return str(dtype).removeprefix("torch.")


def run_self_test(
    device: KernelDevice, dtype: torch.dtype, kernels: Sequence[str]
) -> tuple[dict[str, Verdict], dict[str, Verdict]]:
    """The verdicts on kernels, to be cached, and those on untested kernels, which are valid in this process only.

    When the subprocess dies, the kernel under test fails, and another subprocess tests the rest. When it timed_out, the
    rest is not tested, to bound the time.
    """
    tested: dict[str, Verdict] = {}
    while remaining := [name for name in kernels if name not in tested]:
        process = _Process(device, dtype, remaining)
        tested |= process.verdicts
        if process.current:
            tested[process.current] = Verdict(process.ending)
        rest = [name for name in remaining if name not in tested]
        if rest and (process.timed_out or not (process.verdicts or process.current)):
            current = f"{process.current} " if process.current else ""
            reason = f"could not be tested: {current}{process.ending}"
            return tested, {name: Verdict(process.untested.get(name, reason)) for name in rest}
        if process.untested:
            return tested, {name: Verdict(process.untested.get(name, "was not tested")) for name in rest}
    return tested, {}


class _Process:
    """Runs a subprocess of the self-test to its end.

    verdicts: by kernel. current: the kernel under test when the process died or was killed, or "". ending: how it
    ended. untested: kernels that it could not test, and why. timed_out: whether it was killed at a time limit.
    """

    def __init__(self, device: KernelDevice, dtype: torch.dtype, kernels: Sequence[str]) -> None:
        self.verdicts: dict[str, Verdict] = {}
        self.untested: dict[str, str] = {}
        self.current = self.ending = ""
        self.timed_out = False
        limit = time_limit()
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        command = [*SELF_TEST, device.device, device.name, dtype_name(dtype), *kernels]
        with tempfile.TemporaryFile() as errors:
            try:
                process = subprocess.Popen(
                    command,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    start_new_session=True,  # to kill its compiler processes with it
                )
            except OSError as error:
                self.ending = f"{command[0]} does not start: {error}"
                return
            try:
                self._read_events(process, limit)
            finally:
                _kill(process)
            errors.seek(0)
            lines = errors.read().decode(errors="replace").strip().splitlines()
        if not self.timed_out:
            self.ending = f"ended the self-test's process, exit code {process.returncode}"
            if lines and process.returncode:
                self.ending += f": {lines[-1][:300]}"

    def _read_events(self, process: subprocess.Popen[bytes], limit: float) -> None:
        """Process events until the subprocess ends or a time limit passes."""
        lines: queue.Queue[bytes | None] = queue.Queue()
        reader = threading.Thread(target=_read_lines, args=(process, lines), daemon=True)
        reader.start()
        allowed = SECONDS_TO_START
        deadline = time.monotonic() + allowed
        while True:
            try:
                line = lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                self.timed_out = True
                self.ending = f"took longer than {allowed:g} s to {'compile and test' if self.current else 'start'}"
                return
            if line is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=10)
                return
            event = _event(line)
            if event is None:
                continue
            kind, kernel = event["event"], event.get("kernel", "")
            if kind == "start":
                self.current, allowed = kernel, limit
            else:
                self.current, allowed = "", SECONDS_TO_START
            if kind == "verdict":
                self.verdicts[kernel] = Verdict(*(event[field] for field in ("reason", "error", "allowed", "seconds")))
            elif kind == "unable":
                self.untested[kernel] = f"could not be tested: {event['reason']}"
            deadline = time.monotonic() + allowed


def _event(line: bytes) -> dict[str, Any] | None:
    """An event, or None for other output, such as a library's."""
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) and "event" in found else None


def _read_lines(process: subprocess.Popen[bytes], lines: "queue.Queue[bytes | None]") -> None:
    assert process.stdout is not None
    with process.stdout as output:
        for line in output:
            lines.put(line)
    lines.put(None)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the process and its children, and wait for it."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL) if hasattr(os, "killpg") else process.kill()
    process.wait()
