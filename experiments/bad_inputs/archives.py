"""Tars of images, and IDX files as of MNIST: truncated, concatenated, empty, compressed, or with unsafe names."""

import gzip
import io
import struct
import tarfile
import zlib
from pathlib import Path

import numpy as np

from .files import TWO_CLASSES, file, png, special_member, tar_bytes
from .inputs import Input, accepted, rejected
from .options import TRAIN
from .paths import SKIPPED_LINES

TRAIN_ON_TAR = TRAIN.replace("{images}", "a.tar")
VALID_TAR = tar_bytes(TWO_CLASSES)
with tarfile.open(fileobj=io.BytesIO(VALID_TAR)) as tar:
    LAST_HEADER = tar.getmembers()[-1].offset
# Names of members that would be extracted outside the folder.
UNSAFE_NAMES = {
    "..": "../../../../escaped/dark/x.png",
    "an absolute name": "/escaped/dark/x.png",
    ".. inside the name": "dark/../../../../escaped/light/x.png",
}


def check_member_names(cwd: Path) -> None:
    """Check that the members of the written shards have relative names without `..`."""
    for path in (cwd / "new").glob("*.tar"):
        with tarfile.open(path) as tar:
            for name in tar.getnames():
                assert not name.startswith("/"), name
                assert ".." not in name.split("/"), name


def rejected_tar(name: str, content: bytes, output: str) -> list[Input]:
    """Two inputs: `train` and `shard`, both of which must reject the tar."""
    return [
        rejected(TRAIN_ON_TAR, output, file("a.tar", content), name=f"train on a tar: {name}"),
        rejected("shard a.tar new --processes 1", output, file("a.tar", content), name=f"shard a tar: {name}"),
    ]


def tar_with_bad_checksum() -> bytes:
    content = bytearray(VALID_TAR)
    content[LAST_HEADER + 100] ^= 0xFF
    return bytes(content)


def tar_of_special_members(member_type: bytes) -> bytes:
    """A tar with two classes of 4 links, devices or pipes."""
    names = [f"{name}/{number}.png" for name in "ab" for number in range(4)]
    return tar_bytes([special_member(name, member_type, "/etc/passwd") for name in names])


TARS: list[Input] = [
    *rejected_tar("empty file", b"", r"a\.tar"),
    *rejected_tar("no members", tar_bytes([]), r"images|a\.tar"),
    *rejected_tar("no images", tar_bytes([("dark/a.txt", b"x"), ("light/b.txt", b"y")]), r"images|a\.tar"),
    *rejected_tar("truncated in a header", VALID_TAR[: LAST_HEADER + 100], r"a\.tar"),
    *rejected_tar("truncated between a header and its data", VALID_TAR[: LAST_HEADER + 512], r"a\.tar"),
    *rejected_tar("truncated in data", VALID_TAR[: LAST_HEADER + 600], r"a\.tar"),
    *rejected_tar("truncated between members", VALID_TAR[:LAST_HEADER], r"a\.tar"),
    *rejected_tar("two concatenated tars", VALID_TAR + tar_bytes([("third/0.png", png())]), r"a\.tar"),
    *rejected_tar("a damaged header", tar_with_bad_checksum(), r"a\.tar"),
    *rejected_tar("text", b"not a tar" * 400, r"a\.tar"),
    *rejected_tar("zeros", b"\0" * 20480, r"images|a\.tar"),
    *rejected_tar("gzipped", gzip.compress(VALID_TAR), r"a\.tar"),
    *rejected_tar("images outside class folders", tar_bytes([("a.png", png()), ("b.png", png(1))]), r"loose|class"),
    *rejected_tar("one class", tar_bytes(TWO_CLASSES[:4]), "2 classes|class"),
    *(
        rejected(
            TRAIN_ON_TAR,
            r"a\.tar|class|none of the",
            file("a.tar", tar_of_special_members(member_type)),
            allowed_lines=SKIPPED_LINES,
            name=f"a tar of {case}",
        )
        for case, member_type in {
            "symbolic links": tarfile.SYMTYPE,
            "hard links": tarfile.LNKTYPE,
            "devices": tarfile.CHRTYPE,
            "pipes": tarfile.FIFOTYPE,
        }.items()
    ),
    *(
        accepted(
            command,
            output,
            file("a.tar", tar_bytes([*TWO_CLASSES, (name, png())])),
            check=check_member_names,
            name=f"a tar: {case}",
        )
        for case, name in UNSAFE_NAMES.items()
        for command, output in ((TRAIN_ON_TAR, "top-1"), ("shard a.tar new --processes 1", "9 images"))
    ),
    accepted(
        TRAIN_ON_TAR, "top-1", file("a.tar", tar_bytes(TWO_CLASSES, tarfile.PAX_FORMAT)), name="a tar in PAX format"
    ),
    accepted(
        TRAIN_ON_TAR, "top-1", file("a.tar", tar_bytes(TWO_CLASSES, tarfile.USTAR_FORMAT)), name="a tar in USTAR format"
    ),
    accepted(
        TRAIN_ON_TAR,
        "skipped 1",
        file("a.tar", tar_bytes([*TWO_CLASSES, ("dark/x.png", b"x")])),
        name="a damaged image",
    ),
    rejected(
        TRAIN_ON_TAR,
        "val.tar",
        file("a.tar", VALID_TAR),
        file("val.tar", b"x" * 600),
        name="a damaged tar for validation",
    ),
]


