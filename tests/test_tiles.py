"""Tiled inference on large images: a detector that finds bright rectangles exactly, and probabilities of pixels."""

import dataclasses

import numpy as np
import pytest
import torch
from PIL import Image
from skimage.measure import label, regionprops

from lambdanets.data.coco.segmentations import CroppedMask
from lambdanets.inference.label_images import make_label_image
from lambdanets.inference.tiled_detection import _merge, _TileObject, detect_tiled
from lambdanets.inference.tiles import blend_tiles


class Rectangles:
    """Finds the connected components of bright pixels; cut ones have the same score as whole ones."""

    def __init__(self):
        self.largest = 0

    def detect(self, images):
        self.largest = max(self.largest, *(max(image.shape[1:]) for image in images))
        return [self._detect(image) for image in images]

    def _detect(self, image):
        found = regionprops(label(image[0].numpy() > 0.5))
        masks = torch.zeros(len(found), 1, *image.shape[1:])
        boxes = torch.zeros(len(found), 4)
        for index, region in enumerate(found):
            top, left, bottom, right = region.bbox
            masks[index, 0][tuple(region.coords.T)] = 1
            boxes[index] = torch.tensor([left, top, right, bottom])
        return {
            "boxes": boxes,
            "labels": torch.ones(len(found), dtype=torch.int64),
            "scores": torch.linspace(0.9, 0.8, len(found)),
            "masks": masks,
        }


def scattered_rectangles(height, width, seed=0):
    """Rectangles of up to 7 x 7 pixels that do not touch, in an image; and their number."""
    generator = np.random.default_rng(seed)
    pixels = np.zeros((height, width), np.uint8)
    count = 0
    for top in range(0, height - 8, 9):
        for left in range(0, width - 8, 9):
            if generator.random() < 0.7:
                rows, columns = generator.integers(1, 8, 2)
                pixels[top : top + rows, left : left + columns] = 255
                count += 1
    return pixels, count


@pytest.mark.parametrize(("height", "width", "batch_size"), [(100, 100, 1), (131, 77, 3), (33, 201, 3)])
def test_objects_on_seams_are_found_whole_and_once(height, width, batch_size):
    pixels, count = scattered_rectangles(height, width)
    detector = Rectangles()
    objects = detect_tiled(detector, Image.fromarray(pixels), 32, batch_size)
    assert detector.largest == 32
    assert objects.size == (height, width)
    assert len(objects) == count
    labels, visible = make_label_image(objects, 0.5)
    assert len(visible) == count
    np.testing.assert_array_equal(labels > 0, pixels > 0)
    assert label(labels > 0).max() == count
    assert len({tuple(pair) for pair in np.stack([labels[pixels > 0], label(pixels)[pixels > 0]], 1).tolist()}) == count
    for box, mask in zip(objects.boxes.int().tolist(), objects.masks, strict=True):
        assert box == [mask.left, mask.top, mask.left + mask.mask.shape[1], mask.top + mask.mask.shape[0]]
    assert (objects.scores.diff() <= 0).all()


def test_objects_larger_than_a_tile_are_found_in_pieces():
    pixels = np.zeros((100, 100), np.uint8)
    pixels[20:80, 45:50] = 255
    objects = detect_tiled(Rectangles(), Image.fromarray(pixels), 32)
    labels, _ = make_label_image(objects, 0.5)
    assert 2 <= len(objects) <= 4
    assert (labels[pixels == 0] == 0).all()
    assert (labels > 0).sum() >= 0.7 * (pixels > 0).sum()


def test_objects_covered_by_several_others_of_another_tile_are_dropped():
    def found(left, right, tile, score):
        box = [float(left), 0.0, float(right), 10.0]
        return _TileObject(box, 1, score, CroppedMask(0, left, np.ones((10, right - left), bool)), tile, False)

    pair = [found(0, 20, (0, 0), 0.9), found(20, 40, (0, 0), 0.8)]
    assert len(_merge([*pair, found(11, 29, (0, 11), 0.7)], (10, 60))) == 2
    assert len(_merge([*pair, found(31, 59, (0, 31), 0.7)], (10, 60))) == 3


def test_a_nucleus_inside_a_cell_of_another_tile_is_kept():
    cell = _TileObject([0.0, 0.0, 60.0, 60.0], 1, 0.9, CroppedMask(0, 0, np.ones((60, 60), bool)), (0, 0), False)
    nucleus = _TileObject([40.0, 9.0, 55.0, 24.0], 2, 0, CroppedMask(9, 40, np.ones((15, 15), bool)), (0, 32), False)
    for score in (0.8, 0.95):
        assert len(_merge([cell, dataclasses.replace(nucleus, score=score)], (64, 96))) == 2
        assert len(_merge([cell, dataclasses.replace(nucleus, score=score, label=1)], (64, 96))) == 1


@pytest.mark.parametrize(("height", "width", "batch_size"), [(100, 100, 1), (17, 205, 3)])
def test_blended_predictions_of_single_pixels_equal_those_of_the_whole_image(height, width, batch_size):
    image, shapes = torch.rand(3, height, width), []

    def predict(tiles):
        shapes.append(tiles.shape)
        return torch.cat((tiles, tiles[:, :1].square()), 1)

    blended = blend_tiles(image, 4, 32, predict, batch_size)
    torch.testing.assert_close(blended, predict(image[None])[0])
    assert {shape[2:] for shape in shapes[:-1]} == {(min(height, 32), 32)}
    assert max(shape[0] for shape in shapes[:-1]) == batch_size


def test_blended_predictions_have_no_seams():
    def predict(tiles):  # each tile differs from all others, as with statistics over the tile
        predict.level += 1.0
        return torch.full((len(tiles), 1, *tiles.shape[2:]), predict.level)

    predict.level = 0.0
    blended = blend_tiles(torch.zeros(3, 64, 300), 1, 64, predict)[0]
    assert predict.level == 6
    assert blended.diff(dim=0).abs().max() < 1e-5
    # the levels of neighbors differ by 1, over an overlap of at least a quarter of a tile
    assert 0 < blended.diff(dim=1).max() <= 1 / 16
    assert blended.diff(dim=1).min() >= -1e-5
