"""From labelled images to the batches that a recipe's model sees, with timm's transforms."""

from collections.abc import Callable

from PIL.Image import Image
from timm.data import create_transform
from torch import Tensor
from torchvision.transforms import Compose

from lambdanets.data.labelled_images import LabelledImages
from lambdanets.data.loader import ImageBatches
from lambdanets.data.order import Share
from lambdanets.errors import InputError
from lambdanets.training.recipe import Recipe


def make_batches(
    recipe: Recipe,
    images: LabelledImages,
    *,
    training: bool,
    share: Share | None = None,
    beside: LabelledImages | None = None,
) -> ImageBatches:
    """The recipe's batches of images: shuffled and augmented in training, else in order and as they are.

    share: what of each step this process takes, and in how many parts; all in one if None, in evaluation as many at a
    time as in training. beside: the pseudo-labelled images.
    """
    at_a_time = recipe.micro_batch if share is None and not training else None
    return ImageBatches(
        images,
        make_transform(recipe, training=training),
        channels=recipe.channels,
        batch_size=at_a_time or recipe.batch_size,
        seed=recipe.seed,
        training=training,
        workers=recipe.workers,
        share=share,
        beside=beside,
        beside_size=recipe.beside_batch,
    )


def make_transform(recipe: Recipe, *, training: bool) -> Callable[[Image], Tensor]:
    """The transform of an image in the recipe's channels to (channels, image_size, image_size), normalized.

    In training a random crop, flip and RandAugment as the recipe says; otherwise the largest centred square, or
    as much of its middle as eval_crop says.
    Raises InputError for a RandAugment policy that timm does not know.
    """
    shape = (recipe.channels, recipe.image_size, recipe.image_size)
    common = {"interpolation": recipe.interpolation, "mean": recipe.mean, "std": recipe.std}
    if not training:
        middle = create_transform(shape, is_training=False, crop_pct=recipe.eval_crop, **common)
        return Compose([centred_square, middle])
    try:
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
    except Exception as error:  # timm asserts and indexes its way through the policy's text
        raise InputError(f"rand_augment must be a policy like rand-m10-n2, got {recipe.rand_augment!r}") from error


def centred_square(image: Image) -> Image:
    """The largest centred square. Taken before resizing: a strip of 1 x 60,000 pixels must not grow to its length."""
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    return image.crop((left, top, left + side, top + side))
