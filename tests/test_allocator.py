"""Freed memory that the process keeps, with glibc."""

import os
import platform
import subprocess
import sys

import pytest

# Runs a command, allocates and frees 64 MiB 21 times, and prints the number of page faults after the first time.
COUNT_FAULTS = """
import resource, sys
from lambdanets.__main__ import console
sys.argv = ["lambdanets", "--version"]
try:
    console()
except SystemExit:
    pass
x = bytearray(2**26); del x
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    x = bytearray(2**26); del x
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def run(code: str, **environment: str) -> list[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, env=inherited | environment, check=True, capture_output=True, text=True
    ).stdout.split()


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs mallopt, which only glibc has")
def test_the_command_line_keeps_freed_memory() -> None:
    assert int(run(COUNT_FAULTS)[-1]) < 200  # one allocation has 16,384 pages of 4 KiB, or 32 of 2 MiB


def test_settings_of_the_environment_are_not_changed() -> None:
    code = "import lambdanets.allocator as a; print(a.keep_freed_memory())"
    assert run(code, MALLOC_MMAP_THRESHOLD_="65536") == ["False"]
    assert run(code, GLIBC_TUNABLES="glibc.malloc.mmap_threshold=65536") == ["False"]
