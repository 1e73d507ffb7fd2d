"""A classifier's step on made-up images."""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lambdanets.training.classification.model import build_model
from lambdanets.training.memory import Trial
from lambdanets.training.recipe import Recipe


@dataclass(frozen=True)
class ClassificationTrial(Trial):
    """Of a recipe, for so many classes."""

    recipe: Recipe
    classes: int

    def build(self) -> nn.Module:
        return build_model(replace(self.recipe, weights=None), self.classes)

    def loss(self, model: nn.Module, images: int, device: torch.device) -> Tensor:
        size = self.recipe.image_size
        logits = model(torch.randn(images, self.recipe.channels, size, size, device=device))
        return F.cross_entropy(logits.float(), torch.zeros(images, dtype=torch.long, device=device))

    @property
    def size(self) -> str:
        return f"{self.recipe.image_size} x {self.recipe.image_size}"
