"""Trained detectors, and their evaluation on annotated datasets."""

from collections.abc import Iterator, Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import Any, ClassVar

import torch
from PIL.Image import Image, fromarray
from torch import Tensor

from lambdanets.data.coco.annotations import AnnotatedImage
from lambdanets.data.coco.segmentations import CroppedMask
from lambdanets.files import atomic_write
from lambdanets.inference.coco_predictor import CocoPredictor
from lambdanets.inference.coco_scores import METRICS, Result, coco_results, evaluate_results
from lambdanets.inference.detections import COLUMNS, MASK_THRESHOLD, MIN_SCORE, Detections, measure_objects
from lambdanets.inference.figures import draw_ground_truth, overlay
from lambdanets.inference.model_card import DetectorArchitecture, DetectorCard
from lambdanets.inference.predictor import Evaluation, format_score, save_image
from lambdanets.inference.tiles import drop_duplicates, is_cut
from lambdanets.models.mask_rcnn import MaskRCNN, mask_rcnn
from lambdanets.records import write_json
from lambdanets.terminal import csv_table, plural


class Detector(CocoPredictor):
    """A trained detector, which `lambdanets.load` returns. Its predictions are `Detections`."""

    card_type = DetectorCard
    command_options: ClassVar[Mapping[str, Any]] = {**CocoPredictor.command_options, "score": MIN_SCORE}
    default_out = "detections"

    model: MaskRCNN
    card: DetectorCard

    @staticmethod
    def build(architecture: DetectorArchitecture, num_classes: int) -> MaskRCNN:
        options, drop_path = architecture.checked_options(), getattr(architecture, "drop_path", 0.0)  # of a recipe
        options |= {"drop_path_rate": drop_path} if drop_path else {}
        arguments: dict[str, Any] = {
            name: value for name, value in vars(architecture).items() if name in signature(mask_rcnn).parameters
        }
        for mode in ("train", "test"):
            arguments[f"rpn_pre_nms_top_n_{mode}"] = 2 * architecture.proposals
            arguments[f"rpn_post_nms_top_n_{mode}"] = architecture.proposals
        model = mask_rcnn(
            architecture.model,
            num_classes,
            **arguments,
            image_mean=architecture.mean,
            image_std=architecture.std,
            mask_threshold=MASK_THRESHOLD,
            backbone_options=options,
            box_detections_per_img=architecture.max_detections,
            box_batch_size_per_image=getattr(architecture, "sampled_regions", 512),
        )
        model.transform._skip_resize = True  # in training, the data loader has resized the images
        return model

    def infer_tensors(self, images: Sequence[Tensor]) -> list[Detections]:
        return [Detections.from_outputs(outputs, self.classes) for outputs in self.outputs(images)]

    def merge_tiles(self, tiles: Iterator[tuple[slice, slice, Detections]], size: tuple[int, int]) -> Detections:
        """Memory: 4 bytes per pixel of the image, the cropped masks of all objects, and that for a batch of tiles."""
        boxes, labels, scores, crops = [], [], [], []
        tile_of: list[int] = []
        are_cut: list[bool] = []
        for number, (rows, columns, found) in enumerate(tiles):
            tile_of += [number] * len(found)
            are_cut += [is_cut(crop, rows, columns, size) for crop in found.crops]
            boxes.append(found.boxes + torch.tensor([columns.start, rows.start] * 2))
            labels.append(found.labels)
            scores.append(found.scores)
            crops += [CroppedMask(top + rows.start, left + columns.start, mask) for top, left, mask in found.crops]
        objects = Detections(torch.cat(boxes), torch.cat(labels), torch.cat(scores), crops, size, self.classes)
        return drop_duplicates(objects, tile_of, are_cut)

    def write(
        self, prediction: Detections, image: Image, number: int, stem: Path, options: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Write the figure and the label image of an image; the row has its COCO results and measured objects."""
        labels, visible = prediction.label_image(options["score"])
        row = {  # first: if an extra is missing, no file is left that keeps the next command from starting
            "height": image.height,
            "width": image.width,
            "results": coco_results(prediction, number, self.card.category_ids),
            "objects": measure_objects(image, labels, visible),
        }
        if options["figures"]:
            save_image(overlay(image, labels, visible), stem)
        save_image(fromarray(labels), stem.parent / "labels" / stem.name)
        return row

    def describe(self, row: Mapping[str, Any]) -> str:
        return plural(len(row["objects"]), "object")

    def finish(self, rows: Sequence[Mapping[str, Any]], out: Path, options: Mapping[str, Any]) -> str:
        """Write images.json, results.json and objects.csv."""
        images = [
            {"id": number, "file_name": row["path"], "height": row["height"], "width": row["width"]}
            for number, row in enumerate(rows, 1)
        ]
        results = [result for row in rows for result in row["results"]]
        categories = [{"id": category.id, "name": category.name} for category in self.categories]
        write_json(out / "images.json", {"images": images, "categories": categories})
        write_json(out / "results.json", results, None)
        objects = [{"image": row["path"]} | each for row in rows for each in row["objects"]]
        table = [[each[column] for column in COLUMNS] for each in objects]
        atomic_write(out / "objects.csv", csv_table([COLUMNS, *table]))
        return (
            f"{plural(len(objects), 'object')} with a score of at least {options['score']:g}, not completely covered "
            f"by others, in {plural(len(images), 'image')}; {plural(len(results), 'detection')} of any score in "
            "results.json"
        )

    def compare(self, prediction: Detections, annotated: AnnotatedImage) -> tuple[list[Result]]:
        return (coco_results(prediction, annotated.id, self.card.category_ids),)

    def score(self, measures: list[Any]) -> Evaluation:
        results = [result for _, found in measures for result in found]
        truth = self.images.select(index for index, _ in measures).to_coco()
        max_detections = max([self.card.max_detections, *(len(found) for _, found in measures)])  # tiles may have more
        scores = evaluate_results(truth, results, max_detections=max_detections)
        rows = (("boxes", scores["bbox"]), ("masks", scores["segm"]))
        return Evaluation(
            scores={**scores, "images": len(measures)},
            metrics={name: scores[kind][metric] for name, (kind, metric) in METRICS.items()},
            lines=[
                "  ".join([label, *(f"{name} {format_score(x)}" for name, x in row.items())]) for label, row in rows
            ],
            counts=f"{plural(len(measures), 'image')}, {plural(len(results), 'detection')}",
        )

    def write_evaluation(self, evaluation: Evaluation, folder: Path) -> None:
        """Write results.json, too."""
        results = [result for _, found in evaluation.measures for result in found]
        write_json(folder / "results.json", results, None)
        super().write_evaluation(evaluation, folder)

    def render(self, image: Image, annotated: AnnotatedImage, prediction: Detections) -> tuple[Image, Image]:
        truth = draw_ground_truth(image, annotated, self.classes)
        return truth, overlay(image, *prediction.label_image(MIN_SCORE))
