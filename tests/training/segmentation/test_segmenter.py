"""Segmenters: predictions at the image's own size for every form of input, evaluation, and model cards."""

import numpy as np
import pytest
import torch
from PIL import Image

import lambdanets as ln
from lambdanets.inference.figures import distinct_color, overlay_classes
from lambdanets.inference.model_card import SegmenterCard
from training.segmentation.tiny_segmentation import CLASSES


@pytest.fixture
def segmenter(trained_segmenter):
    return ln.load(trained_segmenter / "run")


def test_segmentations_have_the_sizes_of_their_images(segmenter, trained_segmenter):
    photo = min((trained_segmenter / "digits/train").iterdir())
    images = [photo, Image.new("RGB", (7, 33)), np.zeros((1, 1), np.uint8), torch.rand(3, 50, 18), photo]
    segmentations = segmenter.predict(images, batch_size=3)
    with Image.open(photo) as image:
        sizes = [image.size[::-1], (33, 7), (1, 1), (50, 18), image.size[::-1]]
    for segmentation, size in zip(segmentations, sizes, strict=True):
        assert segmentation.labels.shape == size
        assert segmentation.labels.dtype == torch.uint8
        assert segmentation.probabilities.shape == (3, *size)
        assert torch.equal(segmentation.labels, segmentation.probabilities.argmax(0).byte())
        torch.testing.assert_close(segmentation.probabilities.sum(0), torch.ones(size))
        assert [name for name, _ in segmentation.pixels] == list(CLASSES)
        assert [count for _, count in segmentation.pixels] == [int((segmentation.labels == i).sum()) for i in range(3)]
        assert repr(segmentation).startswith(f"Segmentation({size[0]} x {size[1]} pixels, ")


def test_segmenter_card_has_the_recipes_normalization(segmenter):
    assert isinstance(segmenter.card, SegmenterCard)
    model, images = segmenter.model, torch.rand(1, 3, 16, 16)
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (segmenter.card.mean, segmenter.card.std))
    with torch.inference_mode():
        expected = model((images - mean) / std).softmax(1)[0]
    torch.testing.assert_close(segmenter.infer_tensors(list(images))[0].probabilities, expected, rtol=1e-3, atol=1e-5)


def test_overlay_tints_classes_and_leaves_the_background():
    image = Image.new("RGB", (6, 5), (110, 120, 130))
    labels = np.zeros((5, 6), np.uint8)
    labels[1:4, 1:5] = 2
    pixels = np.asarray(overlay_classes(image, labels))
    assert pixels.shape == (5, 6, 3)
    assert (pixels[4] == (110, 120, 130)).all()
    assert tuple(pixels[1, 1]) == distinct_color(1)  # the outline
    expected = [int(0.6 * a + 0.4 * b) for a, b in zip((110, 120, 130), distinct_color(1), strict=True)]
    assert pixels[2, 2].tolist() == expected
    assert len({distinct_color(index) for index in range(11)}) == 11
    labels[labels == 2] = 255  # ignored
    assert (np.asarray(overlay_classes(image, labels)) == (110, 120, 130)).all()
