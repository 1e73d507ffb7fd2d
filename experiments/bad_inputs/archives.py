"""Tars of images and IDX files: truncated, concatenated, empty, compressed, with names outside the folder."""

import gzip
import io
import struct
import tarfile
import zlib
from pathlib import Path

import numpy as np

from .inputs import Input, accepted, refused
from .makers import CLASSES, file, png, special, tar_bytes
from .options import TRAIN
from .paths import UNREADABLE

TAR = TRAIN.replace("{images}", "a.tar")
WHOLE = tar_bytes(CLASSES)
with tarfile.open(fileobj=io.BytesIO(WHOLE)) as opened:
    LAST = opened.getmembers()[-1].offset  # the offset of its header
ESCAPES = {
    "..": "../../../../escaped/dark/x.png",
    "an absolute name": "/escaped/dark/x.png",
    "../ within it": "dark/../../../../escaped/light/x.png",
}


def within(here: Path) -> None:
    """Check that no member of the written shards has a name outside the folder."""
    for path in (here / "new").glob("*.tar"):
        with tarfile.open(path) as tar:
            for name in tar.getnames():
                assert not name.startswith("/"), name
                assert ".." not in name.split("/"), name


def of_both(name: str, content: bytes, says: str) -> list[Input]:
    """A damaged tar, to train on and to write into shards."""
    return [
        refused(TAR, says, file("a.tar", content), name=f"train on a tar: {name}"),
        refused("shard a.tar new --processes 1", says, file("a.tar", content), name=f"shard a tar: {name}"),
    ]


def bad_checksum() -> bytes:
    content = bytearray(WHOLE)
    content[LAST + 100] ^= 0xFF
    return bytes(content)


TARS: list[Input] = [
    *of_both("empty file", b"", r"a\.tar"),
    *of_both("no members", tar_bytes([]), r"images|a\.tar"),
    *of_both("no images", tar_bytes([("dark/a.txt", b"x"), ("light/b.txt", b"y")]), r"images|a\.tar"),
    *of_both("cut in a header", WHOLE[: LAST + 100], r"a\.tar"),
    *of_both("cut between a header and its data", WHOLE[: LAST + 512], r"a\.tar"),
    *of_both("cut in data", WHOLE[: LAST + 600], r"a\.tar"),
    *of_both("cut between members", WHOLE[:LAST], r"a\.tar"),
    *of_both("two tars joined", WHOLE + tar_bytes([("third/0.png", png())]), r"a\.tar"),
    *of_both("a damaged header", bad_checksum(), r"a\.tar"),
    *of_both("text", b"no tar" * 400, r"a\.tar"),
    *of_both("zeros", b"\0" * 20480, r"images|a\.tar"),
    *of_both("gzipped", gzip.compress(WHOLE), r"a\.tar"),
    *of_both("loose images", tar_bytes([("a.png", png()), ("b.png", png(1))]), r"loose|class"),
    *of_both("one class", tar_bytes(CLASSES[:4]), "2 classes|class"),
    *(
        Input(
            TAR,
            2,
            r"a\.tar|class|none of the",
            (
                file(
                    "a.tar",
                    tar_bytes(
                        [special(f"{name}/{number}.png", kind, "/etc/passwd") for name in "ab" for number in range(4)]
                    ),
                ),
            ),
            lines=UNREADABLE,
            name=f"a tar of {what}",
        )
        for what, kind in {
            "symbolic links": tarfile.SYMTYPE,
            "hard links": tarfile.LNKTYPE,
            "devices": tarfile.CHRTYPE,
            "pipes": tarfile.FIFOTYPE,
        }.items()
    ),
    *(
        accepted(
            command, says, file("a.tar", tar_bytes([*CLASSES, (name, png())])), check=within, name=f"a tar: {what}"
        )
        for what, name in ESCAPES.items()
        for command, says in ((TAR, "top-1"), ("shard a.tar new --processes 1", "9 images"))
    ),
    accepted(TAR, "top-1", file("a.tar", tar_bytes(CLASSES, tarfile.PAX_FORMAT)), name="a tar in PAX's format"),
    accepted(TAR, "top-1", file("a.tar", tar_bytes(CLASSES, tarfile.USTAR_FORMAT)), name="a tar in USTAR's format"),
    accepted(TAR, "skipped 1", file("a.tar", tar_bytes([*CLASSES, ("dark/x.png", b"x")])), name="a damaged image"),
    refused(TAR, "val.tar", file("a.tar", WHOLE), file("val.tar", b"x" * 600), name="a damaged tar for validation"),
]


