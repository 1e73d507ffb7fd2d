"""Accuracy of exported models on validation data, and calibration data for int8 quantization."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F
from torchvision.ops import clip_boxes_to_image

from lambdanets.data.coco.images import AnnotatedImages
from lambdanets.data.coco.loader import evaluation_batches, image_to_tensor
from lambdanets.data.coco.sets import open_digits
from lambdanets.data.datasets import open_splits, remap_labels
from lambdanets.data.images import list_images, read_image
from lambdanets.data.labeled_images import LabeledImages, SelectedImages
from lambdanets.deployment.quantization import MAX_CALIBRATION_IMAGES, Run, Validation
from lambdanets.errors import InputError
from lambdanets.inference.annotated_sets import open_evaluation_set
from lambdanets.inference.classification import make_batches
from lambdanets.inference.classifier import Classifier
from lambdanets.inference.coco_results import Result
from lambdanets.inference.coco_scores import Scores, evaluate
from lambdanets.inference.detection import evaluate_detector
from lambdanets.inference.detector import Detector
from lambdanets.inference.inputs import readable_batches


def open_validation_data(model: Classifier | Detector, data: str, shape: Sequence[int], *, dynamic: bool) -> Validation:
    """Open the validation and calibration data of a model.

    data: for a classifier, a dataset as for `open_splits`: the training split is for calibration, the validation split
        for accuracy. For a detector, a folder of calibration images, or "digits" for the scattered digits; accuracy is
        measured on the validation data in the model card.
    shape: shape of the graph's input images. dynamic: whether the graph accepts images of other shapes.
    """
    if isinstance(model, Classifier):
        source = model.card.source
        root = source.data_root if data == source.data else None
        splits = open_splits(data, root=root, validation_share=source.validation_share, seed=source.seed)
        train, validation = (
            remap_labels(images, splits.classes, model.classes, splits.source)
            for images in (splits.train, splits.validation)
        )
        return _ClassifierValidation(model, train, validation, shape[0])
    detector = _RuntimeDetector(model.model, model.card, (shape[2], shape[3]), pad=not dynamic)
    if model.card.data == "":
        raise InputError("int8 needs the validation data of the training run, and a model of the package has none")
    annotated = open_evaluation_set(model, None, None)
    return _DetectorValidation(detector, _calibration_images(data, model.card.stretch), annotated)


def _calibration_indices(num_images: int) -> list[int]:
    """Return the indices of random calibration images."""
    generator = torch.Generator().manual_seed(0)
    return sorted(torch.randperm(num_images, generator=generator)[:MAX_CALIBRATION_IMAGES].tolist())


@dataclass(frozen=True, eq=False)
class _ClassifierValidation:
    """Validation and calibration images of a classifier, in batches of constant size."""

    classifier: Classifier
    train: LabeledImages
    validation: LabeledImages
    batch_size: int
    metric: str = "top-1 accuracy"

    def __len__(self) -> int:
        return len(self.validation)

    def calibration(self) -> list[Tensor]:
        return [images for images, _, _ in self._batches(self.train, _calibration_indices(len(self.train)))]

    def accuracy(self, run: Run, indices: Sequence[int]) -> tuple[float, list[float]]:
        correct = torch.zeros(len(indices))
        count = 0
        for images, labels, positions in self._batches(self.validation, indices):
            predicted = run(images)[0][: len(labels)].argmax(1)
            correct[positions] = (predicted == labels).float()
            count += len(labels)
        if not count:
            raise InputError(f"none of {len(indices)} validation images could be read")
        return float(correct.sum()) / count, correct.tolist()

    def _batches(self, images: LabeledImages, indices: Sequence[int]) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield images padded to the batch size; labels and positions in `indices` exclude the padding."""
        labels = [int(images.labels[index]) for index in indices]
        with make_batches(self.classifier, SelectedImages(images, indices, labels), self.batch_size) as batches:
            for batch in batches:
                if count := len(batch.labels):
                    padding = batch.images[:1].expand(self.batch_size - count, -1, -1, -1)
                    yield torch.cat((batch.images, padding)), batch.labels, batch.indices


