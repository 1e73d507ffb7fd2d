"""Segmentation of annotated datasets and image files."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from lambdanets.data.coco.images import AnnotatedImages
from lambdanets.data.coco.loader import evaluation_batches, image_to_tensor
from lambdanets.data.coco.semantic_masks import SEMANTIC_MASK, load_with_semantic_mask
from lambdanets.errors import InputError
from lambdanets.inference.inputs import readable_batches
from lambdanets.inference.segmentation_scores import ImageCounts, SegmentationScores, count_image, summarize
from lambdanets.inference.segmenter import Segmentation, Segmenter
from lambdanets.progress import track


@dataclass(frozen=True, eq=False)
class SegmentationEvaluation:
    """Scores of the readable images of an annotated dataset.

    readable: indices of the readable images. unreadable: one message per unreadable image.
    """

    scores: SegmentationScores
    readable: list[int]
    unreadable: list[str]

    def __repr__(self) -> str:
        means = [f"{name} {format_score(value)}" for name, value in self.scores.means().items()]
        return f"SegmentationEvaluation({', '.join([f'{len(self.readable)} images', *means])})"


def evaluate_segmenter(
    segmenter: Segmenter, images: AnnotatedImages, batch_size: int = 1, workers: int = 0
) -> SegmentationEvaluation:
    """Segment a dataset and score it. Raises InputError if all images are unreadable.

    batch_size: images per forward pass; only images of equal size share a batch.
    workers: number of data loading processes.
    """
    counts: list[ImageCounts] = []
    unreadable: list[str] = []
    with evaluation_batches(images, batch_size, workers, load=load_with_semantic_mask) as batches:
        for batch in track(batches, "evaluating", len(batches), "batches"):
            unreadable += batch.unreadable
            segmentations = segmenter.segment(batch.images)
            for index, segmentation, target in zip(batch.indices.tolist(), segmentations, batch.targets, strict=True):
                labels = segmentation.labels.numpy()
                counts.append(count_image(index, labels, target[SEMANTIC_MASK].numpy(), len(segmenter.classes)))
    if not counts:
        raise InputError(f"none of the {len(images)} images could be read; the first: {unreadable[0]}")
    readable = [image_counts.image_index for image_counts in counts]
    return SegmentationEvaluation(summarize(counts, segmenter.classes), readable, unreadable)


def segment_files(
    segmenter: Segmenter,
    paths: Sequence[Path],
    unreadable: list[str],
    batch_size: int = 1,
    *,
    tile_size: int | None = None,
    channel: int | None = None,
    stretch: bool | None = None,
) -> Iterator[tuple[Path, Image.Image, Segmentation]]:
    """Yield path, image and segmentation of each readable file; messages about the others go to `unreadable`.

    batch_size, tile_size: as in `Segmenter.predict`. channel, stretch: as in `read_image`; stretch is by default that
        of the model card.
    """
    stretch = segmenter.card.stretch if stretch is None else stretch
    for batch in readable_batches(paths, unreadable, batch_size, channel=channel, stretch=stretch):
        tensors = [image_to_tensor(image) for _, image in batch]
        segmentations = segmenter.segment(tensors, tile_size=tile_size, batch_size=batch_size)
        for (path, image), segmentation in zip(batch, segmentations, strict=True):
            yield path, image, segmentation


def format_score(value: float | None) -> str:
    """Format a score with four digits, or as a dash if there is none."""
    return "-" if value is None else f"{value:.4f}"
