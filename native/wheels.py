"""Builds a wheel for each platform, one without libraries for all others, and checks what libraries export and need.

python -m pip install --group release
python native/wheels.py --out dist

Also writes the source distribution, from which the wheels are built.
"""

import argparse
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import lief
from libraries import LIBRARIES, PLATFORMS, SOURCES, platform_of_this_machine

lief.logging.disable()
ENTRY_POINTS = {f"lambdanets_{name}" for name in ("lanes", "problem_bytes", "run", "scratch_bytes", "transform_tables")}
LINKER_SYMBOLS = {"_mh_dylib_header", "__dso_handle"}
# What all systems of a platform have, by the suffix of libraries.
SYSTEM_LIBRARIES = {
    ".so": r"(lib(c|m|pthread)|ld-linux-x86-64)\.so\.\d",
    ".dylib": r"/usr/lib/libSystem\.B\.dylib",
    ".dll": r"(kernel32|api-ms-win-crt-[a-z0-9-]+)\.dll",
}
MAX_GLIBC, MAX_MACOS = (2, 17), (11, 0)  # those of the tags in PLATFORMS


def requirements(binary: lief.Binary) -> Iterator[str]:
    """The libraries and the newest systems that a library needs: names, GLIBC_2.17, MACOS_11.0."""
    if isinstance(binary, lief.MachO.Binary):
        yield "MACOS_" + ".".join(map(str, binary.build_version.minos[:2]))
        own_name = lief.MachO.LoadCommand.TYPE.ID_DYLIB
        yield from (library.name for library in binary.libraries if library.command != own_name)
        return
    yield from (name.lower() for name in binary.libraries)
    if isinstance(binary, lief.ELF.Binary):
        for version in binary.symbols_version_requirement:
            yield from (symbol.name for symbol in version.get_auxiliary_symbols())


def find_faults(data: bytes, suffix: str) -> Iterator[str]:
    """What would keep a library from being loaded on the oldest system of its platform, or is not its own."""
    binary = lief.parse(data)
    exports = {function.name.removeprefix("_") for function in binary.exported_functions} - LINKER_SYMBOLS
    if exports != ENTRY_POINTS:
        yield f"exports {', '.join(sorted(exports ^ ENTRY_POINTS))}"
    for name in requirements(binary):
        version = re.fullmatch(r"(GLIBC|MACOS)_([\d.]+)", name)
        if version:
            limit = MAX_GLIBC if version[1] == "GLIBC" else MAX_MACOS
            if tuple(map(int, version[2].split("."))) > limit:
                yield f"needs {name}"
        elif not re.fullmatch(SYSTEM_LIBRARIES[suffix], name):
            yield f"needs {name}"
    if binary.ctor_functions and suffix != ".dll":  # which has the two of its C runtime
        yield "runs code when it is loaded"
    must_be_signed = suffix == ".dylib" and binary.header.cpu_type == lief.MachO.Header.CPU_TYPE.ARM64
    if must_be_signed and not binary.has_code_signature:
        yield "is not signed"
    if b"__cpu_model" in data:
        yield "asks for the processor by itself"


def check_wheel(wheel: Path, platform: str) -> list[str]:
    machine, _, suffix = PLATFORMS.get(platform, ("", "", ""))
    faults = [] if wheel.name.endswith(f"-py3-none-{platform}.whl") else [f"the tag must be {platform}"]
    with zipfile.ZipFile(wheel) as archive:
        libraries = {Path(name).name: name for name in archive.namelist() if re.search("/libraries/[^.]", name)}
        expected = {name + suffix for name, *_ in LIBRARIES.get(machine, ())}
        if set(libraries) != expected:
            faults.append(f"libraries must be {sorted(expected)}, got {sorted(libraries)}")
        for name, path in libraries.items():
            if name.endswith(suffix):
                faults += [f"{name} {fault}" for fault in find_faults(archive.read(path), suffix)]
    return faults


def build(kind: str, source: Path, out: Path, platform: str = "") -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(out.resolve())]
    environment = os.environ | ({"LAMBDANETS_PLATFORM": platform} if platform else {})
    before = set(out.iterdir())
    subprocess.run(command, cwd=source, env=environment, stdout=subprocess.DEVNULL, check=True)
    return next(path for path in out.iterdir() if path not in before)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("dist"), help="a folder without files of this version")
    parser.add_argument(
        "--platforms",
        nargs="+",
        choices=(*PLATFORMS, "any"),
        default=(*PLATFORMS, "any"),
        help=f"here: {platform_of_this_machine()}",
    )
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    failed = False
    sdist = build("sdist", SOURCES.parent, arguments.out)
    with tempfile.TemporaryDirectory() as folder:  # a build replaces the libraries in its source folder
        with tarfile.open(sdist) as archive:
            archive.extractall(folder, filter="data")
        (source,) = Path(folder).iterdir()
        for platform in arguments.platforms:
            start = time.perf_counter()
            wheel = build("wheel", source, arguments.out, platform)
            seconds, faults = time.perf_counter() - start, check_wheel(wheel, platform)
            print(
                f"{wheel.name}: {wheel.stat().st_size / 1e6:.2f} MB, {seconds:.0f} s, {'; '.join(faults) or 'checked'}"
            )
            failed |= bool(faults)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
