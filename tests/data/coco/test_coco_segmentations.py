from pathlib import Path

import numpy as np
import pytest
from coco_files import annotation, content, decode_mask, image, write

from lambdanets.data.coco.annotations import Object, read_annotations
from lambdanets.data.coco.segmentations import encode_rle, to_cropped_mask

HEIGHT, WIDTH = 40, 23


def random_mask(seed: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    return random.random((HEIGHT, WIDTH)) < random.choice([0.03, 0.5, 0.97])


def run_lengths(mask: np.ndarray) -> list[int]:
    """Count the run lengths pixel by pixel."""
    runs, previous = [0], False
    for pixel in mask.T.ravel().tolist():
        if pixel != previous:
            runs.append(0)
            previous = pixel
        runs[-1] += 1
    return runs


def read(folder: Path, *segmentations: object, height: int = HEIGHT, width: int = WIDTH) -> list[Object]:
    rows = [annotation(number, segmentation=value) for number, value in enumerate(segmentations)]
    instances = content(*rows, images=[image(1, height=height, width=width)])
    return list(read_annotations(write(folder / "a.json", instances)).images[0].objects)


@pytest.mark.parametrize("window", [(0, HEIGHT, 0, WIDTH), (3, 9, 2, 21), (39, 40, 22, 23), (5, 6, 0, WIDTH)])
def test_compressed_and_uncompressed_rle_decode_to_the_mask_and_its_crop(
    tmp_path: Path, window: tuple[int, int, int, int]
) -> None:
    top, bottom, left, right = window
    for seed in range(4):
        mask = np.zeros((HEIGHT, WIDTH), bool)
        mask[top:bottom, left:right] = random_mask(seed)[top:bottom, left:right]
        mask[[top, bottom - 1], [left, right - 1]] = True
        encoded = encode_rle(mask, mask.shape), run_lengths(mask)
        rles = ({"size": [HEIGHT, WIDTH], "counts": counts} for counts in encoded)
        for obj in read(tmp_path, *rles):
            cropped = to_cropped_mask(obj.segmentation, HEIGHT, WIDTH)
            assert (decode_mask(obj, HEIGHT, WIDTH) == mask).all()
            assert (cropped.top, cropped.left, cropped.mask.shape) == (top, left, (bottom - top, right - left))


def test_damaged_rle_is_accepted_only_if_it_covers_the_image(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    damaged = [{"size": [HEIGHT, WIDTH], "counts": [1, 919]}] * 2000
    for number in range(2000):
        codes = list(encode_rle(random_mask(number % 7), (HEIGHT, WIDTH)).encode())
        for position in random.integers(0, len(codes), random.integers(1, 4)):
            codes[position] = int(random.integers(48, 112))
        counts = bytes(codes[: random.integers(1, len(codes) + 1)] if number % 2 else codes).decode()
        damaged.append({"size": [HEIGHT, WIDTH], "counts": counts})
    accepted = read(tmp_path, *damaged)[2000:]
    assert 0 < len(accepted) < 100
    assert all(decode_mask(obj, HEIGHT, WIDTH).any() for obj in accepted)
