"""What trained models of all tasks have in common."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

import torch
from torch import Tensor, nn

from lambdanets.device import resolve_device


class Predictor:
    """A trained model, on any device, in any dtype. Base of `Classifier`, `Detector`, `Segmenter`."""

    model: nn.Module

    def to(self, device: str | torch.device) -> Self:
        """Move the model to a device, in place. Raises InputError if the device does not exist."""
        self.model.to(resolve_device(device))
        return self

    def outputs(self, images: Tensor | Sequence[Tensor]) -> Any:
        """Return the model's outputs in evaluation mode for images in its device and dtype."""
        parameter = next(self.model.parameters())
        with evaluation_mode(self.model):
            if isinstance(images, Tensor):
                return self.model(images.to(parameter))
            return self.model([image.to(parameter) for image in images])


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode within the block; all modules then have their mode of before."""
    modules = [module for module in model.modules() if module.training]
    try:
        for module in modules:
            module.training = False
        yield
    finally:
        for module in modules:
            module.training = True
