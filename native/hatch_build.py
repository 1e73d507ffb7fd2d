"""Compiles the native engine for the wheel and for editable installations; without a compiler both are pure Python.

The compiler is that of the package ziglang, which is a build requirement, or else the system's. The libraries do not
depend on the processor of the build: each is for one instruction set.
"""

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FLAGS = ("-O3", "-fPIC", "-ffp-contract=fast", "-fno-math-errno", "-fvisibility=hidden", "-Wno-psabi")
# By machine: libraries, their instruction set (for zig, and for gcc and clang), and value channels in a vector of each
# kernel: float32 in wide and in narrow vectors, float64.
LIBRARIES = {
    "x86_64": (
        ("x86-64-v4", "-mcpu=x86_64_v4", "-march=x86-64-v4", (16, 8, 8)),
        ("x86-64-v3", "-mcpu=x86_64_v3", "-march=x86-64-v3", (8, 8, 4)),
        ("x86-64-v2", "-mcpu=x86_64_v2", "-march=x86-64-v2", (4, 4, 4)),
    ),
    "aarch64": (("aarch64", "-mcpu=generic", "-march=armv8-a", (4, 4, 4)),),
}
KERNELS = (("wide", "float"), ("narrow", "float"), ("float64", "double"))
TARGETS = {"linux": "{}-linux-gnu.2.17", "darwin": "{}-macos", "win32": "{}-windows-gnu"}


class NativeBuildHook(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(name := platform.machine().lower(), name)
        output = Path(self.root, "src/lambdanets/ops/position/libraries")
        shutil.rmtree(output, ignore_errors=True)
        if machine not in LIBRARIES or sys.platform not in TARGETS or os.environ.get("LAMBDANETS_PURE"):
            return
        output.mkdir()
        (output / ".gitignore").write_text("*\n", encoding="utf-8")
        with tempfile.TemporaryDirectory() as folder:
            for compiler, is_zig in compilers(TARGETS[sys.platform].format(machine)):
                try:
                    build_libraries(compiler, is_zig, machine, Path(self.root, "native"), Path(folder), output)
                    break
                except (OSError, subprocess.CalledProcessError) as error:
                    output_of_compiler = getattr(error, "stderr", b"") or b""
                    self.app.display_warning(
                        f"{' '.join(compiler)}: {error} {output_of_compiler.decode(errors='replace')}"
                    )
            else:
                shutil.rmtree(output)
                self.app.display_warning("no compiler: the package has no native engine, and is slower on CPUs")
                return
        build_data["pure_python"] = False
        system = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{f'manylinux_2_17_{machine}' if sys.platform == 'linux' else system}"


def compilers(target: str) -> list[tuple[list[str], bool]]:
    """Commands of the C compilers that are installed, the best first, and whether they are zig's."""
    found = []
    if importlib.util.find_spec("ziglang"):
        found.append(([sys.executable, "-m", "ziglang", "cc", "-target", target, "-g0"], True))
    return found + [([name], False) for name in ("cc", "clang", "gcc") if shutil.which(name)]


def build_libraries(
    compiler: Sequence[str], is_zig: bool, machine: str, sources: Path, folder: Path, output: Path
) -> None:
    codelets = subprocess.run([sys.executable, sources / "codelets.py"], capture_output=True, text=True, check=True)
    (folder / "codelets.h").write_text(codelets.stdout, encoding="utf-8")
    suffix = {"win32": ".dll", "darwin": ".dylib"}.get(sys.platform, ".so")
    commands, links = [], []
    for name, zig_flag, other_flag, lanes in LIBRARIES[machine]:
        base = [*compiler, *FLAGS, zig_flag if is_zig else other_flag, f"-I{folder}"]
        kernels = [(*kernel, count) for kernel, count in zip(KERNELS, lanes, strict=True)]
        narrow = "wide" if lanes[0] == lanes[1] else "narrow"
        objects = [folder / f"{name}.o"]
        commands.append([*base, f"-DNARROW={narrow}", "-c", sources / "dispatch.c", "-o", objects[0]])
        for kernel, real, count in kernels if narrow == "narrow" else (kernels[0], kernels[2]):
            objects.append(folder / f"{name}_{kernel}.o")
            defined = [f"-DKERNEL={kernel}", f"-DREAL={real}", f"-DVL={count}"]
            commands.append([*base, *defined, "-c", sources / "kernel.c", "-o", objects[-1]])
        threads = [] if sys.platform == "win32" else ["-lpthread"]
        links.append([*base, "-s", "-shared", *objects, *threads, "-o", output / f"{name}{suffix}"])
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for step in (commands, links):
            list(pool.map(lambda command: subprocess.run(command, capture_output=True, check=True), step))
