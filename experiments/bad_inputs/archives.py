"""Tars of images: truncated, concatenated, empty, compressed, or with unsafe names."""

import gzip
import io
import tarfile
from pathlib import Path

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


ARCHIVES: list[Input] = [
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