@dataclass(frozen=True, eq=False)
class _DetectorValidation:
    """Validation and calibration images of a detector."""

    detector: "_RuntimeDetector"
    open_calibration_images: Callable[[], Iterator[Tensor]]
    validation: AnnotatedImages
    metric: str = "mask AP"

    def __len__(self) -> int:
        return len(self.validation)

    def calibration(self) -> list[Tensor]:
        return [self.detector.resize_and_pad(image)[0] for image in self.open_calibration_images()]

    def accuracy(self, run: Run, indices: Sequence[int]) -> tuple[float, list[float]]:
        chosen = self.validation.select(indices)
        evaluation = evaluate_detector(replace(self.detector, run=run), chosen)
        limit = self.detector.card.max_detections
        by_image: dict[int, list[Result]] = {image.id: [] for image in chosen.annotations.images}
        for result in evaluation.results:
            by_image[result["image_id"]].append(result)
        per_image = [
            _mask_precision(evaluate(chosen.annotations.to_coco([index]), by_image[image.id], max_detections=limit))
            for index, image in enumerate(chosen.annotations.images)
        ]
        return _mask_precision(evaluation.scores), per_image


def _mask_precision(scores: Scores) -> float:
    return scores.summary()["segm"]["AP"] or 0.0


@dataclass(frozen=True, repr=False)
class _RuntimeDetector(Detector):
    """A detector whose detections are those of a model file.

    size: (H, W), to which images are resized, keeping the aspect ratio. pad: whether to pad them to exactly this size.
    """

    size: tuple[int, int]
    pad: bool
    run: Run | None = None

    def resize_and_pad(self, image: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """Return an image (3, H, W) as an input of the graph, with its height and width without padding."""
        height, width = image.shape[1:]
        scale = min(self.size[0] / height, self.size[1] / width)
        sides = max(1, round(height * scale)), max(1, round(width * scale))
        resized = F.interpolate(image[None], sides, mode="bilinear", align_corners=False, antialias=scale < 1)
        if self.pad:
            mean = torch.tensor(self.card.mean).view(3, 1, 1)  # 0 after normalization
            resized = F.pad(resized - mean, (0, self.size[1] - sides[1], 0, self.size[0] - sides[0])) + mean
        return resized, sides

    def detect(self, images: Sequence[Tensor]) -> list[dict[str, Tensor]]:
        assert self.run is not None
        detections = []
        for image in images:
            resized, (height, width) = self.resize_and_pad(image)
            boxes, labels, scores, masks = self.run(resized)
            size = image.shape[1:]
            boxes = clip_boxes_to_image(boxes, (height, width)) * torch.tensor([size[1] / width, size[0] / height] * 2)
            masks = F.interpolate(masks[:, None, :height, :width].float(), size, mode="bilinear", align_corners=False)
            detections.append({"boxes": boxes, "labels": labels, "scores": scores, "masks": masks})
        return detections


def _calibration_images(data: str, stretch: bool) -> Callable[[], Iterator[Tensor]]:
    """Return a function that yields the readable images (3, H, W) of a folder or of the scattered digits."""
    if data == "digits":
        digits = open_digits()[0]
        images = digits.select(_calibration_indices(len(digits)))
        return lambda: (image for batch in evaluation_batches(images, 1) for image in batch.images)
    paths = list_images(Path(data))
    if not paths:
        raise InputError(f"int8 must be a folder with images for a detector, got {data}")
    chosen = [paths[index] for index in _calibration_indices(len(paths))]
    read = partial(read_image, stretch=stretch)
    return lambda: (image_to_tensor(image) for batch in readable_batches(chosen, [], 1, read) for _, image in batch)
