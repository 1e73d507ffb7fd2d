"""What a task defines about its trained models, so that `load`, `evaluate` and the commands work for them."""

import os
import reprlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Self

import numpy as np
import torch
from PIL.Image import Image
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor, nn

from lambdanets.data.batches import Batches
from lambdanets.data.image_search import is_image_name
from lambdanets.data.images import read_image
from lambdanets.device import resolve_device
from lambdanets.errors import InputError
from lambdanets.files import atomic_open, atomic_write
from lambdanets.inference.model_card import ModelCard
from lambdanets.models.weights import NON_FINITE
from lambdanets.progress import track
from lambdanets.records import check, write_json
from lambdanets.terminal import plural
from lambdanets.work import encode_line

ImageInput = str | os.PathLike[str] | Image | np.ndarray | Tensor
ImageInputs = ImageInput | Iterable[ImageInput]
_INPUT_TYPES = (str, os.PathLike, Image, np.ndarray, Tensor)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Evaluation:
    """The scores of a model on the readable images of a labeled set.

    scores: for scores.json and result.json.
    metrics: as in metrics.csv; None for those that the set does not define.
    lines: the scores as text, for the end of training and of an evaluation.
    counts: the number of images, and of what was found in them, as text.
    measures: `Predictor.measure` of the images. unreadable: one message for each of the others.
    """

    scores: dict[str, Any]
    metrics: dict[str, float | None]
    lines: list[str]
    counts: str
    measures: Sequence[Any] = ()
    unreadable: Sequence[str] = ()

    def __repr__(self) -> str:
        metrics = (f"{name} {format_score(value)}" for name, value in self.metrics.items())
        return f"{type(self).__name__}({', '.join([self.counts, *metrics])})"


def format_score(value: float | None) -> str:
    """Format a score with four digits, or None as a dash."""
    return "-" if value is None else f"{value:.4f}"


