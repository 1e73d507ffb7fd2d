"""A model that returns the ground truth."""

import numpy as np
import torch
from torch import nn

from lambdanets.data.coco.annotations import decode_mask
from lambdanets.training.detection.loaders import image_to_tensor


class Oracle(nn.Module):
    """Detects the annotated objects of images, which it recognizes by their pixels, except in the images `blind`."""

    def __init__(self, images, blind=()):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self._numbers = {_key(image_to_tensor(images.load(number)[0])): number for number in range(len(images))}
        self._known = images.annotations.images
        self._blind = blind
        self.max_batch_size = 0

    def forward(self, images):
        self.max_batch_size = max(self.max_batch_size, len(images))
        return [self._find(self._numbers[_key(image)]) for image in images]

    def _find(self, number):
        known = self._known[number]
        objects = [each for each in known.objects if not each.crowd and number not in self._blind]
        masks = np.zeros((len(objects), 1, known.height, known.width), np.float32)
        for place, each in zip(masks, objects, strict=True):
            place[0] = decode_mask(each, known.height, known.width)
        return {
            "boxes": torch.tensor([each.box for each in objects]).reshape(-1, 4),
            "labels": torch.tensor([each.category + 1 for each in objects], dtype=torch.int64),
            "scores": torch.full((len(objects),), 0.9),
            "masks": torch.from_numpy(masks),
        }


def _key(image):
    return image.cpu().numpy().tobytes()
