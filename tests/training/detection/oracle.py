"""A model whose detections are the ground truth."""

import numpy as np
import torch
from torch import nn

from data.coco.coco_files import decode_mask
from lambdanets.data.coco.images import image_to_tensor


class Oracle(nn.Module):
    """Looks images up by their pixels and returns their annotated objects.

    blind: indices of images for which no objects are returned. max_batch_size: size of the largest batch so far.
    """

    def __init__(self, images, blind=()):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self._indices = {_key(image_to_tensor(images.load(index)[0])): index for index in range(len(images))}
        self._annotated = images.annotations.images
        self._blind = blind
        self.max_batch_size = 0

    def forward(self, images):
        self.max_batch_size = max(self.max_batch_size, len(images))
        return [self._detect(self._indices[_key(image)]) for image in images]

    def _detect(self, index):
        image = self._annotated[index]
        objects = [instance for instance in image.objects if not instance.crowd and index not in self._blind]
        masks = np.zeros((len(objects), 1, image.height, image.width), np.float32)
        for mask, instance in zip(masks, objects, strict=True):
            mask[0] = decode_mask(instance, image.height, image.width)
        return {
            "boxes": torch.tensor([instance.box for instance in objects]).reshape(-1, 4),
            "labels": torch.tensor([instance.category + 1 for instance in objects], dtype=torch.int64),
            "scores": torch.full((len(objects),), 0.9),
            "masks": torch.from_numpy(masks),
        }


def _key(image):
    return image.cpu().numpy().tobytes()
