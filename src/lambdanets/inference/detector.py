"""Trained detectors and their detections."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from PIL.Image import Image
from torch import Tensor

from lambdanets.data.coco.loader import image_to_tensor
from lambdanets.files import atomic_open, atomic_write, encode_utf8
from lambdanets.inference.architecture import DetectorArchitecture
from lambdanets.inference.coco_predictor import CocoPredictor
from lambdanets.inference.coco_results import coco_results
from lambdanets.inference.detections import MASK_THRESHOLD, Detections
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


class Detector(CocoPredictor):
    """A trained detector, which `lambdanets.load` returns. Its predictions are `Detections`."""

    card_type = DetectorCard
    evaluator_type = "lambdanets.inference.detection_evaluation:DetectionEvaluator"
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