def idx(shape: tuple[int, ...], type_code: int = 8, magic: bytes = b"\0\0", data: bytes | None = None) -> bytes:
    """An IDX file of random bytes, or of `data`. type_code: 8 for unsigned bytes, 13 for floats."""
    pixels = np.random.default_rng(0).integers(0, 2 if len(shape) == 1 else 256, shape, np.uint8)
    header = magic + bytes([type_code, len(shape)]) + struct.pack(f">{len(shape)}I", *shape)
    return header + (pixels.tobytes() if data is None else data)


IMAGES, LABELS = "images-idx3-ubyte", "labels-idx1-ubyte"
IDX_CONTENTS = {
    f"train-{IMAGES}": idx((20, 8, 8)),
    f"train-{LABELS}": idx((20,)),
    f"t10k-{IMAGES}": idx((8, 8, 8)),
    f"t10k-{LABELS}": idx((8,)),
}
TRAIN_ON_IDX = TRAIN.replace("{images}", "MNIST").replace("--channels 3", "--channels 1")


def write_idx_files(name: str, content: bytes | None, suffix: str = "") -> list:
    """Setup steps that write MNIST files, with `content` in file `name`, or without it if None.

    suffix: appended to the name, such as ".gz".
    """
    setup = [file(f"MNIST/raw/{other}", data) for other, data in IDX_CONTENTS.items() if other != name]
    return setup if content is None else [*setup, file(f"MNIST/raw/{name}{suffix}", content)]


def gzip_bomb(cwd: Path, fixtures: object) -> None:
    """A gzip file of 6 MB that expands to 6 GiB, with a header of 20 images."""
    compressed = io.BytesIO()
    header = gzip.compress(idx((20, 8, 8)), 1)
    compressed.write(header)
    deflate = zlib.compressobj(9, zlib.DEFLATED, 31)
    block = b"\0" * (1 << 24)
    for _ in range(6 << 6):
        compressed.write(deflate.compress(block))
    compressed.write(deflate.flush())
    (cwd / f"MNIST/raw/train-{IMAGES}.gz").write_bytes(compressed.getvalue())


# Invalid files of training images.
INVALID_IDX = {
    "empty": b"",
    "truncated in its header": IDX_CONTENTS[f"train-{IMAGES}"][:9],
    "truncated": IDX_CONTENTS[f"train-{IMAGES}"][:-1],
    "longer than its header states": IDX_CONTENTS[f"train-{IMAGES}"] + b"x",
    "with floats": idx((20, 8, 8), type_code=13),
    "with two dimensions": idx((20, 64)),
    "without the leading zeros": idx((20, 8, 8), magic=b"PK"),
    "with a header of 2**32 - 1 images": idx((20, 8, 8))[:4] + b"\xff" * 12 + b"\0" * 64,
    "fewer images than labels": idx((19, 8, 8)),
    "images without pixels": idx((20, 0, 0), data=b""),
    "no images": idx((0, 8, 8)),
}

IDX_FILES: list[Input] = [
    *(
        rejected(
            TRAIN_ON_IDX,
            "idx|MNIST|images",
            *write_idx_files(f"train-{IMAGES}", content),
            name=f"IDX {case}",
            allowed_lines=SKIPPED_LINES,
        )
        for case, content in INVALID_IDX.items()
    ),
    *(
        rejected(TRAIN_ON_IDX, name.replace("-", "."), *write_idx_files(name, None), name=f"{name} is missing")
        for name in IDX_CONTENTS
        if name != f"train-{IMAGES}"
    ),
    rejected(
        TRAIN_ON_IDX,
        "label",
        *write_idx_files(f"train-{LABELS}", idx((20,), data=b"\xff" * 20)),
        name="labels out of range",
    ),
    rejected(
        TRAIN_ON_IDX,
        "gz",
        *write_idx_files(f"train-{IMAGES}", gzip.compress(idx((20, 8, 8)))[:-20], ".gz"),
        name="a truncated gzip file",
    ),
    rejected(
        TRAIN_ON_IDX, "gz", *write_idx_files(f"train-{IMAGES}", b"not a gzip file", ".gz"), name="not a gzip file"
    ),
    rejected(
        TRAIN_ON_IDX,
        "gz",
        *write_idx_files(f"train-{IMAGES}", None),
        gzip_bomb,
        name="a gzip file that expands to 6 GiB",
    ),
    rejected(
        TRAIN_ON_IDX,
        "2 classes|class",
        *write_idx_files(f"train-{LABELS}", idx((20,), data=b"\0" * 20)),
        name="one class",
    ),
    accepted(
        TRAIN_ON_IDX,
        "top-1",
        *write_idx_files(f"train-{IMAGES}", gzip.compress(idx((20, 8, 8))), ".gz"),
        name="gzipped",
    ),
    rejected(
        TRAIN_ON_IDX.replace("MNIST", "."),
        "several|holds|own folder|one dataset",
        *(
            file(f"{name}/raw/{file_name}", data)
            for name in ("MNIST", "KMNIST")
            for file_name, data in IDX_CONTENTS.items()
        ),
        name="two datasets",
    ),
]

ARCHIVES = [*TARS, *IDX_FILES]
