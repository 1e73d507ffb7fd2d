"""Builds the sdist and the wheels of a release, checks them, and prints what to type to publish it: make release.

python dev/release.py [--build-only] [--tests PATHS]

Each wheel that this machine can run is installed into fresh environments, on every Python of the classifiers that is
here, with the core only and with each extra, without a compiler.
"""

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "native"))

from libraries import platform_of_this_machine

ROOT = Path(__file__).parents[1]
DIST, WORK = ROOT / "dist", ROOT / "build/release"
NOT_IN_SDIST = (".ci/", ".github/")
GLIBC = r"manylinux_2_(\d+)"
# The oldest systems for which PyTorch, and OpenVINO for the extra export, have wheels.
PLATFORMS = ("x86_64-manylinux_2_28", "aarch64-manylinux_2_35", "aarch64-apple-darwin", "x86_64-pc-windows-msvc")
CORE = """
import torch, lambdanets as ln
from PIL import Image
Image.new("RGB", (64, 64)).save("image.png")
ln.LambdaLayer2d(8)(torch.randn(2, 8, 9, 9)).sum().backward()
print(len(ln.load("digits").predict("image.png")), "class of a digit,", ln.create_model("lambda_resnet50").num_classes)
"""
# What runs in an environment with an extra, "" for none.
SMOKE_TESTS: dict[str, list[list[str]]] = {
    "": [
        ["lambdanets", "--version"],
        ["lambdanets", "kernels"],
        ["python", "-c", CORE],
        ["lambdanets", "predict", "digits", "image.png"],
    ],
    "train": [["lambdanets", "train", "digits", "--quicktest", "--run", "run"]],
    "detection": [["python", "-c", CORE], ["lambdanets", "predict", "nuclei", "image.png", "--out", "nuclei"]],
    "export": [["lambdanets", "export", "digits", "--out", "digits.onnx"]],
    "bench": [["lambdanets", "benchmark", "layer", "--shapes", "8x8x16", "--scopes", "3", "--seconds", "0.1"]],
    "demo": [["python", "-c", "import lambdanets_lab.demo.app"]],
}


class ReleaseError(Exception):
    """A release must not be published like this."""


def run(command: Sequence[object], **options: Any) -> str:
    """Run a command and return its output. Raises ReleaseError with its output if it fails."""
    process = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False, **options)
    if process.returncode:
        lines = f"{process.stdout}{process.stderr}".strip()[-3000:]
        raise ReleaseError(f"{' '.join(map(str, command))} failed:\n{lines}")
    return process.stdout


def tool(name: str, *arguments: object, **options: Any) -> str:
    return run([sys.executable, "-m", name, *arguments], **options)


def check_version(root: Path) -> str:
    """Return the version of a clean tree, which CHANGELOG.md, CITATION.cff and a tag must have too."""
    version = find(r'^__version__ = "(.+)"$', root / "src/lambdanets/__init__.py")
    for name, pattern in (("CHANGELOG.md", r"^## (.+)$"), ("CITATION.cff", r"^version: (.+)$")):
        if (other := find(pattern, root / name)) != version:
            raise ReleaseError(f"the first version in {name} must be {version}, as in __init__.py, got {other}")
    if changed := run(["git", "status", "--porcelain"], cwd=root).splitlines():
        raise ReleaseError(f"all files must be committed, got {len(changed)} that are not, such as {changed[0][3:]}")
    here = run(["git", "tag", "--points-at", "HEAD", "v*"], cwd=root).split()
    if here not in ([], [f"v{version}"]):
        raise ReleaseError(f"the tag of this commit must be v{version}, got {', '.join(here)}")
    if not here and run(["git", "tag", "--list", f"v{version}"], cwd=root):
        raise ReleaseError(f"v{version} is the tag of another commit; write a new version")
    return version


