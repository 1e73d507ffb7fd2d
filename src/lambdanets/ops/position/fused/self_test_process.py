"""Starts the self-test of the fused kernels in a process of its own, and outlives whatever happens to it."""

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

# The self-test; device, its name, dtype and kernels follow.
SELF_TEST = (sys.executable or "python", "-m", "lambdanets.ops.position.fused.self_test")
SECONDS_TO_START = 300.0  # until it is ready: on a busy machine with a slow disk it imports for minutes


@dataclass(frozen=True)
class Verdict:
    """What the self-test found of a kernel in a dtype on a device.

    reason: why it is not used; "" if it passed. error, allowed: its largest relative error and the limit. seconds: that
    the test took, compilation included.
    """

    reason: str
    error: float | None = None
    allowed: float | None = None
    seconds: float | None = None


def time_limit() -> float:
    """Seconds that the self-test of a kernel may take, compilation included: LAMBDANETS_KERNEL_TEST_SECONDS, or 120."""
    text = os.environ.get("LAMBDANETS_KERNEL_TEST_SECONDS", "120")
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise ValueError(f"LAMBDANETS_KERNEL_TEST_SECONDS must be a positive number of seconds, got {text!r}")
    return seconds


def dtype_name(dtype: torch.dtype) -> str:
    """Such as "float32"."""
    return str(dtype).removeprefix("torch.")


def run_self_test(
    device: KernelDevice, dtype: torch.dtype, kernels: Sequence[str]
) -> tuple[dict[str, Verdict], dict[str, Verdict]]:
    """The verdicts on kernels, and on those that could not be tested, which hold for this process alone.

    A process that dies is blamed on the kernel under test, and another one tests the rest. At a hang the rest is not
    tested, so that the time lost is bounded.
    """
    kept: dict[str, Verdict] = {}
    while remaining := [name for name in kernels if name not in kept]:
        process = _Process(device, dtype, remaining)
        kept |= process.verdicts
        if process.blamed:
            kept[process.blamed] = Verdict(process.ending)
        rest = [name for name in remaining if name not in kept]
        if rest and (process.hangs or not (process.verdicts or process.blamed)):
            blamed = f"{process.blamed} " if process.blamed else ""
            reason = f"could not be tested: {blamed}{process.ending}"
            return kept, {name: Verdict(process.unable.get(name, reason)) for name in rest}
        if process.unable:
            return kept, {name: Verdict(process.unable.get(name, "was not tested")) for name in rest}
    return kept, {}


class _Process:
    """A process of the self-test, from its start to its end.

    verdicts: that it gave. blamed: the kernel under test when it died or was ended, or "". ending: how it ended.
    unable: kernels that it could not test, and why. hangs: whether it was ended because nothing came in time.
    """

    def __init__(self, device: KernelDevice, dtype: torch.dtype, kernels: Sequence[str]) -> None:
        self.verdicts: dict[str, Verdict] = {}
        self.unable: dict[str, str] = {}
        self.blamed = self.ending = ""
        self.hangs = False
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
                    start_new_session=True,  # its compiler's processes end with it
                )
            except OSError as error:
                self.ending = f"{command[0]} does not start: {error}"
                return
            try:
                self._follow(process, limit)
            finally:
                _end(process)
            errors.seek(0)
            lines = errors.read().decode(errors="replace").strip().splitlines()
        if not self.hangs:
            self.ending = f"ended the self-test's process, exit code {process.returncode}"
            if lines and process.returncode:
                self.ending += f": {lines[-1][:300]}"

    def _follow(self, process: subprocess.Popen[bytes], limit: float) -> None:
        """Take in the process's events until it ends, or until none comes in time."""
        lines: queue.Queue[bytes | None] = queue.Queue()
        reader = threading.Thread(target=_read_lines, args=(process, lines), daemon=True)
        reader.start()
        allowed = SECONDS_TO_START
        deadline = time.monotonic() + allowed
        while True:
            try:
                line = lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                self.hangs = True
                self.ending = f"took longer than {allowed:g} s to {'compile and test' if self.blamed else 'start'}"
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
                self.blamed, allowed = kernel, limit
            else:
                self.blamed, allowed = "", SECONDS_TO_START
            if kind == "verdict":
                self.verdicts[kernel] = Verdict(*(event[field] for field in ("reason", "error", "allowed", "seconds")))
            elif kind == "unable":
                self.unable[kernel] = f"could not be tested: {event['reason']}"
            deadline = time.monotonic() + allowed


def _event(line: bytes) -> dict[str, Any] | None:
    """An event, or None for what a library prints."""
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


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the process and those it started, and wait for it."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL) if hasattr(os, "killpg") else process.kill()
    process.wait()
