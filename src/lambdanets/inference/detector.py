"""Trained detectors, and their evaluation on annotated datasets."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch
from PIL.Image import Image
from torch import Tensor

from lambdanets.data.batches import Batch
from lambdanets.data.coco.loader import image_to_tensor
from lambdanets.files import atomic_open, atomic_write, encode_utf8
from lambdanets.inference.architecture import DetectorArchitecture
from lambdanets.inference.coco_predictor import CocoEvaluator, CocoPredictor
from lambdanets.inference.coco_scores import Result, Scores, coco_results
from lambdanets.inference.coco_scores import evaluate as evaluate_results
from lambdanets.inference.detections import MASK_THRESHOLD, Detections
from lambdanets.inference.evaluator import Evaluation, format_score
from lambdanets.inference.label_images import (
    COLUMNS,
    label_image_name,
    make_label_image,
    measure_objects,
    save_label_image,
)
from lambdanets.inference.model_card import DetectorCard
from lambdanets.inference.options import DetectorOptions
from lambdanets.inference.predictor import numbered_name
from lambdanets.inference.tiled_detection import detect_tiled
from lambdanets.inference.tiles import is_tiled
from lambdanets.models.mask_rcnn import MaskRCNN, mask_rcnn
from lambdanets.records import TileSize, check, write_json
from lambdanets.text_tables import csv_table

# Columns of metrics.csv: COCO's iouType and metric.
METRICS = {f"{kind}_{name}": (kind, name) for kind in ("bbox", "segm") for name in ("AP", "AP50")}


@dataclass(frozen=True, eq=False, repr=False)
class DetectionEvaluation(Evaluation):
    """Detections in the readable images of an annotated dataset, as COCO results, and their scores.

    readable: indices of the readable images. unreadable: one message per unreadable image.
    """

    results: list[Result]
    scores: Scores
    readable: list[int]
    unreadable: list[str]

    def metrics(self) -> dict[str, float | None]:
        summary = self.scores.summary()
        return {name: summary[kind][metric] for name, (kind, metric) in METRICS.items()}

    def to_dict(self) -> dict[str, Any]:
        return {**self.scores.to_dict(), "images": len(self.readable)}

    def summary(self) -> str:
        box, mask = (format_score(self.metrics()[f"{kind}_AP"]) for kind in ("bbox", "segm"))
        return f"box AP {box}  mask AP {mask}"

    def lines(self) -> list[str]:
        labels, summary = {"bbox": "boxes", "segm": "masks"}, self.scores.summary()
        return [
            "  ".join([label, *(f"{name} {format_score(value)}" for name, value in summary[kind].items())])
            for kind, label in labels.items()
        ]

    def counts(self) -> str:
        return f"{len(self.readable)} images, {len(self.results)} detections"


class DetectionEvaluator(CocoEvaluator):
    """Measures (index, COCO results) of each image. All masks of a batch are in memory."""

    predictor: "Detector"

    def measure(self, batch: Batch) -> list[Any]:
        detections = self.predictor.detect(batch.images) if batch.images else []
        annotated, category_ids = self.images.annotations.images, self.predictor.card.category_ids
        return [
            (index, coco_results(found, annotated[index].id, category_ids))
            for index, found in zip(batch.indices.tolist(), detections, strict=True)
        ]

    def score(self, measures: list[Any], unreadable: list[str]) -> DetectionEvaluation:
        measures = sorted(measures, key=itemgetter(0))
        readable = [index for index, _ in measures]
        results = [result for _, found in measures for result in found]
        truth = self.images.annotations.to_coco(readable)
        scores = evaluate_results(truth, results, max_detections=self.predictor.card.max_detections)
        return DetectionEvaluation(results, scores, readable, unreadable)

    def write(self, evaluation: DetectionEvaluation, folder: Path) -> None:
        """Write scores.json, results.json and figures."""
        write_json(folder / "results.json", evaluation.results, None)
        super().write(evaluation, folder)

    def draw(self, evaluation: DetectionEvaluation, folder: Path) -> None:
        """Draw predictions.png and precision_recall.png."""
        from lambdanets.inference.figures import draw_detections

        draw_detections(self.predictor, self.images, evaluation, folder)


class Detector(CocoPredictor):
    """A trained detector, which `lambdanets.load` returns. Its predictions are `Detections`."""

    card_type = DetectorCard
    evaluator_type = DetectionEvaluator
    output = "detections"

    model: MaskRCNN
    card: DetectorCard

    @staticmethod
    def build(
        architecture: DetectorArchitecture, num_classes: int, *, drop_path: float = 0.0, **training_options: Any
    ) -> MaskRCNN:
        options = architecture.checked_options() | ({"drop_path_rate": drop_path} if drop_path else {})
        return mask_rcnn(
            architecture.model,
            num_classes,
            image_size=architecture.image_size,
            levels=architecture.levels,
            pyramid_channels=architecture.pyramid_channels,
            box_layers=architecture.box_layers,
            mask_layers=architecture.mask_layers,
            anchor_scale=architecture.anchor_scale,
            aspect_ratios=architecture.aspect_ratios,
            hide_padding=architecture.hide_padding,
            image_mean=architecture.mean,
            image_std=architecture.std,
            mask_threshold=MASK_THRESHOLD,
            backbone_options=options,
            rpn_pre_nms_top_n_test=2 * architecture.proposals,
            rpn_post_nms_top_n_test=architecture.proposals,
            box_detections_per_img=architecture.max_detections,
            **training_options,
        )

    def infer(self, images: Sequence[Image], *, tile_size: int | None = None, batch_size: int = 1) -> list[Detections]:
        """Detect objects in images, of which those with a side of more than two tiles are divided (`detect_tiled`)."""
        check("tile_size", tile_size, TileSize | None)
        untiled = [image_to_tensor(image) for image in images if not is_tiled(image.size, tile_size)]
        detected = iter(self.detect(untiled) if untiled else ())
        return [
            detect_tiled(self, image, tile_size, batch_size)
            if tile_size is not None and is_tiled(image.size, tile_size)
            else next(detected)
            for image in images
        ]

    @torch.inference_mode()
    def detect(self, images: Sequence[Tensor]) -> list[Detections]:
        """Detect objects in images (3, H, W) in [0, 1]."""
        return [Detections.from_outputs(outputs, self.classes) for outputs in self.outputs(images)]

    def write(
        self, prediction: Detections, image: Image, path: Path, number: int, out: Path, options: DetectorOptions
    ) -> dict[str, Any]:
        """Write the figure and the label image of an image; the row has its COCO results and measured objects."""
        name = numbered_name(number, path)
        labels, visible = make_label_image(prediction, options.score)
        objects: list[dict[str, Any]] = []
        if options.figures:
            from lambdanets.inference.drawing import overlay  # it imports Matplotlib

            with atomic_open(out / f"{name}.png") as file:
                overlay(image, visible).save(file, "PNG")
        if options.labels:
            objects = measure_objects(image, labels, visible)
            save_label_image(labels, out / "labels" / label_image_name(name, labels))
        results = coco_results(prediction, number, self.card.category_ids)
        size = {"height": image.height, "width": image.width}
        return size | {"results": results, "objects": objects, "count": len(visible)}

    def describe(self, row: Mapping[str, Any]) -> str:
        return f"{row['count']} objects"

    def finish(self, rows: Sequence[Mapping[str, Any]], out: Path, options: DetectorOptions) -> str:
        """Write images.json, results.json and objects.csv."""
        images = [
            {"id": number, "file_name": row["path"], "height": row["height"], "width": row["width"]}
            for number, row in enumerate(rows, 1)
        ]
        results = [result for row in rows for result in row["results"]]
        write_json(out / "images.json", {"images": images, "categories": [*map(dataclasses.asdict, self.categories)]})
        write_json(out / "results.json", results, None)
        if options.labels:
            measured = [{"image": row["path"]} | each for row in rows for each in row["objects"]]
            table = [COLUMNS, *([each[column] for column in COLUMNS] for each in measured)]
            atomic_write(out / "objects.csv", encode_utf8(csv_table(table)))
        count = sum(row["count"] for row in rows)
        return (
            f"{count} objects with a score of at least {options.score:g}, not completely covered by others, in "
            f"{len(images)} images; {len(results)} detections of any score in results.json"
        )
