"""Cross entropy and Dice loss, compared with their equations for each image of a batch."""

import pytest
import torch

from lambdanets.data.coco.images import IGNORED
from lambdanets.tasks.segmentation import cross_entropy_and_dice


def example(num_images=3, num_classes=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(num_images, num_classes, 5, 6, generator=generator, dtype=torch.float64) * 2
    targets = torch.randint(0, num_classes, (num_images, 5, 6), generator=generator).byte()
    targets[0, :2] = IGNORED
    return logits, targets


def test_losses_equal_their_equations():
    logits, targets = example()
    cross_entropy, dice = cross_entropy_and_dice(logits, targets)
    for image in range(len(logits)):
        pixels = [(y, x) for y in range(5) for x in range(6) if targets[image, y, x] != IGNORED]
        p = {pixel: logits[image, :, *pixel].softmax(0) for pixel in pixels}
        expected = -sum(p[pixel][int(targets[image, *pixel])].log() for pixel in pixels) / len(pixels)
        assert float(cross_entropy[image]) == pytest.approx(float(expected), rel=1e-5)
        terms = []
        for class_index in range(1, 4):
            intersection = sum(p[pixel][class_index] for pixel in pixels if targets[image, *pixel] == class_index)
            cardinality = sum(p[pixel][class_index] + (targets[image, *pixel] == class_index) for pixel in pixels)
            terms.append((2 * intersection + 1) / (cardinality + 1))
        assert float(dice[image]) == pytest.approx(float(1 - sum(terms) / 3), rel=1e-5)


def test_ignored_pixels_have_no_gradient():
    logits, targets = example()
    logits.requires_grad_()
    sum(losses.sum() for losses in cross_entropy_and_dice(logits, targets)).backward()
    ignored = (targets == IGNORED).unsqueeze(1).expand_as(logits)
    assert not logits.grad[ignored].any()
    assert logits.grad[~ignored].all()


def test_an_image_of_ignored_pixels_has_a_finite_loss():
    logits, targets = example(num_images=1)
    cross_entropy, dice = cross_entropy_and_dice(logits, torch.full_like(targets, IGNORED))
    assert (float(cross_entropy), float(dice)) == (0, 0)
