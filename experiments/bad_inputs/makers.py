"""Functions that create the files of an input in its working folder."""

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

from .attempts import CANARY
from .inputs import Make
from .places import noise


def file(name: str | bytes, content: bytes | str = b"") -> Make:
    """A file with this content."""
    data = content.encode() if isinstance(content, str) else content

    def make(here: Path, places: Mapping[str, Any]) -> None:
        path = here / os.fsdecode(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    return make


def folder(name: str) -> Make:
    return lambda here, places: (here / name).mkdir(parents=True)


def copied(place: str, name: str) -> Make:
    """A copy of a place, or of a file in one such as "run/weights.safetensors"."""

    def make(here: Path, places: Mapping[str, Any]) -> None:
        first, _, rest = place.partition("/")
        source = places[first] / rest
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if source.is_dir() else shutil.copy2)(source, here / name)

    return make


def cut(name: str, keep: float) -> Make:
    """Truncate a file to a number of bytes, or to a fraction below 1."""

    def make(here: Path, places: Mapping[str, Any]) -> None:
        path = here / name
        os.truncate(path, int(keep * path.stat().st_size) if keep < 1 else int(keep))

    return make


def flipped(name: str, place: float = 0.5) -> Make:
    """Invert one byte of a file, at a fraction of its length."""

    def make(here: Path, places: Mapping[str, Any]) -> None:
        content = bytearray((here / name).read_bytes())
        content[int(place * len(content))] ^= 0xFF
        (here / name).write_bytes(content)

    return make


def edited(name: str, change: Callable[[Any], Any]) -> Make:
    """Edit a JSON file: `change` modifies its content in place, or returns the new content."""

    def make(here: Path, places: Mapping[str, Any]) -> None:
        content = json.loads((here / name).read_bytes())
        returned = change(content)
        (here / name).write_text(json.dumps(content if returned is None else returned))

    return make


def removed(*names: str) -> Make:
    def make(here: Path, places: Mapping[str, Any]) -> None:
        for name in names:
            path = here / name
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    return make


def link(name: str, target: str) -> Make:
    return lambda here, places: (here / name).symlink_to(target)


def pipe(name: str) -> Make:
    """A named pipe without a writer."""

    def make(here: Path, places: Mapping[str, Any]) -> None:
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(here / name)

    return make


def unix_socket(name: str) -> Make:
    def make(here: Path, places: Mapping[str, Any]) -> None:
        before = Path.cwd()
        os.chdir(here)  # a socket's path has at most 107 bytes
        try:
            with socket.socket(socket.AF_UNIX) as made:
                made.bind(name)
        finally:
            os.chdir(before)

    return make


def forbidden(name: str, mode: int = 0) -> Make:
    return lambda here, places: (here / name).chmod(mode)


def image(
    name: str | bytes, mode: str = "RGB", width: int = 10, height: int = 12, kind: str | None = None, **options: Any
) -> Make:
    """A noise image in one of Pillow's modes."""

    def make(here: Path, places: Mapping[str, Any]) -> None:
        path = here / os.fsdecode(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        of_mode(mode, width, height).save(path, kind, **options)

    return make


def of_mode(mode: str, width: int, height: int) -> Image.Image:
    if width * height > 1_000_000:
        return Image.new(mode, (width, height), 100 if mode in ("1", "L") else None)
    rgb = noise(0, height, width)
    if mode in ("I;16", "I", "F"):
        gray = np.asarray(rgb.convert("L"))
        kind = {"I;16": np.uint16, "I": np.int32, "F": np.float32}[mode]
        return Image.fromarray(
            (gray.astype(np.float64) / 255 if mode == "F" else gray.astype(np.int64) * 257).astype(kind)
        )
    return rgb.convert(mode)


def class_folder(name: str, count: int = 4, suffix: str = ".png") -> Make:
    """The folder of a class, with noise images."""

    def make(here: Path, places: Mapping[str, Any]) -> None:
        (here / name).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            noise(number).save(here / name / f"{number}{suffix}")

    return make


def png(seed: int = 0) -> bytes:
    buffer = io.BytesIO()
    noise(seed).save(buffer, "PNG")
    return buffer.getvalue()


def tar_bytes(members: Sequence[tuple[str, bytes] | tarfile.TarInfo], kind: int = tarfile.GNU_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=kind) as tar:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                tar.addfile(member)
                continue
            header = tarfile.TarInfo(member[0])
            header.size = len(member[1])
            tar.addfile(header, io.BytesIO(member[1]))
    return buffer.getvalue()


def special(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    """A special member of a tar: a link, a device, a pipe."""
    header = tarfile.TarInfo(name)
    header.type, header.linkname, header.devmajor, header.devminor = kind, target, 1, 5
    return header


CLASSES = [(f"{name}/{number}.png", png(number)) for name in ("dark", "light") for number in range(4)]


class Code:
    """An object whose pickle runs code when loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.path}",)


def pickled_code(name: str, how: str = "pickle") -> Make:
    """A file whose pickle, if loaded, creates the file CANARY: plain, in a dictionary, in a zip, or by torch.save."""

    def make(here: Path, places: Mapping[str, Any]) -> None:
        code: Any = Code(places["images"].parents[1] / CANARY)
        data = pickle.dumps({"state_dict": code, "lambdanets": "{}"} if how == "dictionary" else code, protocol=2)
        if how == "torch.save":
            torch.save({"state_dict": code}, here / name)
        elif how == "zip":
            with zipfile.ZipFile(here / name, "w") as archive:
                for member, content in (("data.pkl", data), ("version", b"3\n"), ("byteorder", b"little")):
                    archive.writestr(f"archive/{member}", content)
        else:
            (here / name).write_bytes(data)

    return make
