import gzip
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from lambdanets.data.datasets import open_splits
from lambdanets.errors import InputError


def encode_idx(values: np.ndarray) -> bytes:
    return struct.pack(f">BBBB{values.ndim}I", 0, 0, 8, values.ndim, *values.shape) + values.tobytes()


def write_idx(raw: Path, *, gzipped: bool = False, count: int = 6) -> Path:
    raw.mkdir(parents=True)
    for split in ("train", "t10k"):
        pixels = np.arange(count * 12, dtype=np.uint8).reshape(count, 3, 4)
        labels = np.arange(count, dtype=np.uint8)
        for name, content in ((f"{split}-images-idx3-ubyte", pixels), (f"{split}-labels-idx1-ubyte", labels)):
            suffix, compress = (".gz", gzip.compress) if gzipped else ("", bytes)
            (raw / f"{name}{suffix}").write_bytes(compress(encode_idx(content)))
    return raw


@pytest.mark.parametrize("gzipped", [False, True])
def test_reads_idx_files_with_and_without_gzip(tmp_path: Path, gzipped: bool) -> None:
    write_idx(tmp_path / "FashionMNIST/raw", gzipped=gzipped)
    splits = open_splits(str(tmp_path))
    image, label = splits.train.load(2)
    assert (image.mode, image.size, label) == ("L", (4, 3), 2)
    assert image.getpixel((0, 0)) == 24
    assert splits.classes[9] == "Ankle boot"


@pytest.mark.parametrize("folder", [".", "KMNIST", "KMNIST/raw"])
def test_finds_an_idx_set_in_its_root_its_folder_or_its_raw_folder(tmp_path: Path, folder: str) -> None:
    write_idx(tmp_path / "KMNIST/raw")
    assert open_splits(str(tmp_path / folder)).classes[1] == "ki"


def test_reading_idx_files_does_not_write_files(tmp_path: Path) -> None:
    write_idx(tmp_path / "MNIST/raw", gzipped=True)
    before = sorted(tmp_path.rglob("*"))
    open_splits(str(tmp_path))
    assert sorted(tmp_path.rglob("*")) == before


def test_rejects_two_idx_sets_in_one_root(tmp_path: Path) -> None:
    write_idx(tmp_path / "MNIST/raw")
    write_idx(tmp_path / "KMNIST/raw")
    with pytest.raises(InputError, match="must contain one dataset, got "):
        open_splits(str(tmp_path))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "must begin with the bytes 00000803"),
        (
            encode_idx(np.zeros((6, 3, 4), np.uint8))[:-1],
            "must have 72 bytes of data, the size in its header, got fewer",
        ),
        (
            encode_idx(np.zeros((6, 3, 4), np.uint8)) + b"x",
            "must have 72 bytes of data, the size in its header, got more",
        ),
        (struct.pack(">BBBB3I", 0, 0, 8, 3, *[2**32 - 1] * 3), "the size in its header, got fewer"),
        (encode_idx(np.zeros((6, 0, 4), np.uint8)), r"must have sizes of at least 1 in its header, got \[6, 0, 4\]"),
        (encode_idx(np.zeros((0, 3, 4), np.uint8)), "must have sizes of at least 1 in its header"),
        (encode_idx(np.zeros((5, 3, 4), np.uint8)), "must have 5 labels"),
        (encode_idx(np.zeros(6, np.uint8)), "got '00000801'"),
    ],
)
def test_rejects_a_damaged_idx_file(tmp_path: Path, content: bytes, message: str) -> None:
    raw = write_idx(tmp_path / "MNIST/raw")
    (raw / "train-images-idx3-ubyte").write_bytes(content)
    with pytest.raises(InputError, match=message):
        open_splits(str(tmp_path))


def test_rejects_a_truncated_gzip_file(tmp_path: Path) -> None:
    raw = write_idx(tmp_path / "MNIST/raw", gzipped=True)
    path = raw / "train-labels-idx1-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-12])
    with pytest.raises(InputError, match=r"train-labels-idx1-ubyte\.gz"):
        open_splits(str(tmp_path))


def test_rejects_a_gzip_bomb_without_decompressing_it(tmp_path: Path) -> None:
    raw = write_idx(tmp_path / "MNIST/raw", gzipped=True)
    content = encode_idx(np.zeros((6, 3, 4), np.uint8))
    bomb = gzip.compress(content + bytes(200 * 2**20), compresslevel=1)
    (raw / "train-images-idx3-ubyte.gz").write_bytes(bomb)
    tracemalloc.start()
    with pytest.raises(InputError, match=r"ubyte\.gz' must have 72 bytes of data, the size in its header, got more"):
        open_splits(str(tmp_path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20 * 2**20


def test_rejects_an_idx_header_with_more_pixels_than_gzip_can_encode(tmp_path: Path) -> None:
    raw = write_idx(tmp_path / "MNIST/raw", gzipped=True)
    content = gzip.compress(struct.pack(">BBBB3I", 0, 0, 8, 3, 2**31, 28, 28) + bytes(1000))
    (raw / "train-images-idx3-ubyte.gz").write_bytes(content)
    with pytest.raises(InputError, match="the size in its header, got fewer"):
        open_splits(str(tmp_path))


def test_rejects_a_missing_idx_file(tmp_path: Path) -> None:
    (write_idx(tmp_path / "MNIST/raw") / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(InputError, match="t10k-labels-idx1-ubyte"):
        open_splits(str(tmp_path))


def test_rejects_an_idx_label_beyond_the_classes(tmp_path: Path) -> None:
    raw = write_idx(tmp_path / "MNIST/raw")
    (raw / "train-labels-idx1-ubyte").write_bytes(encode_idx(np.full(6, 10, np.uint8)))
    with pytest.raises(InputError, match="labels from 0 to 9"):
        open_splits(str(tmp_path))