def idx(shape: tuple[int, ...], kind: int = 8, zeros: bytes = b"\0\0", data: bytes | None = None) -> bytes:
    pixels = np.random.default_rng(0).integers(0, 2 if len(shape) == 1 else 256, shape, np.uint8)
    header = zeros + bytes([kind, len(shape)]) + struct.pack(f">{len(shape)}I", *shape)
    return header + (pixels.tobytes() if data is None else data)


IMAGES, LABELS = "images-idx3-ubyte", "labels-idx1-ubyte"
PARTS = {
    f"train-{IMAGES}": idx((20, 8, 8)),
    f"train-{LABELS}": idx((20,)),
    f"t10k-{IMAGES}": idx((8, 8, 8)),
    f"t10k-{LABELS}": idx((8,)),
}
IDX = TRAIN.replace("{images}", "MNIST").replace("--channels 3", "--channels 1")


def with_part(name: str, content: bytes | None, suffix: str = "") -> list:
    """The files of a data set, one of them with other content, or missing."""
    parts = {part: data for part, data in PARTS.items() if part != name}
    return [file(f"MNIST/raw/{part}", data) for part, data in parts.items()] + (
        [] if content is None else [file(f"MNIST/raw/{name}{suffix}", content)]
    )


def zeros_gzipped(here: Path, places: object) -> None:
    """6 MB that unpack to 6 GiB, with a header of 20 images."""
    packed = io.BytesIO()
    header = gzip.compress(idx((20, 8, 8)), 1)
    packed.write(header)
    deflate = zlib.compressobj(9, zlib.DEFLATED, 31)
    block = b"\0" * (1 << 24)
    for _ in range(6 << 6):
        packed.write(deflate.compress(block))
    packed.write(deflate.flush())
    (here / f"MNIST/raw/train-{IMAGES}.gz").write_bytes(packed.getvalue())


DAMAGED = {
    "empty": b"",
    "cut in its header": PARTS[f"train-{IMAGES}"][:9],
    "cut": PARTS[f"train-{IMAGES}"][:-1],
    "longer than its header says": PARTS[f"train-{IMAGES}"] + b"x",
    "of floats": idx((20, 8, 8), kind=13),
    "of two dimensions": idx((20, 64)),
    "without the zeros": idx((20, 8, 8), zeros=b"PK"),
    "with a header of 2**32 - 1 images": idx((20, 8, 8))[:4] + b"\xff" * 12 + b"\0" * 64,
    "fewer images than labels": idx((19, 8, 8)),
    "images without a pixel": idx((20, 0, 0), data=b""),
    "no images": idx((0, 8, 8)),
}

IDX_FILES: list[Input] = [
    *(
        refused(IDX, "idx|MNIST|images", *with_part(f"train-{IMAGES}", content), name=f"IDX {what}", lines=UNREADABLE)
        for what, content in DAMAGED.items()
    ),
    *(
        refused(IDX, name.replace("-", "."), *with_part(name, None), name=f"{name} is missing")
        for name in PARTS
        if name != f"train-{IMAGES}"
    ),
    refused(
        IDX, "label", *with_part(f"train-{LABELS}", idx((20,), data=b"\xff" * 20)), name="labels beyond the classes"
    ),
    refused(IDX, "gz", *with_part(f"train-{IMAGES}", gzip.compress(idx((20, 8, 8)))[:-20], ".gz"), name="a cut gzip"),
    refused(IDX, "gz", *with_part(f"train-{IMAGES}", b"no gzip", ".gz"), name="no gzip"),
    refused(IDX, "gz", *with_part(f"train-{IMAGES}", None), zeros_gzipped, name="a gzip that unpacks to 6 GiB"),
    refused(IDX, "2 classes|class", *with_part(f"train-{LABELS}", idx((20,), data=b"\0" * 20)), name="one class"),
    accepted(IDX, "top-1", *with_part(f"train-{IMAGES}", gzip.compress(idx((20, 8, 8))), ".gz"), name="gzipped"),
    refused(
        IDX.replace("MNIST", "."),
        "several|holds|own folder|one data set",
        *(file(f"{name}/raw/{part}", data) for name in ("MNIST", "KMNIST") for part, data in PARTS.items()),
        name="two sets",
    ),
]

ARCHIVES = [*TARS, *IDX_FILES]
