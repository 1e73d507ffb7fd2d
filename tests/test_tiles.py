"""Tiled inference on large images: a detector that finds bright rectangles exactly, and probabilities of pixels."""

import numpy as np
import pytest
import torch
from PIL import Image
from skimage.measure import label, regionprops

from lambdanets.data.coco.images import image_to_tensor
from lambdanets.data.coco.segmentations import CroppedMask
from lambdanets.inference.detections import Detections
from lambdanets.inference.detector import Detector
from lambdanets.inference.tiles import blend_tiles, drop_duplicates, predict_tiles


class Rectangles:
    """Finds the connected components of bright pixels; cut ones have the same score as whole ones."""

    classes = ("rectangle",)

    def __init__(self):
        self.largest = 0

    def infer_tensors(self, images):
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
        labels, scores = torch.ones(len(found), dtype=torch.int64), torch.linspace(0.9, 0.8, len(found))
        outputs = {"boxes": boxes, "labels": labels, "scores": scores, "masks": masks}
        return Detections.from_outputs(outputs, self.classes)


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
    tiles = predict_tiles(Image.fromarray(pixels), 32, batch_size, detector.infer_tensors)
    objects = Detector.merge_tiles(detector, tiles, (height, width))
    assert detector.largest == 32
    assert objects.size == (height, width)
    assert len(objects) == count
    labels, visible = objects.label_image(0.5)
    assert len(visible) == count
    np.testing.assert_array_equal(labels > 0, pixels > 0)
    assert label(labels > 0).max() == count
    assert len({tuple(pair) for pair in np.stack([labels[pixels > 0], label(pixels)[pixels > 0]], 1).tolist()}) == count
    for box, mask in zip(objects.boxes.int().tolist(), objects.crops, strict=True):
        assert box == [mask.left, mask.top, mask.left + mask.mask.shape[1], mask.top + mask.mask.shape[0]]
    assert (objects.scores.diff() <= 0).all()


def number_kept(boxes, scores, labels, tiles, size=(64, 96)):
    """The number of filled boxes (top, left, bottom, right) of several tiles that are not duplicates."""
    crops = [CroppedMask(top, left, np.ones((bottom - top, right - left), bool)) for top, left, bottom, right in boxes]
    objects = (torch.zeros(len(boxes), 4), torch.tensor(labels), torch.tensor(scores), crops, size, ("a", "b"))
    return len(drop_duplicates(Detections(*objects), tiles, [False] * len(boxes)))


def test_objects_covered_by_several_others_of_another_tile_are_dropped():
    for left, right, kept in ((11, 29, 2), (31, 59, 3)):
        boxes = [(0, 0, 10, 20), (0, 20, 10, 40), (0, left, 10, right)]
        assert number_kept(boxes, [0.9, 0.8, 0.7], [1, 1, 1], [0, 0, 1]) == kept


def test_a_nucleus_inside_a_cell_of_another_tile_is_kept():
    for score in (0.8, 0.95):
        for category, kept in ((2, 2), (1, 1)):
            assert number_kept([(0, 0, 60, 60), (9, 40, 24, 55)], [0.9, score], [1, category], [0, 1]) == kept


@pytest.mark.parametrize(("height", "width", "batch_size"), [(100, 100, 1), (17, 205, 3)])
def test_blended_predictions_of_pixels_equal_those_of_the_whole_image(height, width, batch_size):
    image, shapes = Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)), []

    def predict(tiles):
        shapes.append((len(tiles), *tiles[0].shape[1:]))
        return [torch.cat((tile, tile[:1].square())) for tile in tiles]

    blended = blend_tiles(predict_tiles(image, 32, batch_size, predict), (4, height, width))
    torch.testing.assert_close(blended, predict([image_to_tensor(image)])[0])
    assert {shape[1:] for shape in shapes[:-1]} == {(min(height, 32), 32)}
    assert max(shape[0] for shape in shapes[:-1]) == batch_size


def test_blended_predictions_have_no_seams():
    def predict(tiles):  # each tile differs from all others, as with statistics over the tile
        predict.level += 1.0
        return [torch.full((1, *tile.shape[1:]), predict.level) for tile in tiles]

    predict.level = 0.0
    (blended,) = blend_tiles(predict_tiles(Image.new("RGB", (300, 64)), 64, 1, predict), (1, 64, 300))
    assert predict.level == 6
    assert blended.diff(dim=0).abs().max() < 1e-5
    # the levels of neighbors differ by 1, over an overlap of at least a quarter of a tile
    assert 0 < blended.diff(dim=1).max() <= 1 / 16
    assert blended.diff(dim=1).min() >= -1e-5