@dataclass(frozen=True, eq=False, repr=False)
class Predictor(ABC):
    """A trained model with its model card, on any device, in any dtype: a `Classifier`, `Detector` or `Segmenter`.

    images: a labeled set, for an evaluation; see `evaluator`. source: its description. left_out: number of files or
    annotations that are not used, by reason.
    """

    card_type: ClassVar[type[ModelCard]]
    default_batch_size: ClassVar[int] = 1  # of `predict`
    # The options of `lambdanets predict` for some tasks that this one has, with their default values.
    command_options: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    default_out: ClassVar[str] = "predictions.jsonl"  # of the command: a file if it has a suffix, or else a folder

    model: Any
    card: Any
    images: Any = None
    source: str = ""
    left_out: Mapping[str, int] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.card.model}, {len(self.classes)} classes)"

    @staticmethod
    @abstractmethod
    def build(architecture: Any, num_classes: int) -> nn.Module:
        """Build the network of a card, or of a recipe with what only training needs, with random weights."""

    @staticmethod
    def accepts(name: str) -> bool:
        """Whether `lambdanets predict` takes a file of this name in a folder; by default, whether it is an image."""
        return is_image_name(name)

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names, in the order of the model's outputs."""
        return self.card.classes

    def to(self, device: str | torch.device) -> Self:
        """Move the model to a device, in place. Raises InputError if the device does not exist."""
        self.model.to(resolve_device(device))
        return self

    @torch.inference_mode()
    def outputs(self, images: Tensor | Sequence[Tensor]) -> Any:
        """Return the model's outputs for images, in evaluation mode, on its device and in its dtype."""
        parameter = next(self.model.parameters())
        inputs = images.to(parameter) if isinstance(images, Tensor) else [image.to(parameter) for image in images]
        with evaluation_mode(self.model):
            return self.model(inputs)

    def finite_outputs(self, images: Tensor) -> Tensor:
        """Return `outputs` in float32. Raises InputError if some are NaN or inf, which would still give classes."""
        outputs = self.outputs(images).float()
        if not outputs.isfinite().all():
            raise InputError(f"the outputs of {self.card.model} must be finite, got NaN or inf: {NON_FINITE}")
        return outputs

    def predict(
        self,
        images: ImageInputs,
        *,
        batch_size: int | None = None,
        channel: int | None = None,
        stretch: bool | None = None,
        device: str | torch.device | None = None,
        **options: Any,
    ) -> list[Any]:
        """Predict on images of any size. Returns one prediction per image, in the same order.

        Args:
            images: an image or several: paths, Pillow images of any mode, arrays (H, W) or (H, W, C), or tensors (H, W)
                or (C, H, W). As in scikit-image and torchvision, values are uint8, uint16 in all of its range, or
                floating point in [0, 1], and C is 1 for gray or 3 for RGB; or one more for alpha. Arrays and tensors
                with 4 dimensions are several images. They are preprocessed as in the model card: do not resize or
                normalize them.
            batch_size: images, or tiles of an image, per forward pass; 32 for a classifier and 1 for others by default.
            channel: index of the channel, plane or color to use; files with several need one, except color images.
            stretch: whether to map the intensities of background and objects to those of the model's training images,
                for images of other instruments and of more than 8 bits; by default as the model.
            device: such as "cpu" or "cuda:1"; moves the model to it, also for later calls.
            options: of a detector or segmenter, tile_size: side in pixels of overlapping tiles for images with a side
                of more than two tiles, at least 16; 0 for no tiles; by default the model's, if it has one.

        Raises InputError for an invalid argument or an unreadable image.
        """
        if device is not None:
            self.to(device)
        batch_size = self.default_batch_size if batch_size is None else batch_size
        check("batch_size", batch_size, PositiveInt)
        decoded = enumerate(self.decode(images, channel=channel, stretch=stretch))
        return [prediction for *_, prediction in self.stream(decoded, batch_size, **options)]

    def stream(
        self, images: Iterator[tuple[Any, Any]], batch_size: int, **options: Any
    ) -> Iterator[tuple[Any, Any, Any]]:
        """Yield name, image and prediction for each pair of a name and an image from `decode`, of few at a time."""
        while batch := list(islice(images, batch_size)):
            predictions = self.infer([image for _, image in batch], batch_size=batch_size, **options)
            yield from ((*image, prediction) for image, prediction in zip(batch, predictions, strict=True))

    @staticmethod
    def read(path: Path, **options: Any) -> Any:
        """Read a file for `infer`. options: channel and stretch. Raises UnreadableImage."""
        return read_image(path, **options)

    def decode(self, images: ImageInputs, *, channel: int | None = None, stretch: bool | None = None) -> Iterator[Any]:
        """Yield 8-bit images of mode "L" or "RGB", with EXIF orientation applied, when they are requested.

        The arguments are those of `predict`. Raises InputError, and UnreadableImage, also for Pillow images of colors
        with more than 8 bits: pass their paths.
        """
        check("channel", channel, NonNegativeInt | None)
        check("stretch", stretch, bool | None)  # "off" would be true
        stretch = self.card.stretch if stretch is None else stretch
        if isinstance(images, np.ndarray | Tensor) and images.ndim == 4:
            images = list(images)
        if isinstance(images, Iterable) and not isinstance(images, (*_INPUT_TYPES, bytes, dict)):
            for index, image in enumerate(images):
                yield self._decode(f"images[{index}]", image, channel=channel, stretch=stretch)
        else:
            yield self._decode("images", images, channel=channel, stretch=stretch)

    def _decode(self, name: str, image: Any, **options: Any) -> Any:
        if isinstance(image, str | os.PathLike):
            return self.read(Path(image), **options)
        if not isinstance(image, _INPUT_TYPES):
            expected = "a path, a Pillow image, a NumPy array, a tensor, or a list of them"
            raise InputError(f"{name} must be {expected}, got {reprlib.repr(image)}")
        if isinstance(image, np.ndarray | Tensor):
            layout, axis = ("C, H, W", 0) if isinstance(image, Tensor) else ("H, W, C", -1)
            if image.ndim not in (2, 3) or 0 in image.shape or (image.ndim == 3 and image.shape[axis] > 4):
                expected = f"the shape (H, W) or ({layout}) with 1 to 4 channels"
                raise InputError(f"{name} must have {expected}, got {tuple(image.shape)}")
        if isinstance(image, Tensor):
            image = (image.float() if image.is_floating_point() else image).detach().cpu().numpy()
            image = np.moveaxis(image, 0, -1) if image.ndim == 3 else image
        return read_image(image, name, **options)

    @abstractmethod
    def infer(self, images: Sequence[Image], /, *args: Any, **options: Any) -> list[Any]:
        """Return one prediction for each image of a batch, of mode "L" or "RGB".

        A task declares batch_size, of its tiles, and the options that it has.
        """

    @abstractmethod
    def write(
        self, prediction: Any, image: Image, number: int, stem: Path, options: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Write the files of one image's prediction, and return its row for `describe` and `finish`, as for JSON.

        number: of the image, from 1. stem: path of its files, without a suffix. options: values of `command_options`.
        """

    def describe(self, row: Mapping[str, Any]) -> str:
        """Return what the command prints about an image, by default the values of its row."""
        return ", ".join(map(str, row.values()))

    def finish(self, rows: Sequence[Mapping[str, Any]], out: Path, options: Mapping[str, Any]) -> str:
        """Write the files of all images, and return a summary. The rows also have the "path" of their image.

        By default `out` is a file with one line of JSON per image.
        """
        atomic_write(out, b"".join(map(encode_line, rows)))
        return plural(len(rows), "image")

    @abstractmethod
    def evaluator(self, *args: Any, **options: Any) -> Self:
        """Return the predictor with labeled `images`, by default the validation data of the training run.

        A task declares the parameters that it has; those that `lambdanets evaluate` has are its options there.
        """

    def evaluate(self, *, batch_size: int | None = None, workers: int = 0) -> Evaluation:
        """Return the scores on `images`, by default those of `evaluator()`. Raises InputError if all are unreadable."""
        if self.images is None:
            return self.evaluator().evaluate(batch_size=batch_size, workers=workers)
        measures: list[Any] = []
        unreadable: list[str] = []
        with self.batches(batch_size=batch_size or self.default_batch_size, workers=workers) as batches:
            for batch in track(batches, "evaluating", len(batches), "batches"):
                unreadable += batch.unreadable
                measures += self.measure(batch)
        if not measures:
            raise InputError(f"0 of {plural(len(self.images), 'image')} could be read; the first: {unreadable[0]}")
        return replace(self.score(measures), measures=measures, unreadable=unreadable)

    # Training validates with these three: images are measured in one process or in several; a score takes all measures.

    @abstractmethod
    def batches(self, **options: Any) -> Batches:
        """Return the batches of `images`, in order. options: batch_size, workers and batch_slice of `Batches`."""

    @abstractmethod
    def measure(self, batch: Any) -> list[Any]:
        """Return a tuple for each readable image of a batch, if any, its index first, that can be pickled."""

    @abstractmethod
    def score(self, measures: list[Any]) -> Evaluation:
        """Return the scores of measures, which are in the order of the images."""

    def draw(self, evaluation: Any, folder: Path) -> None:  # noqa: B027 - a task may have no figures
        """Draw figures of an evaluation into a folder; one is predictions.png, by which it is known as output."""

    def write_evaluation(self, evaluation: Any, folder: Path) -> None:
        """Write scores.json and figures into a folder."""
        write_json(folder / "scores.json", evaluation.scores, 2)
        self.draw(evaluation, folder)


def save_image(image: Image, stem: Path) -> None:
    """Write STEM.png, or STEM.tif for an image of 32 bits, atomically. Creates its folder."""
    suffix, kind = (".tif", "TIFF") if image.mode == "I" else (".png", "PNG")
    stem.parent.mkdir(exist_ok=True)
    with atomic_open(stem.with_name(stem.name + suffix)) as file:
        image.save(file, kind)


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
