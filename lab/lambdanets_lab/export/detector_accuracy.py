"""Accuracy of exported detectors on the validation data of their training run, and their calibration images."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F
from torchvision.ops import clip_boxes_to_image

from lambdanets.data.coco.images import AnnotatedImages
from lambdanets.data.coco.loader import evaluation_batches, image_to_tensor
from lambdanets.data.coco.sets import open_digits
from lambdanets.data.image_search import list_images
from lambdanets.data.images import read_image
from lambdanets.errors import InputError
from lambdanets.inference.coco_scores import Result, Scores, evaluate
from lambdanets.inference.detections import Detections
from lambdanets.inference.detector import DetectionEvaluator, Detector
from lambdanets_lab.export.quantization import Run, Validation, calibration_indices


def open_detector_validation(model: Detector, data: str, size: tuple[int, int], *, dynamic: bool) -> Validation:
    """Open the validation data in the model card of a detector, and its calibration images.

    data: a folder of calibration images, or "digits" for the scattered digits. size: (H, W) of the graph's images.
    dynamic: whether the graph accepts images of other sizes.
    """
    if not model.card.recipe.get("data"):
        raise InputError(
            "int8 must be None for a detector without validation data, such as one of the package or a weight file, "
            f"got {data!r}; use a run folder, which names its data"
        )
    detector = _RuntimeDetector(model.model, model.card, size, pad=not dynamic)
    annotated = model.open_images()
    return _DetectorValidation(detector, _calibration_images(data, model.card.stretch), annotated)


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
        evaluation = DetectionEvaluator(replace(self.detector, run=run), chosen).evaluate()
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

    def detect(self, images: Sequence[Tensor]) -> list[Detections]:
        assert self.run is not None
        detections = []
        for image in images:
            resized, (height, width) = self.resize_and_pad(image)
            boxes, labels, scores, masks = self.run(resized)
            size = image.shape[1:]
            boxes = clip_boxes_to_image(boxes, (height, width)) * torch.tensor([size[1] / width, size[0] / height] * 2)
            masks = F.interpolate(masks[:, None, :height, :width].float(), size, mode="bilinear", align_corners=False)
            outputs = {"boxes": boxes, "labels": labels, "scores": scores, "masks": masks}
            detections.append(Detections.from_outputs(outputs, self.classes))
        return detections


def _calibration_images(data: str, stretch: bool) -> Callable[[], Iterator[Tensor]]:
    """Return a function that yields the images (3, H, W) of a folder or of the scattered digits."""
    if data == "digits":
        digits = open_digits()[0]
        images = digits.select(calibration_indices(len(digits)))
        return lambda: (image for batch in evaluation_batches(images, 1) for image in batch.images)
    paths = list_images(Path(data)).paths
    if not paths:
        raise InputError(f"int8 must be a folder with images for a detector, got {data}")
    chosen = [paths[index] for index in calibration_indices(len(paths))]
    return lambda: (image_to_tensor(read_image(path, stretch=stretch)) for path in chosen)
