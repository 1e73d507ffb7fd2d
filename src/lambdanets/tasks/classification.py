"""The classification task: data, model and loss."""

import functools
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from PIL.Image import Image
from timm.data import create_transform
from torch import Tensor
from torchvision.transforms import Compose, InterpolationMode, RandomCrop, Resize

from lambdanets.data.batches import Batch, Batches
from lambdanets.data.datasets import open_splits
from lambdanets.data.labeled_images import image_batches
from lambdanets.data.transforms import Preprocessing, center_square
from lambdanets.errors import InputError
from lambdanets.inference.loading import read_model
from lambdanets.inference.model_card import ClassifierCard
from lambdanets.models.weights import find_weights
from lambdanets.tasks.recipes import ClassificationRecipe
from lambdanets.training.task import Task


class ClassificationTask(Task):
    """Image classification."""

    TRAINING_METRICS: ClassVar[tuple[str, ...]] = ("loss", "top1")
    VALIDATION_METRICS: ClassVar[tuple[str, ...]] = ("loss", "top1")
    BEST_METRIC: ClassVar[str] = "top1"

    def __init__(self, recipe: ClassificationRecipe) -> None:
        super().__init__(recipe)
        splits = open_splits(
            recipe.data,
            root=recipe.data_root,
            validation_share=recipe.validation_share,
            seed=recipe.seed,
            hold_out=recipe.hold_out,
            training_images=recipe.training_images,
        )
        self.training, self.validation, self.test = splits.train, splits.validation, splits.test
        self.classes, self.source, self.left_out = splits.train.classes, splits.source, splits.left_out
        self.fingerprint, self.held_out, self.patience = splits.fingerprint, splits.held_out, recipe.patience

    @classmethod
    def resolve(cls, recipe: ClassificationRecipe) -> ClassificationRecipe:
        """If the recipe names no model, take model, options and preprocessing from its initial weights.

        The recipe's own model_options override those of the weights, as do fields of its preprocessing that do not have
        their default value.
        """
        if recipe.model or recipe.weights is None:
            return recipe
        card = read_model(find_weights(recipe.weights))[1]
        if not isinstance(card, ClassifierCard):
            got = "a file without a model card" if card is None else f"a {card.task} model"
            raise InputError(f"weights must be those of a classifier if no model is given, got {got}")
        options: dict[str, Any] = card.model_options | recipe.model_options
        given = asdict(recipe.preprocessing).items()
        own = {name: value for name, value in given if value != getattr(Preprocessing, name)}
        return replace(recipe, model=card.model, model_options=options, **asdict(card.preprocessing) | own)

    def batches(self, **options: Any) -> Batches:
        return image_batches(self.training, make_transform(self.recipe), **options)

    def num_images(self, batch: Batch) -> int:
        return len(batch.images) if len(batch.images) > 1 else 0  # batch norm after global pooling needs two

    def logits(self, batch: Batch) -> Tensor:
        return self.model(normalize(batch.images, self.recipe.mean, self.recipe.std)).float()

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        logits, smoothing = self.logits(batch), self.recipe.label_smoothing
        loss = F.cross_entropy(logits, batch.targets, label_smoothing=smoothing, reduction="sum")
        return {"loss": loss, "top1": (logits.argmax(1) == batch.targets).sum()}


def normalize(images: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """Normalize uint8 images (b, c, h, w) on their device, as `Preprocessing.transform` does: float32."""
    means, stds = (_per_channel(values, images.device) for values in (mean, std))
    return (images.float().div_(255) - means) / stds


@functools.lru_cache(maxsize=8)
def _per_channel(values: tuple[float, ...], device: torch.device) -> Tensor:
    """Return values for images (b, c, h, w). A new tensor in each step would wait for the GPU."""
    return torch.tensor(values, device=device).view(-1, 1, 1)


def make_transform(recipe: ClassificationRecipe) -> Callable[[Image], Tensor]:
    """Return the training transform: random crop, flip and RandAugment.

    The crop is RandomResizedCrop, or, with crop_padding, a crop of full size from the padded image.

    It returns uint8 tensors (channels, image_size, image_size). Raises InputError for a RandAugment policy that timm
    does not know.
    """
    try:
        transform = create_transform(
            (recipe.channels, recipe.image_size, recipe.image_size),
            is_training=True,
            scale=recipe.scale,
            ratio=recipe.ratio,
            hflip=recipe.flip,
            color_jitter=None,
            auto_augment=recipe.rand_augment,
            interpolation=recipe.interpolation,
            mean=recipe.mean,  # the color outside of images that RandAugment moves
            normalize=False,  # on the device: workers then send a quarter of the bytes
        )
    except Exception as error:  # timm raises errors of many types for an invalid policy
        raise InputError(f"rand_augment must be a policy like rand-m10-n2, got {recipe.rand_augment!r}") from error
    if recipe.crop_padding:
        resize = Resize(recipe.image_size, InterpolationMode(recipe.interpolation))
        crop = RandomCrop(recipe.image_size, recipe.crop_padding)
        transform.transforms[0] = Compose([center_square, resize, crop])  # in place of RandomResizedCrop
    return Compose([recipe.preprocessing.to_mode, transform])
