import sys
from array import array

import numpy as np
import pycocotools.mask
import pytest
from coco_files import SQUARE

from lambdanets.data.coco.problems import AnnotationError
from lambdanets.data.coco.segmentations import (
    CroppedMask,
    encode_rle,
    mask_area,
    pack_polygons,
    parse_segmentation,
    segmentation_to_coco,
    to_cropped_mask,
    to_mask,
)
from lambdanets.errors import InputError

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


@pytest.mark.parametrize("seed", range(12))
def test_compressed_and_uncompressed_rle_decode_to_the_mask(seed: int) -> None:
    mask = random_mask(seed)
    for counts in (run_lengths(mask), encode_rle(mask)):
        segmentation = parse_segmentation({"size": [HEIGHT, WIDTH], "counts": counts}, HEIGHT, WIDTH)
        assert (to_mask(segmentation, HEIGHT, WIDTH) == mask).all()
        assert mask_area(segmentation, HEIGHT, WIDTH) == mask.sum()
        assert segmentation_to_coco(segmentation, HEIGHT, WIDTH) == {"size": [HEIGHT, WIDTH], "counts": counts}


def uncrop(cropped: CroppedMask) -> np.ndarray:
    mask = np.zeros((HEIGHT, WIDTH), bool)
    mask[cropped.top :, cropped.left :][: cropped.mask.shape[0], : cropped.mask.shape[1]] = cropped.mask
    return mask


@pytest.mark.parametrize("window", [(0, HEIGHT, 0, WIDTH), (3, 9, 2, 21), (39, 40, 22, 23), (5, 6, 0, WIDTH)])
def test_cropped_mask_equals_the_mask_in_its_bounding_box(window: tuple[int, int, int, int]) -> None:
    top, bottom, left, right = window
    mask = np.zeros((HEIGHT, WIDTH), bool)
    mask[top:bottom, left:right] = random_mask(1)[top:bottom, left:right]
    mask[[top, bottom - 1], [left, right - 1]] = True
    polygon = pack_polygons({"segmentation": [[left, top, right, top, right, bottom, left, bottom]]})["segmentation"]
    for segmentation in (encode_rle(mask), array("q", run_lengths(mask)), polygon):
        cropped = to_cropped_mask(segmentation, HEIGHT, WIDTH)
        assert (uncrop(cropped) == to_mask(segmentation, HEIGHT, WIDTH)).all()
        assert (cropped.top, cropped.left, cropped.mask.shape) == (top, left, (bottom - top, right - left))


def test_cropped_mask_without_pixels_is_empty() -> None:
    empty = pack_polygons({"segmentation": [[2.1, 3.1, 2.2, 3.1, 2.2, 3.2]]})["segmentation"]
    assert not to_mask(empty, HEIGHT, WIDTH).any()
    assert to_cropped_mask(empty, HEIGHT, WIDTH).mask.size == 0


def test_rle_of_a_mask_that_covers_the_image_is_decoded() -> None:
    full = np.ones((HEIGHT, WIDTH), bool)
    for counts in ([0, HEIGHT * WIDTH], encode_rle(full)):
        segmentation = parse_segmentation({"size": [HEIGHT, WIDTH], "counts": counts}, HEIGHT, WIDTH)
        assert to_mask(segmentation, HEIGHT, WIDTH).all()


def insert_empty_runs(runs: list[int], seed: int) -> list[int]:
    """Return runs of the same mask, some of them split by a run of length 0, and with a run of length 0 at the end."""
    random = np.random.default_rng(seed)
    split = []
    for run in runs:
        first = int(random.integers(0, run + 1))
        split += [first, 0, run - first] if random.random() < 0.3 else [run]
    return [*split, 0]


def compress(runs: list[int]) -> str:
    """Compress an RLE with pycocotools, which keeps empty runs."""
    return pycocotools.mask.frPyObjects({"size": [HEIGHT, WIDTH], "counts": runs}, HEIGHT, WIDTH)["counts"].decode()


