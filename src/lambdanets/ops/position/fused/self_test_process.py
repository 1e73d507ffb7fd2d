"""Runs the self-test of the fused kernels in a subprocess, because it may crash or hang."""

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

# The command; its arguments are device, name of the device, dtype and kernels.
SELF_TEST = (sys.executable or "python", "-m", "lambdanets.ops.position.fused.self_test")
SECONDS_TO_START = 300.0  # time limit until "ready"; imports from a slow disk can take minutes


@dataclass(frozen=True)
class SelfTestResult:
    """The result of the self-test of a kernel in a dtype on a device.

    reason: why the kernel failed, or "" if it passed. error: largest relative error. allowed: its tolerance.
    seconds: duration of the test, including compilation.
    """

    reason: str
    error: float | None = None
    allowed: float | None = None
    seconds: float | None = None

    @property
    def passed(self) -> bool:
        return not self.reason


def time_limit() -> float:
    """Return the time limit per kernel, including compilation: LAMBDANETS_KERNEL_TEST_SECONDS, default 120."""
    text = os.environ.get("LAMBDANETS_KERNEL_TEST_SECONDS", "120")
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise ValueError(f"LAMBDANETS_KERNEL_TEST_SECONDS must be a positive number of seconds, got {text!r}")
    return seconds


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a dtype, such as "float32"."""
    return str(dtype).removeprefix("torch.")


def run_self_test(
    device: KernelDevice, dtype: torch.dtype, kernels: Sequence[str]
) -> tuple[dict[str, SelfTestResult], dict[str, SelfTestResult]]:
    """Return the results to cache, and those of untested kernels, which are valid only in this process.

    If the subprocess dies, the kernel under test has failed, and another subprocess tests the remaining kernels. If the
    subprocess times out, the remaining kernels are not tested, to limit the total time.
    """
    tested: dict[str, SelfTestResult] = {}
    while remaining := [name for name in kernels if name not in tested]:
        process = _SelfTestProcess(device, dtype, remaining)
        tested |= process.results
        if process.current_kernel:
            tested[process.current_kernel] = SelfTestResult(process.exit_reason)
        missing = [name for name in remaining if name not in tested]
        if missing and (process.timed_out or not (process.results or process.current_kernel)):
            current = f"{process.current_kernel} " if process.current_kernel else ""
            reason = f"could not be tested: {current}{process.exit_reason}"
            return tested, {name: SelfTestResult(process.untested.get(name, reason)) for name in missing}
        if process.untested:
            return tested, {name: SelfTestResult(process.untested.get(name, "was not tested")) for name in missing}
    return tested, {}


class _SelfTestProcess:
    """Runs a subprocess of the self-test and waits until it ends.

    results: by kernel. current_kernel: the kernel under test when the process ended early, or "". exit_reason: why the
    process ended. untested: kernels that it could not test, with reasons. timed_out: whether it was killed at a time
    limit.
    """

    def __init__(self, device: KernelDevice, dtype: torch.dtype, kernels: Sequence[str]) -> None:
        self.results: dict[str, SelfTestResult] = {}
        self.untested: dict[str, str] = {}
        self.current_kernel = self.exit_reason = ""
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
                    start_new_session=True,  # to kill its compiler processes, too
                )
            except OSError as error:
                self.exit_reason = f"{command[0]} does not start: {error}"
                return
            try:
                self._read_events(process, limit)
            finally:
                _kill(process)
            errors.seek(0)
            lines = errors.read().decode(errors="replace").strip().splitlines()
        if not self.timed_out:
            self.exit_reason = f"ended the self-test's process, exit code {process.returncode}"
            if lines and process.returncode:
                self.exit_reason += f": {lines[-1][:300]}"

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
                activity = "compile and test" if self.current_kernel else "start"
                self.exit_reason = f"took longer than {allowed:g} s to {activity}"
                return
            if line is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=10)
                return
            event = _parse_event(line)
            if event is None:
                continue
            name, kernel = event["event"], event.get("kernel", "")
            if name == "start":
                self.current_kernel, allowed = kernel, limit
            else:
                self.current_kernel, allowed = "", SECONDS_TO_START
            if name == "result":
                fields = ("reason", "error", "allowed", "seconds")
                self.results[kernel] = SelfTestResult(*(event[field] for field in fields))
            elif name == "unable":
                self.untested[kernel] = f"could not be tested: {event['reason']}"
            deadline = time.monotonic() + allowed


def _parse_event(line: bytes) -> dict[str, Any] | None:
    """Parse an event; None for other output, such as that of a library."""
    try:
        parsed = json.loads(line)
    except ValueError:
        return None
    return parsed if isinstance(parsed, dict) and "event" in parsed else None


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