def find(pattern: str, path: Path) -> str:
    """The first group of the first match in a file."""
    match = re.search(pattern, path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return match[1] if match else "none"


def members(archive: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the content of each file in a wheel or sdist."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            yield from ((name, wheel.read(name)) for name in wheel.namelist())
        return
    with tarfile.open(archive) as sdist:
        for member in sdist:
            file = sdist.extractfile(member)
            if file is not None:
                yield member.name.partition("/")[2], file.read()


def check_sdist(sdist: Path, tracked: Sequence[str]) -> None:
    """The sdist must have all files of the repository, and no others."""
    expected = {name for name in tracked if not name.startswith(NOT_IN_SDIST)} | {"PKG-INFO"}
    if different := sorted(expected ^ {name for name, _ in members(sdist)}):
        raise ReleaseError(f"{sdist.name} must have the files of the repository; missing or added: {different[:5]}")


def check_paths(archive: Path) -> None:
    """No file may have a path of this machine."""
    paths = [str(ROOT), f"{Path.home()}{os.sep}", sys.prefix, str(Path(tempfile.gettempdir(), "tmp"))]
    for name, content in members(archive):
        if found := [path for path in paths if path.encode() in content]:
            raise ReleaseError(f"{name} in {archive.name} must have no path of this machine, got {found[0]}")


def build() -> list[Path]:
    """Build the sdist and the wheels, and return the paths of the checked files."""
    shutil.rmtree(DIST, ignore_errors=True)
    print(run([sys.executable, ROOT / "native/wheels.py", "--out", DIST], cwd=ROOT), end="")
    (sdist,), wheels = DIST.glob("*.tar.gz"), sorted(DIST.glob("*.whl"))
    check_sdist(sdist, run(["git", "ls-files"], cwd=ROOT).splitlines())
    tool("twine", "check", "--strict", sdist, *wheels)
    for archive in (sdist, *wheels):
        check_paths(archive)
    for wheel in wheels:
        tool("check_wheel_contents", wheel, cwd=ROOT)
        if tag := re.search(GLIBC, wheel.name):
            found = re.search(f'"{GLIBC}', shown := tool("auditwheel", "show", wheel))
            if found is None or int(found[1]) > int(tag[1]):
                raise ReleaseError(f"{wheel.name} must need glibc 2.{tag[1]} or an older one, got {shown}")
    return [sdist, *wheels]


def check_dependencies(wheel: Path, versions: Sequence[str]) -> None:
    """All dependencies of all extras must have wheels for each Python on each platform."""
    for version in versions:
        for platform in PLATFORMS:
            tool(
                *("uv", "pip", "compile", "--quiet", "--only-binary", ":all:", "--python-version", version),
                *("--python-platform", platform, "-"),
                input=f"lambdanets[all] @ {wheel.as_uri()}",
                env=os.environ | {"MACOSX_DEPLOYMENT_TARGET": "14.0"},  # of PyTorch and onnxruntime
            )


def find_python(version: str) -> str | None:
    """The path of an installed Python, also of pyenv; None if there is none."""
    paths = [*map(str, Path.home().glob(".pyenv/versions/*/bin")), os.environ["PATH"]]
    environment = os.environ | {"PATH": os.pathsep.join(paths)}
    try:
        return tool("uv", "python", "find", "--no-python-downloads", "--system", version, env=environment).strip()
    except ReleaseError:
        return None


def install(python: str, *requirements: object, options: Sequence[object] = (), cwd: Path = ROOT) -> dict[str, str]:
    """Install into a fresh environment, and return the variables in which its programs run: PATH has no compiler."""
    folder = WORK / "env"  # always the same, so that compiled files of Python are found
    tool("uv", "venv", "--quiet", "--clear", "--python", python, folder)
    tool("uv", "pip", "install", "--quiet", "--python", folder, *options, *requirements, cwd=cwd)
    caches = {"HOME": str(WORK), "PYTHONPYCACHEPREFIX": str(WORK / "pycache")}
    return caches | {"PATH": str(folder / "bin"), "OMP_NUM_THREADS": "1"}


def check_wheel(wheel: Path, python: str, extra: str) -> str:
    """Install a wheel and its extra, run its smoke tests, and return what they print last."""
    requirement = f"lambdanets[{extra}] @ {wheel.as_uri()}" if extra else str(wheel)
    environment = install(python, requirement, options=("--only-binary", ":all:"))
    with tempfile.TemporaryDirectory() as folder:
        for program, *arguments in SMOKE_TESTS[extra]:
            path = str(Path(environment["PATH"], program))
            output = run([path, *arguments], cwd=folder, env=environment)
            if arguments == ["kernels"] and "none" in output:
                raise ReleaseError(f"{wheel.name} must have a library for this processor, got {output}")
    return output.strip().splitlines()[-1] if output.strip() else "imported"


def check_tests_of_sdist(sdist: Path, python: str, tests: Sequence[str]) -> str:
    """Install an unpacked sdist, with a compiler, and run its tests with nothing but its files."""
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(sdist) as archive:
            archive.extractall(folder, filter="data")
        (source,) = Path(folder).iterdir()
        environment = install(python, ".[detection,export,demo]", options=("--group", "dev"), cwd=source)
        environment["PATH"] += os.pathsep + os.environ["PATH"]
        command = ["python", "-m", "pytest", "-q", "-n", "2", "--dist", "loadgroup", *tests]
        return run(command, cwd=source, env=environment).strip().splitlines()[-1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build-only", action="store_true", help="build the files and check them; install nothing")
    parser.add_argument("--tests", nargs="+", default=["tests/ops", "tests/layers"], help="of the sdist; tests: all")
    arguments = parser.parse_args()
    start = time.monotonic()

    def report(line: str) -> None:
        print(f"{(time.monotonic() - start) / 60:5.1f} min  {line}", flush=True)

    try:
        version = check_version(ROOT)
        sdist, *wheels = build()
        report(f"{len(wheels)} wheels and the sdist of {version} are checked")
        sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in (sdist, *wheels)]
        print(*sums, sep="", end="")
        if arguments.build_only:
            return 0
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        versions = re.findall(r"Python :: (3\.\d+)", " ".join(project["classifiers"]))
        check_dependencies(wheels[0], versions)
        report(f"all extras have dependencies for Python {', '.join(versions)} on {', '.join(PLATFORMS)}")
        wheel = DIST / f"lambdanets-{version}-py3-none-{platform_of_this_machine() or 'any'}.whl"
        pythons = {found: version for version in versions if (found := find_python(version))}
        for python in pythons:
            for extra in SMOKE_TESTS:
                report(f"Python {pythons[python]} [{extra}]: {check_wheel(wheel, python, extra)}")
        report(f"not here: Python {', '.join(set(versions) - set(pythons.values())) or 'none'}")
        report(f"sdist alone: {check_tests_of_sdist(sdist, next(iter(pythons)), arguments.tests)}")
        (DIST / "SHA256SUMS").write_text("".join(sums), encoding="utf-8")
    except ReleaseError as error:
        print(f"release: {error}", file=sys.stderr)
        return 2
    tag = f'git tag --annotate v{version} --message "lambdanets {version}"'
    print("\nTo publish, type:\n", tag, f"git push origin v{version}", sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
