import warnings

import numpy as np
import pytest
import torch
from PIL import Image

from lambdanets.data.coco.segmentations import CroppedMask
from lambdanets.inference.detections import Detections, make_label_image
from lambdanets.inference.figures import overlay, overlay_classes


@pytest.fixture
def objects():
    """Two objects, one below the other, in an image of 40 x 32 pixels."""
    masks = torch.zeros(2, 32, 40, dtype=torch.bool)
    masks[0, 4:14, 5:35] = True
    masks[1, 18:30, 5:35] = True
    return {
        "boxes": torch.tensor([[5.0, 4, 35, 14], [5, 18, 35, 30]]),
        "labels": torch.tensor([1, 2]),
        "scores": torch.tensor([0.9, 0.4]),
        "crops": [CroppedMask(0, 0, mask.numpy()) for mask in masks],
        "size": (32, 40),
        "classes": ("cat", "dog"),
    }


GRAY = Image.new("L", (40, 32), 150)


def test_small_images_are_enlarged_and_objects_have_distinct_colors(objects):
    drawing = overlay(GRAY, *make_label_image(Detections(**objects), 0.0))
    assert drawing.size == (640, 512)
    values = np.asarray(drawing).astype(int)
    object_1, object_2, background = values[9 * 16, 20 * 16], values[24 * 16, 20 * 16], values[16 * 16, 2 * 16]
    assert background.tolist() == [150, 150, 150]
    assert np.abs(object_1 - background).max() > 30
    assert np.abs(object_2 - background).max() > 30
    assert np.abs(object_1 - object_2).max() > 60


@pytest.mark.parametrize("name", ["猫 🐈", "\ud800", "a$b^c\nd", ""])
def test_names_of_any_script_are_drawn_without_a_warning(objects, name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        overlay(GRAY, *make_label_image(Detections(**objects | {"classes": (name, name)}), 0.0))


def test_dim_image_is_bright_in_figures_and_others_are_unchanged():
    dim, bright = (np.full((700, 700), high // 4, np.uint8) for high in (48, 240))
    dim[:50], bright[:50] = 48, 240
    nothing = Detections(torch.zeros(0, 4), torch.zeros(0), torch.zeros(0), [], (700, 700), ())
    for pixels in (dim, bright):
        image = Image.fromarray(pixels)
        for figure in (
            overlay(image, 0 * pixels, nothing),
            overlay_classes(image, 0 * pixels),
        ):
            darkest, brightest = np.unique(np.asarray(figure))
            assert brightest == (255 if pixels is dim else 240)
            assert darkest == round(brightest / 4)
