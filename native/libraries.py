"""Compiles the native engine for a platform, or with other flags, by the package ziglang or the system's compiler.

The libraries do not depend on the processor of the build: each is for one instruction set.
"""

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import codelets

SOURCES = Path(__file__).parent
FLAGS = ("-O3", "-fPIC", "-ffp-contract=fast", "-fno-math-errno", "-fvisibility=hidden", "-Wno-psabi")
# By machine: libraries, their instruction set (for zig, and for gcc and clang), other flags, and value channels in a
# vector of each kernel: float32 in wide and in narrow vectors, float64. position/native.py finds them by name.
LIBRARIES = {
    "x86_64": (
        # Without the width, clang halves the vectors of 512 bits: 1.3 times as slow.
        ("x86-64-v4", "-mcpu=x86_64_v4", "-march=x86-64-v4", ("-mprefer-vector-width=512",), (16, 8, 8)),
        ("x86-64-v3", "-mcpu=x86_64_v3", "-march=x86-64-v3", (), (8, 8, 4)),
        ("x86-64-v2", "-mcpu=x86_64_v2", "-march=x86-64-v2", (), (4, 4, 4)),
    ),
    "aarch64": (("aarch64", "-mcpu=generic", "-march=armv8-a", (), (4, 4, 4)),),
}
KERNELS = (("wide", "float"), ("narrow", "float"), ("float64", "double"))
# By platform of a wheel: the machine, zig's name of the system, and the suffix of libraries.
PLATFORMS = {
    "manylinux_2_17_x86_64": ("x86_64", "linux-gnu.2.17", ".so"),
    "manylinux_2_17_aarch64": ("aarch64", "linux-gnu.2.17", ".so"),
    "macosx_11_0_arm64": ("aarch64", "macos.11.0", ".dylib"),
    "win_amd64": ("x86_64", "windows-gnu", ".dll"),
    "win_arm64": ("aarch64", "windows-gnu", ".dll"),
}


def platform_of_this_machine() -> str | None:
    """The name in PLATFORMS, or None: that of Python, which may run on an emulated processor or build for another."""
    system, _, machine = sysconfig.get_platform().replace("universal2", platform.machine()).rpartition("-")
    prefix = system.partition("-")[0].replace("linux", "manylinux")
    return next((name for name in PLATFORMS if name.startswith(prefix) and name.endswith(f"_{machine}")), None)


def compilers(platform: str, only_zig: bool = False) -> list[tuple[list[str], bool]]:
    """Commands of the C compilers that are installed, the best first, and whether they are zig's."""
    found = []
    machine, system, _ = PLATFORMS[platform]
    if importlib.util.find_spec("ziglang"):
        found.append(([sys.executable, "-m", "ziglang", "cc", "-target", f"{machine}-{system}", "-g0"], True))
    return found + [([name], False) for name in ("cc", "clang", "gcc") if not only_zig and shutil.which(name)]


def object_commands(base: Sequence[str], lanes: Sequence[int], folder: Path, name: str) -> list[list[str]]:
    """Commands that compile the sources for vectors with these lanes; each ends with the path of its object."""
    (folder / "codelets.h").write_text(codelets.header(), encoding="utf-8")
    base = [*base, f"-I{folder}", "-c"]
    kernels = [(*kernel, count) for kernel, count in zip(KERNELS, lanes, strict=True)]
    narrow = "wide" if lanes[0] == lanes[1] else "narrow"
    commands = [[*base, f"-DNARROW={narrow}", str(SOURCES / "dispatch.c"), "-o", str(folder / f"{name}.o")]]
    for kernel, real, count in kernels if narrow == "narrow" else (kernels[0], kernels[2]):
        defined = [f"-DKERNEL={kernel}", f"-DREAL={real}", f"-DVL={count}"]
        defined += ["-DTABLES"] if real == "double" else []
        commands.append([*base, *defined, str(SOURCES / "kernel.c"), "-o", str(folder / f"{name}_{kernel}.o")])
    return commands


def run_all(commands: Sequence[Sequence[str]]) -> None:
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda command: subprocess.run(command, capture_output=True, check=True), commands))


def build_libraries(compiler: Sequence[str], is_zig: bool, platform: str, folder: Path, output: Path) -> None:
    machine, system, suffix = PLATFORMS[platform]
    commands, links = [], []
    for name, zig_flag, other_flag, flags, lanes in LIBRARIES[machine]:
        base = [*compiler, *FLAGS, zig_flag if is_zig else other_flag, *flags]
        objects = object_commands(base, lanes, folder, name)
        others = [] if "windows" in system else ["-lpthread"]
        if suffix == ".dylib":  # otherwise its name is the path in the temporary folder
            others.append(f"-Wl,-install_name,@rpath/{name}{suffix}")
        commands += objects
        library = str(folder / f"{name}{suffix}")
        links.append([*base, "-s", "-shared", *(command[-1] for command in objects), *others, "-o", library])
    run_all(commands)
    run_all(links)
    for link in links:  # without the other files that linkers for Windows write
        shutil.copy(link[-1], output)
