"""Functions that create, change or remove the files of an input in its working folder."""

import io
import json
import os
import pickle
import shutil
import socket
import tarfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from .fixtures import noise
from .inputs import Setup
from .running import CANARY


def file(name: str | bytes, content: bytes | str = b"") -> Setup:
    """A file with this content."""
    data = content.encode() if isinstance(content, str) else content

    def setup(cwd: Path, fixtures: Mapping[str, Any]) -> None:
        path = cwd / os.fsdecode(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    return setup


def folder(name: str) -> Setup:
    return lambda cwd, fixtures: (cwd / name).mkdir(parents=True)


def copy(source: str, name: str) -> Setup:
    """Copy a fixture such as "run", or a file in it such as "run/weights.safetensors"."""

    def setup(cwd: Path, fixtures: Mapping[str, Any]) -> None:
        fixture, _, path = source.partition("/")
        source_path = fixtures[fixture] / path
        (cwd / name).parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if source_path.is_dir() else shutil.copy2)(source_path, cwd / name)

    return setup


def truncate(name: str, length: float) -> Setup:
    """Truncate a file to `length` bytes or, if below 1, to that fraction of its length."""

    def setup(cwd: Path, fixtures: Mapping[str, Any]) -> None:
        path = cwd / name
        os.truncate(path, int(length * path.stat().st_size) if length < 1 else int(length))

    return setup


def flip_byte(name: str, position: float = 0.5) -> Setup:
    """Invert the bits of one byte of a file. position: fraction of the file's length."""

    def setup(cwd: Path, fixtures: Mapping[str, Any]) -> None:
        content = bytearray((cwd / name).read_bytes())
        content[int(position * len(content))] ^= 0xFF
        (cwd / name).write_bytes(content)

    return setup


def edit_json(name: str, change: Callable[[Any], Any]) -> Setup:
    """Edit a JSON file: `change` modifies its content in place, or returns the new content."""

    def setup(cwd: Path, fixtures: Mapping[str, Any]) -> None:
        content = json.loads((cwd / name).read_bytes())
        returned = change(content)
        (cwd / name).write_text(json.dumps(content if returned is None else returned))

    return setup


def remove(*names: str) -> Setup:
    def setup(cwd: Path, fixtures: Mapping[str, Any]) -> None:
        for name in names:
            path = cwd / name
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    return setup


def link(name: str, target: str) -> Setup:
    return lambda cwd, fixtures: (cwd / name).symlink_to(target)


def pipe(name: str) -> Setup:
    """A named pipe that no process writes to."""

    def setup(cwd: Path, fixtures: Mapping[str, Any]) -> None:
        (cwd / name).parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(cwd / name)

    return setup


def unix_socket(name: str) -> Setup:
    def setup(cwd: Path, fixtures: Mapping[str, Any]) -> None:
        previous = Path.cwd()
        os.chdir(cwd)  # a socket's path has at most 107 bytes
        try:
            with socket.socket(socket.AF_UNIX) as unbound:
                unbound.bind(name)
        finally:
            os.chdir(previous)

    return setup


def chmod(name: str, mode: int = 0) -> Setup:
    return lambda cwd, fixtures: (cwd / name).chmod(mode)


def image(
    name: str | bytes,
    mode: str = "RGB",
    width: int = 10,
    height: int = 12,
    file_format: str | None = None,
    **options: Any,
) -> Setup:
    """A noise image in a mode of Pillow."""

    def setup(cwd: Path, fixtures: Mapping[str, Any]) -> None:
        path = cwd / os.fsdecode(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        noise_in_mode(mode, width, height).save(path, file_format, **options)

    return setup


def noise_in_mode(mode: str, width: int, height: int) -> Image.Image:
    if width * height > 1_000_000:
        return Image.new(mode, (width, height), 100 if mode in ("1", "L") else None)
    rgb = noise(0, height, width)
    if mode in ("I;16", "I", "F"):
        gray = np.asarray(rgb.convert("L"))
        dtype = {"I;16": np.uint16, "I": np.int32, "F": np.float32}[mode]
        return Image.fromarray(
            (gray.astype(np.float64) / 255 if mode == "F" else gray.astype(np.int64) * 257).astype(dtype)
        )
    return rgb.convert(mode)


def class_folder(name: str, count: int = 4, suffix: str = ".png") -> Setup:
    """A class folder with noise images."""

    def setup(cwd: Path, fixtures: Mapping[str, Any]) -> None:
        (cwd / name).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            noise(number).save(cwd / name / f"{number}{suffix}")

    return setup


def png(seed: int = 0) -> bytes:
    buffer = io.BytesIO()
    noise(seed).save(buffer, "PNG")
    return buffer.getvalue()


def tar_bytes(members: Sequence[tuple[str, bytes] | tarfile.TarInfo], tar_format: int = tarfile.GNU_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tar_format) as tar:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                tar.addfile(member)
                continue
            header = tarfile.TarInfo(member[0])
            header.size = len(member[1])
            tar.addfile(header, io.BytesIO(member[1]))
    return buffer.getvalue()


def special_member(name: str, member_type: bytes, target: str = "") -> tarfile.TarInfo:
    """A member of a tar that is a link, a device or a pipe."""
    header = tarfile.TarInfo(name)
    header.type, header.linkname, header.devmajor, header.devminor = member_type, target, 1, 5
    return header


TWO_CLASSES = [(f"{name}/{number}.png", png(number)) for name in ("dark", "light") for number in range(4)]


class RunsCode:
    """An object whose pickle, when loaded, creates the file `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.path}",)


def malicious_pickle(name: str, container: str = "pickle") -> Setup:
    """A file whose pickle creates the file CANARY when loaded.

    container: "pickle", "dictionary", "zip" or "torch.save".
    """

    def setup(cwd: Path, fixtures: Mapping[str, Any]) -> None:
        code: Any = RunsCode(fixtures["images"].parents[1] / CANARY)
        data = pickle.dumps({"state_dict": code, "lambdanets": "{}"} if container == "dictionary" else code, protocol=2)
        if container == "torch.save":
            torch.save({"state_dict": code}, cwd / name)
        elif container == "zip":
            with zipfile.ZipFile(cwd / name, "w") as archive:
                for member, content in (("data.pkl", data), ("version", b"3\n"), ("byteorder", b"little")):
                    archive.writestr(f"archive/{member}", content)
        else:
            (cwd / name).write_bytes(data)

    return setup
