import sys
from array import array

import numpy as np
import pycocotools.mask
import pytest
from coco_files import SQUARE

from lambdanets.data.coco.findings import Dropped
from lambdanets.data.coco.segmentations import (
    Patch,
    area_of,
    as_in_file,
    mask_of,
    pack_polygons,
    patch_of,
    read_segmentation,
    run_string,
)
from lambdanets.errors import InputError

HEIGHT, WIDTH = 40, 23


def noise(seed: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    return random.random((HEIGHT, WIDTH)) < random.choice([0.03, 0.5, 0.97])


def runs_of(mask: np.ndarray) -> list[int]:
    """Counted pixel by pixel."""
    runs, last = [0], False
    for pixel in mask.T.ravel().tolist():
        if pixel != last:
            runs.append(0)
            last = pixel
        runs[-1] += 1
    return runs


@pytest.mark.parametrize("seed", range(12))
def test_runs_as_numbers_and_as_a_string_are_the_mask(seed: int) -> None:
    mask = noise(seed)
    for counts in (runs_of(mask), run_string(mask)):
        kept = read_segmentation({"size": [HEIGHT, WIDTH], "counts": counts}, HEIGHT, WIDTH)
        assert (mask_of(kept, HEIGHT, WIDTH) == mask).all()
        assert area_of(kept, HEIGHT, WIDTH) == mask.sum()
        assert as_in_file(kept, HEIGHT, WIDTH) == {"size": [HEIGHT, WIDTH], "counts": counts}


def place(patch: Patch) -> np.ndarray:
    """The mask that a patch is of."""
    mask = np.zeros((HEIGHT, WIDTH), bool)
    mask[patch.top :, patch.left :][: patch.mask.shape[0], : patch.mask.shape[1]] = patch.mask
    return mask


@pytest.mark.parametrize("window", [(0, HEIGHT, 0, WIDTH), (3, 9, 2, 21), (39, 40, 22, 23), (5, 6, 0, WIDTH)])
def test_a_patch_is_the_mask_where_there_is_any_of_it(window: tuple[int, int, int, int]) -> None:
    top, bottom, left, right = window
    mask = np.zeros((HEIGHT, WIDTH), bool)
    mask[top:bottom, left:right] = noise(1)[top:bottom, left:right]
    mask[[top, bottom - 1], [left, right - 1]] = True
    polygon = pack_polygons({"segmentation": [[left, top, right, top, right, bottom, left, bottom]]})["segmentation"]
    for segmentation in (run_string(mask), array("q", runs_of(mask)), polygon):
        patch = patch_of(segmentation, HEIGHT, WIDTH)
        assert (place(patch) == mask_of(segmentation, HEIGHT, WIDTH)).all()
        assert (patch.top, patch.left, patch.mask.shape) == (top, left, (bottom - top, right - left))


def test_a_mask_without_a_pixel_has_an_empty_patch() -> None:
    nothing = pack_polygons({"segmentation": [[2.1, 3.1, 2.2, 3.1, 2.2, 3.2]]})["segmentation"]
    assert not mask_of(nothing, HEIGHT, WIDTH).any()
    assert patch_of(nothing, HEIGHT, WIDTH).mask.size == 0


def test_a_mask_of_the_whole_image_is_read() -> None:
    whole = np.ones((HEIGHT, WIDTH), bool)
    for counts in ([0, HEIGHT * WIDTH], run_string(whole)):
        kept = read_segmentation({"size": [HEIGHT, WIDTH], "counts": counts}, HEIGHT, WIDTH)
        assert mask_of(kept, HEIGHT, WIDTH).all()


def with_empty_runs(runs: list[int], seed: int) -> list[int]:
    """The same mask's runs, some of them cut in two by a run of length 0, and one at the end."""
    random = np.random.default_rng(seed)
    cut = []
    for run in runs:
        first = int(random.integers(0, run + 1))
        cut += [first, 0, run - first] if random.random() < 0.3 else [run]
    return [*cut, 0]


def string_of(runs: list[int]) -> str:
    """COCO's string, written by pycocotools, which takes runs as they are."""
    return pycocotools.mask.frPyObjects({"size": [HEIGHT, WIDTH], "counts": runs}, HEIGHT, WIDTH)["counts"].decode()


@pytest.mark.parametrize("seed", range(12))
def test_runs_of_length_zero_are_taken_and_left_out_of_what_is_kept(seed: int) -> None:
    mask = noise(seed)
    runs = with_empty_runs(runs_of(mask), seed)
    assert runs.count(0) > 1
    for counts in (runs, string_of(runs)):
        kept = read_segmentation({"size": [HEIGHT, WIDTH], "counts": counts}, HEIGHT, WIDTH)
        assert as_in_file(kept, HEIGHT, WIDTH)["counts"] == runs_of(mask)
        assert (place(patch_of(kept, HEIGHT, WIDTH)) == mask).all()


def test_the_runs_of_a_large_image_are_read_from_a_string() -> None:
    mask = np.zeros((3000, 4000), bool)
    mask[1:2999, 1:3999:7] = True
    kept = read_segmentation({"size": [3000, 4000], "counts": run_string(mask)}, 3000, 4000)
    assert (mask_of(kept, 3000, 4000) == mask).all()


def test_of_damaged_strings_only_those_with_a_run_for_every_pixel_reach_pycocotools() -> None:
    random = np.random.default_rng(0)
    taken = 0
    for probe in range(2000):
        text = list(run_string(noise(probe % 7)).encode())
        for place in random.integers(0, len(text), random.integers(1, 4)):
            text[place] = int(random.integers(48, 112))
        damaged = bytes(text[: random.integers(1, len(text) + 1)] if probe % 2 else text).decode()
        try:
            kept = read_segmentation({"size": [HEIGHT, WIDTH], "counts": damaged}, HEIGHT, WIDTH)
        except Dropped:
            continue
        taken += 1
        assert mask_of(kept, HEIGHT, WIDTH).sum() == area_of(kept, HEIGHT, WIDTH)
    assert 0 < taken < 100


def test_a_polygon_of_several_parts_is_their_union() -> None:
    parts = [SQUARE, [6, 3, 12, 3, 12, 9, 6, 9], [15, 20, 18, 20, 18, 30, 15, 30]]
    kept = read_segmentation(pack_polygons({"segmentation": parts})["segmentation"], HEIGHT, WIDTH)
    expected = np.zeros((HEIGHT, WIDTH), np.uint8)
    expected[3:9, 2:12] = expected[20:30, 15:18] = 1
    assert (mask_of(kept, HEIGHT, WIDTH) == expected).all()
    assert as_in_file(kept, HEIGHT, WIDTH) == parts


def test_a_polygon_that_reaches_beyond_the_image_is_cut_at_its_edge() -> None:
    parts = [[-9.5, 5, 30, 5, 30, 10, -9.5, 10]]
    kept = read_segmentation(pack_polygons({"segmentation": parts})["segmentation"], HEIGHT, WIDTH)
    assert mask_of(kept, HEIGHT, WIDTH).sum() == mask_of(kept, HEIGHT, WIDTH)[5:10].sum() == 5 * WIDTH


def test_a_long_outline_is_taken_that_needs_no_more_memory_than_there_is() -> None:
    angles = np.linspace(0, 2 * np.pi, 50_000, endpoint=False)
    circle = np.stack([11 + 9 * np.cos(angles), 20 + 9 * np.sin(angles)], -1).ravel().tolist()
    kept = read_segmentation(pack_polygons({"segmentation": [circle]})["segmentation"], HEIGHT, WIDTH)
    assert area_of(kept, HEIGHT, WIDTH) == pytest.approx(np.pi * 81, rel=0.05)


def test_masks_without_pycocotools_say_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, pycocotools.mask.__name__, None)
    kept = read_segmentation({"size": [2, 2], "counts": [1, 3]}, 2, 2)
    with pytest.raises(InputError, match=r"pip install 'lambdanets\[detection\]'"):
        mask_of(kept, 2, 2)
