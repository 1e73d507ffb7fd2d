"""From an image to the tensor that a recipe's model sees: timm's transforms."""

from collections.abc import Callable

from PIL.Image import Image
from timm.data import create_transform
from torch import Tensor

from lambdanets.training.recipe import Recipe


def make_transform(recipe: Recipe, *, training: bool) -> Callable[[Image], Tensor]:
    """The transform of an image in the recipe's channels to (channels, image_size, image_size), normalized.

    In training a random crop, flip and RandAugment as the recipe says; otherwise the whole shorter side, centred.
    """
    shape = (recipe.channels, recipe.image_size, recipe.image_size)
    common = {"interpolation": recipe.interpolation, "mean": recipe.mean, "std": recipe.std}
    if not training:
        return create_transform(shape, is_training=False, crop_pct=1.0, **common)
    return create_transform(
        shape,
        is_training=True,
        scale=recipe.crop_share,
        ratio=recipe.crop_ratio,
        hflip=recipe.flip,
        color_jitter=None,
        auto_augment=recipe.rand_augment,
        **common,
    )
