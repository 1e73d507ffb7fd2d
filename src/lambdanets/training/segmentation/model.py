"""Builds the model of a segmentation recipe, its model card and its memory probe."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from lambdanets.errors import InputError
from lambdanets.inference.model_card import SegmenterCard, make_card
from lambdanets.inference.segmenter import build_segmenter
from lambdanets.training.initial_weights import load_initial_weights
from lambdanets.training.memory import MemoryProbe
from lambdanets.training.segmentation.loss import cross_entropy_and_dice
from lambdanets.training.segmentation.recipe import SegmentationRecipe


def make_model_card(recipe: SegmentationRecipe, classes: Sequence[str], category_ids: Sequence[int]) -> SegmenterCard:
    """Return the model card of the recipe's segmenter. classes: names of the categories, without the background."""
    categories = {"classes": tuple(classes), "category_ids": tuple(category_ids)}
    return make_card(SegmenterCard, recipe, **categories, stretch=False)


def build_model(recipe: SegmentationRecipe, classes: Sequence[str]) -> nn.Module:
    """Build the recipe's model for the names of the categories, and load its initial weights, if any."""
    model = build_segmenter(make_model_card(recipe, classes, range(len(classes))))
    if recipe.weights is not None:
        load_initial_weights(model, recipe.weights, classes)
    return model.to(memory_format=torch.channels_last)


@dataclass(frozen=True)
class SegmentationProbe(MemoryProbe):
    """Forward pass and loss of a segmenter on synthetic images, to estimate memory."""

    recipe: SegmentationRecipe
    classes: tuple[str, ...]

    def build(self) -> nn.Module:
        return build_model(replace(self.recipe, weights=None), self.classes)

    def loss(self, model: nn.Module, batch_size: int, device: torch.device) -> Tensor:
        size = self.recipe.image_size
        logits = model(torch.randn(batch_size, 3, size, size, device=device))
        expected = (batch_size, 1 + len(self.classes), size, size)
        if tuple(logits.shape) != expected:
            raise InputError(
                f"model must return one number per class and pixel, {expected}, got {tuple(logits.shape)} from "
                f"{self.recipe.model}; choose a U-Net such as lambda_unet_small"
            )
        targets = torch.zeros(batch_size, size, size, dtype=torch.uint8, device=device)
        return torch.stack(cross_entropy_and_dice(logits, targets)).sum()
