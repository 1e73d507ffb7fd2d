"""Freed memory that the process keeps, with glibc."""

import os
import platform
import subprocess
import sys

import pytest

from lambdanets.allocator import keep_freed_memory

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


SETTINGS = ("MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES", "LD_PRELOAD")


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs mallopt, which only glibc has")
def test_the_command_line_keeps_freed_memory() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", *SETTINGS))}
    output = subprocess.check_output([sys.executable, "-c", COUNT_FAULTS], env=environment, text=True)
    assert int(output.split()[-1]) < 200  # one allocation has 16,384 pages of 4 KiB, or 32 of 2 MiB


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_of_the_environment_are_not_changed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for other in [other for other in os.environ if other.startswith(("MALLOC_", *SETTINGS))]:
        monkeypatch.delenv(other)
    monkeypatch.setenv(name, "of the user")
    assert not keep_freed_memory()
