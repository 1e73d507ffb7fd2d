"""What a classifier makes of images: of a labelled set, and of files."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lambdanets.data.datasets import LabelledImages, open_splits, renumber
from lambdanets.data.images import UnreadableImage, read_image
from lambdanets.device import free_memory
from lambdanets.errors import InputError
from lambdanets.progress import track
from lambdanets.training.classification.classifier import Classifier
from lambdanets.training.classification.feeding import make_batches, make_transform
from lambdanets.training.processes import processes


@dataclass(frozen=True)
class Judgement:
    """The classifier's word on each readable image of a labelled set, in the set's order."""

    indices: np.ndarray
    labels: np.ndarray
    predicted: np.ndarray
    confidence: np.ndarray
    unreadable: list[str]

    @property
    def top1(self) -> float:
        """Share of the images whose most probable class is the label."""
        return float((self.labels == self.predicted).mean())


@dataclass(frozen=True)
class Prediction:
    """The most probable classes of one image file, most probable first."""

    path: Path
    classes: tuple[str, ...]
    probabilities: tuple[float, ...]


def judge(classifier: Classifier, images: LabelledImages) -> Judgement:
    """Classify a labelled set, in its order. Raises InputError when no image of it can be read."""
    unreadable: list[str] = []
    parts: list[list[Tensor]] = []
    with make_batches(classifier.recipe, images, training=False) as batches:
        for batch in track(batches, "evaluating", len(batches), "batches"):
            unreadable += batch.unreadable
            if len(batch.labels):
                confidence, predicted = probabilities_of(classifier, batch.images).max(dim=1)
                parts.append([batch.indices, batch.labels, predicted, confidence])
    if not parts:
        raise InputError(f"none of the {len(images)} images could be read; the first: {unreadable[0]}")
    columns = [torch.cat(column).numpy() for column in zip(*parts, strict=True)]
    return Judgement(columns[0], columns[1], columns[2], columns[3], unreadable)


def evaluate(classifier: Classifier, data: str | None = None, data_root: str | None = None) -> Judgement:
    """Classify the validation part of the classifier's own data set, or of another with classes it knows.

    As many images at a time as `fitting` says.
    """
    recipe = classifier.recipe
    splits = open_splits(
        data or recipe.data,
        root=data_root or (None if data else recipe.data_root),
        validation_share=recipe.validation_share,
        seed=recipe.seed,
    )
    images = renumber(splits.validation, splits.classes, classifier.classes, splits.source)
    return judge(fitting(classifier), images)


def fitting(classifier: Classifier) -> Classifier:
    """The classifier with as many images at a time as it was trained with at a time, but no more than fit here.

    An image is taken to need what all layers make of it together, which is more than a forward pass holds at once.
    """
    recipe, model = classifier.recipe, classifier.model
    device = next(model.parameters()).device
    made = 0

    def count(module: nn.Module, inputs: Any, output: Any) -> None:
        nonlocal made
        made += output.nbytes if isinstance(output, Tensor) else 0

    hooks = [module.register_forward_hook(count) for module in model.modules()]
    try:
        probabilities_of(classifier, torch.zeros(1, recipe.channels, recipe.image_size, recipe.image_size))
    finally:
        for hook in hooks:
            hook.remove()
    free = free_memory(device)
    if device.type == "cpu":
        free //= processes().local_world_size
    images = max(2, min(recipe.micro_batch or recipe.batch_size, free // made))
    return replace(classifier, recipe=replace(recipe, micro_batch=images))


def predict(classifier: Classifier, paths: Iterable[Path], top: int, unreadable: list[str]) -> Iterator[Prediction]:
    """Classify image files of any mode, one after the other; what cannot be read is added to `unreadable`."""
    transform = make_transform(classifier.recipe, training=False)
    mode = "L" if classifier.recipe.channels == 1 else "RGB"
    for path in paths:
        try:
            image = read_image(path)
        except UnreadableImage as error:
            unreadable.append(str(error))
            continue
        probabilities = probabilities_of(classifier, transform(image.convert(mode)).unsqueeze(0))[0]
        best = probabilities.topk(min(top, len(classifier.classes)))
        names = tuple(classifier.classes[i] for i in best.indices.tolist())
        yield Prediction(path, names, tuple(round(p, 6) for p in best.values.tolist()))


@torch.inference_mode()
def probabilities_of(classifier: Classifier, images: Tensor) -> Tensor:
    """The probabilities (b, classes) of images as the classifier is fed them, float32 on the processor.

    Raises InputError where they are not finite, as of weights so large that the outputs overflow.
    """
    device = next(classifier.model.parameters()).device
    probabilities = classifier.model(images.to(device)).float().softmax(dim=1).cpu()
    if not probabilities.isfinite().all():
        raise InputError(f"the outputs of {classifier.recipe.model} must be finite, got NaN: its weights are damaged")
    return probabilities
