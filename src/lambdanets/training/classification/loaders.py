"""Builds the data loaders of a classification recipe, with timm's transforms."""

from collections.abc import Callable

from PIL.Image import Image
from timm.data import create_transform
from torch import Tensor
from torchvision.transforms import Compose, InterpolationMode, RandomCrop, Resize

from lambdanets.data.batches import NamedImages
from lambdanets.data.loader import ImageBatches
from lambdanets.data.order import BatchSlice, Order
from lambdanets.data.transforms import center_square
from lambdanets.errors import InputError
from lambdanets.training.classification.recipe import ClassificationRecipe


def make_batches(
    recipe: ClassificationRecipe,
    images: NamedImages,
    *,
    batch_slice: BatchSlice | None = None,
    order: Order | None = None,
) -> ImageBatches:
    """Return the recipe's training batches, shuffled and augmented.

    batch_slice: the images of each global batch that this rank loads, and its accumulation steps.
    order: the images of each training step; by default `Order`.
    """
    return ImageBatches(
        images,
        make_transform(recipe),
        channels=recipe.channels,
        batch_size=recipe.batch_size,
        seed=recipe.seed,
        training=True,
        workers=recipe.workers,
        batch_slice=batch_slice,
        order=order,
    )


def make_transform(recipe: ClassificationRecipe) -> Callable[[Image], Tensor]:
    """Return the training transform: random crop, flip, RandAugment and normalization.

    The crop is RandomResizedCrop, or, with crop_padding, a crop of full size from the padded image.

    It returns tensors of shape (channels, image_size, image_size). Raises InputError for a RandAugment policy that timm
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
            mean=recipe.mean,
            std=recipe.std,
        )
    except Exception as error:  # timm raises errors of many types for an invalid policy
        raise InputError(f"rand_augment must be a policy like rand-m10-n2, got {recipe.rand_augment!r}") from error
    if recipe.crop_padding:
        resize = Resize(recipe.image_size, InterpolationMode(recipe.interpolation))
        crop = RandomCrop(recipe.image_size, recipe.crop_padding)
        transform.transforms[0] = Compose([center_square, resize, crop])  # in place of RandomResizedCrop
    return transform
