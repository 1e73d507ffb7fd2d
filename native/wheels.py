"""Builds a wheel for each platform, and checks what its libraries export and need.

python -m pip install "hatchling>=1.27" "ziglang>=0.17,<0.18"
python native/wheels.py --out dist

Also writes the source distribution, from which the wheels are built.
"""

import argparse
import os
import re
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

from libraries import LIBRARIES, PLATFORMS, SOURCES, platform_of_this_machine

ENTRY_POINTS = {f"lambdanets_{name}" for name in ("lanes", "problem_bytes", "run", "scratch_bytes")}
# What all systems of a platform have, by the suffix of libraries.
SYSTEM_LIBRARIES = {
    ".so": r"(lib(c|m|pthread)|ld-linux-x86-64)\.so\.\d",
    ".dylib": r"/usr/lib/libSystem\.B\.dylib",
    ".dll": r"(kernel32|api-ms-win-crt-[a-z0-9-]+)\.dll",
}
MAX_GLIBC, MAX_MACOS = (2, 17), (11, 0)  # those of the tags in PLATFORMS


def string(data: bytes, at: int) -> str:
    return data[at : data.index(0, at)].decode()


def read_elf(data: bytes) -> Iterator[tuple[str, str]]:
    """Yield ("exports", symbol), ("needs", library or version), and ("starts", code that runs at loading)."""
    (table,), (count,) = struct.unpack_from("<Q", data, 40), struct.unpack_from("<H", data, 60)
    # name, type, flags, address, offset, size, link, info, alignment, size of entries
    sections = [struct.unpack_from("<2I4Q2I2Q", data, table + 64 * i) for i in range(count)]
    for _, kind, _, _, offset, size, link, info, _, _ in sections:
        names = sections[link][4] if link < count else 0
        if kind == 11:  # symbols
            for at in range(offset, offset + size, 24):
                name, binding, _, section = struct.unpack_from("<IBBH", data, at)
                if section and binding >> 4:
                    yield "exports", string(data, names + name)
        elif kind == 6:  # dynamic section: libraries, and arrays of functions
            for at in range(offset, offset + size, 16):
                tag, value = struct.unpack_from("<qQ", data, at)
                if tag == 1:
                    yield "needs", string(data, names + value)
                elif tag in (12, 27) and value:  # DT_INIT, DT_INIT_ARRAYSZ
                    yield "starts", f"{value} bytes"
        elif kind == 0x6FFFFFFE:  # versions of symbols
            for _ in range(info):
                _, versions, _, first, following = struct.unpack_from("<2H3I", data, offset)
                at = offset + first
                for _ in range(versions):
                    _, _, _, name, step = struct.unpack_from("<I2H2I", data, at)
                    yield "needs", string(data, names + name)
                    at += step
                offset += following


def read_macho(data: bytes) -> Iterator[tuple[str, str]]:
    (count,), at = struct.unpack_from("<I", data, 16), 32
    for _ in range(count):
        command, size, *values = struct.unpack_from("<6I", data, at)
        if command & 0xFF in (0x0C, 0x18, 0x1F):  # libraries
            yield "needs", string(data, at + values[0])
        elif command == 0x32:  # the minimum version
            yield "needs", f"MACOS_{values[1] >> 16}.{values[1] >> 8 & 255}"
        elif command == 0x02:  # symbols
            for symbol in range(values[0], values[0] + 16 * values[1], 16):
                name, kind = struct.unpack_from("<IB", data, symbol)
                symbol_name = string(data, values[2] + name)
                # External symbols in a section; the linker adds two.
                if kind & 0x1F == 0x0F and symbol_name not in (
                    "___dso_handle",
                    "__mh_dylib_header",
                ):
                    yield "exports", symbol_name.removeprefix("_")
        elif command == 0x19:  # sections of a segment
            for section in range(at + 72, at + size, 80):
                if struct.unpack_from("<I", data, section + 64)[0] & 0xFF in (0x09, 0x16):
                    yield "starts", string(data, section)
        at += size


def read_pe(data: bytes) -> Iterator[tuple[str, str]]:
    (header,) = struct.unpack_from("<I", data, 60)
    (count,), (optional,) = (
        struct.unpack_from("<H", data, header + 6),
        struct.unpack_from("<H", data, header + 20),
    )
    table = header + 24 + optional
    sections = [struct.unpack_from("<4I", data, table + 40 * i + 8) for i in range(count)]

    def locate(address: int) -> int:
        return next(file + address - start for _, start, size, file in sections if start <= address < start + size)

    exports, _, imports = struct.unpack_from("<3I", data, header + 24 + 112)
    (count,), (names,) = (struct.unpack_from("<I", data, locate(exports) + at) for at in (24, 32))
    for name in struct.unpack_from(f"<{count}I", data, locate(names)):
        yield "exports", string(data, locate(name))
    at = locate(imports)
    while name := struct.unpack_from("<I", data, at + 12)[0]:
        yield "needs", string(data, locate(name)).lower()
        at += 20


READERS = {".so": read_elf, ".dylib": read_macho, ".dll": read_pe}


def find_faults(data: bytes, suffix: str) -> Iterator[str]:
    """What would keep a library from being loaded on the oldest system of its platform, or is not its own."""
    contents = list(READERS[suffix](data))
    exports = {value for kind, value in contents if kind == "exports"}
    if exports != ENTRY_POINTS:
        yield f"exports {', '.join(sorted(exports ^ ENTRY_POINTS))}"
    for kind, value in contents:
        version = re.fullmatch(r"(GLIBC|MACOS)_([\d.]+)", value)
        if kind == "starts":
            yield f"runs code when it is loaded: {value}"
        elif kind == "needs" and version:
            limit = MAX_GLIBC if version[1] == "GLIBC" else MAX_MACOS
            if tuple(map(int, version[2].split("."))) > limit:
                yield f"needs {value}"
        elif kind == "needs" and not re.fullmatch(SYSTEM_LIBRARIES[suffix], value):
            yield f"needs {value}"
    if b"__cpu_model" in data:
        yield "asks for the processor by itself"


def check_wheel(wheel: Path, platform: str) -> list[str]:
    machine, _, suffix = PLATFORMS[platform]
    faults = [] if wheel.name.endswith(f"-py3-none-{platform}.whl") else [f"the tag must be {platform}"]
    with zipfile.ZipFile(wheel) as archive:
        libraries = {Path(name).name: name for name in archive.namelist() if re.search("/libraries/[^.]", name)}
        expected = {name + suffix for name, *_ in LIBRARIES[machine]}
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
        choices=PLATFORMS,
        default=list(PLATFORMS),
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
