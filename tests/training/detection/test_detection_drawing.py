import warnings

import numpy as np
import pytest
import torch
from PIL import Image

from lambdanets.data.coco.segmentations import CroppedMask
from lambdanets.inference.detections import Detections
from lambdanets.inference.figures import overlay, overlay_classes


@pytest.fixture
def objects():
    """Two objects, one below the other, in an image of 40 x 32 pixels."""
    return {
        "boxes": torch.tensor([[5.0, 4, 35, 14], [5, 18, 35, 30]]),
        "labels": torch.tensor([1, 2]),
        "scores": torch.tensor([0.9, 0.4]),
        "crops": [CroppedMask(4, 5, np.ones((10, 30), bool)), CroppedMask(18, 5, np.ones((12, 30), bool))],
        "size": (32, 40),
        "classes": ("cat", "dog"),
    }


GRAY = Image.new("L", (40, 32), 150)


def test_small_images_are_enlarged_and_objects_have_distinct_colors(objects):
    drawing = overlay(GRAY, *Detections(**objects).label_image())
    assert drawing.size == (640, 512)
    values = np.asarray(drawing).astype(int)
    object_1, object_2, background = values[9 * 16, 20 * 16], values[24 * 16, 20 * 16], values[16 * 16, 2 * 16]
    assert background.tolist() == [150, 150, 150]
    assert min(np.abs(each - background).max() for each in (object_1, object_2)) > 30
    assert np.abs(object_1 - object_2).max() > 60


@pytest.mark.parametrize("name", ["猫 🐈", "\ud800", "a$b^c\nd", ""])
def test_names_of_any_script_are_drawn_without_a_warning(objects, name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        overlay(GRAY, *Detections(**objects | {"classes": (name, name)}).label_image())


def test_dim_image_is_bright_in_figures_and_others_are_unchanged():
    dim, bright = (np.full((700, 700), high // 4, np.uint8) for high in (48, 240))
    dim[:50], bright[:50] = 48, 240
    nothing = Detections(torch.zeros(0, 4), torch.zeros(0), torch.zeros(0), [], (700, 700), ())
    for pixels in (dim, bright):
        image = Image.fromarray(pixels)
        for figure in (overlay(image, 0 * pixels, nothing), overlay_classes(image, 0 * pixels)):
            brightest = 255 if pixels is dim else 240
            assert np.unique(np.asarray(figure)).tolist() == [round(brightest / 4), brightest]


def test_outlines_follow_the_edge_of_the_image_and_do_not_fill_small_objects():
    labels = np.zeros((100, 3000), np.uint16)
    labels[:20, :20] = 1
    cell = Detections(torch.tensor([[0.0, 0, 20, 20]]), torch.ones(1), torch.ones(1), [None], labels.shape, ("cell",))
    outline = (np.asarray(overlay(Image.new("L", (3000, 100), 150), labels, cell)) != 150).any(2)
    assert outline[:20, :20].sum() == outline.sum() == 20 * 20 - 14 * 14