@pytest.mark.parametrize("seed", range(12))
def test_empty_runs_are_removed_from_rle(seed: int) -> None:
    mask = random_mask(seed)
    runs = insert_empty_runs(run_lengths(mask), seed)
    assert runs.count(0) > 1
    for counts in (runs, compress(runs)):
        segmentation = parse_segmentation({"size": [HEIGHT, WIDTH], "counts": counts}, HEIGHT, WIDTH)
        assert segmentation_to_coco(segmentation, HEIGHT, WIDTH)["counts"] == run_lengths(mask)
        assert (uncrop(to_cropped_mask(segmentation, HEIGHT, WIDTH)) == mask).all()


def test_compressed_rle_of_a_large_image_is_decoded() -> None:
    mask = np.zeros((3000, 4000), bool)
    mask[1:2999, 1:3999:7] = True
    segmentation = parse_segmentation({"size": [3000, 4000], "counts": encode_rle(mask)}, 3000, 4000)
    assert (to_mask(segmentation, 3000, 4000) == mask).all()


def test_damaged_rle_is_accepted_only_if_it_covers_the_image() -> None:
    random = np.random.default_rng(0)
    accepted = 0
    for number in range(2000):
        codes = list(encode_rle(random_mask(number % 7)).encode())
        for position in random.integers(0, len(codes), random.integers(1, 4)):
            codes[position] = int(random.integers(48, 112))
        damaged = bytes(codes[: random.integers(1, len(codes) + 1)] if number % 2 else codes).decode()
        try:
            segmentation = parse_segmentation({"size": [HEIGHT, WIDTH], "counts": damaged}, HEIGHT, WIDTH)
        except AnnotationError:
            continue
        accepted += 1
        assert to_mask(segmentation, HEIGHT, WIDTH).sum() == mask_area(segmentation, HEIGHT, WIDTH)
    assert 0 < accepted < 100


def test_mask_of_several_polygons_is_their_union() -> None:
    polygons = [SQUARE, [6, 3, 12, 3, 12, 9, 6, 9], [15, 20, 18, 20, 18, 30, 15, 30]]
    segmentation = parse_segmentation(pack_polygons({"segmentation": polygons})["segmentation"], HEIGHT, WIDTH)
    expected = np.zeros((HEIGHT, WIDTH), np.uint8)
    expected[3:9, 2:12] = expected[20:30, 15:18] = 1
    assert (to_mask(segmentation, HEIGHT, WIDTH) == expected).all()
    assert segmentation_to_coco(segmentation, HEIGHT, WIDTH) == polygons


def test_a_polygon_is_clipped_to_the_image() -> None:
    polygons = [[-9.5, 5, 30, 5, 30, 10, -9.5, 10]]
    segmentation = parse_segmentation(pack_polygons({"segmentation": polygons})["segmentation"], HEIGHT, WIDTH)
    assert to_mask(segmentation, HEIGHT, WIDTH).sum() == to_mask(segmentation, HEIGHT, WIDTH)[5:10].sum() == 5 * WIDTH


def test_a_polygon_with_many_points_is_decoded_if_its_outline_is_short() -> None:
    angles = np.linspace(0, 2 * np.pi, 50_000, endpoint=False)
    circle = np.stack([11 + 9 * np.cos(angles), 20 + 9 * np.sin(angles)], -1).ravel().tolist()
    segmentation = parse_segmentation(pack_polygons({"segmentation": [circle]})["segmentation"], HEIGHT, WIDTH)
    assert mask_area(segmentation, HEIGHT, WIDTH) == pytest.approx(np.pi * 81, rel=0.05)


def test_error_without_faster_coco_eval_has_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faster_coco_eval", None)
    segmentation = parse_segmentation({"size": [2, 2], "counts": [1, 3]}, 2, 2)
    with pytest.raises(InputError, match=r"pip install 'lambdanets\[detection\]'"):
        to_mask(segmentation, 2, 2)
