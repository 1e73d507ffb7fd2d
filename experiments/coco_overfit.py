"""Overfits a small LambdaResNet to a few COCO images and evaluates it on them: an end-to-end sanity check.

    python experiments/coco_overfit.py COCO --work FOLDER [--images 4]
    python experiments/coco_overfit.py                                    write docs/detection_results.md

COCO is a folder with instances_train2017.json and train2017.tar. lambdanets, pycocotools and torchmetrics score the
results; the scores must agree to 1e-6. They are written as JSON and as a paragraph of docs/detection_results.md.
"""

import argparse
import contextlib
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from faster_coco_eval import mask as rle
from pages import RESULTS, Script, replace_section
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from torchmetrics.detection import MeanAveragePrecision

from lambdanets.data.coco.images import open_annotated
from lambdanets.inference.coco_scores import IOUS, RECALLS, evaluate
from lambdanets_lab.results import read_results, write_results

RECIPE = (
    "--model-options small_images False --image-size 320 --jitter 1.0 1.0 --levels 1 2 3 4 --epochs 250 --batch-size 4 "
    "--learning-rate 0.02 --warmup-epochs 10 --weight-decay 0"
)
COLUMNS = ("AP", "AP50", "AP75", "APs", "APm", "APl")


def main() -> None:
    parser = Script(__doc__, "detection_results.md", RESULTS / "epyc-2-cores/coco_overfit.json")
    parser.add_argument("coco", type=Path, nargs="?", help="folder of COCO; without it, only the page is written")
    parser.add_argument("--work", type=Path, help="folder for the run")
    parser.add_argument("--images", type=int, default=4)
    options = parser.parse_args()
    if options.coco is not None:
        if options.work is None:
            parser.error("--work must name a folder for the run")
        measure(options)
    replace_section(options.page, "coco_overfit", section(read_results(options.out)))


def section(result: dict[str, Any]) -> str:
    """The text between the page's markers. Raises ValueError if the scores of the packages differ."""
    if max(result["largest_difference"].values()) >= 1e-6:
        raise ValueError(f"scores must equal those of other packages, got differences {result['largest_difference']}")
    return (
        f"The small LambdaResNet overfits {result['images']} training images of COCO with {result['objects']} objects "
        f"of {result['categories']} categories in {result['seconds'] / 60:.0f} minutes on two cores\n"
        f"(with other work on the machine): box AP50 {100 * result['bbox']['AP50']:.0f}, mask AP50 "
        f"{100 * result['segm']['AP50']:.0f} on the same images. The scores equal those of pycocotools and\n"
        "torchmetrics within 1e-6 (`python experiments/coco_overfit.py COCO --work FOLDER`).\n"
    )


def measure(options: argparse.Namespace) -> None:
    """Train, compute the scores by three packages, and write the results."""
    options.work.mkdir(parents=True, exist_ok=True)
    truth = select_images(options.coco, options.images)
    data, run, scores = (options.work / name for name in ("few.json", "run", "scored"))
    data.write_text(json.dumps(truth))
    tar = options.coco / "train2017.tar"
    data_options = f"--data {data} --images {tar} --validation-data {data}"
    lambdanets(f"train scattered_digits {data_options} {RECIPE} --run {run}")
    lambdanets(f"evaluate {run} --out {scores}")
    results = json.loads((scores / "results.json").read_bytes())
    ours = evaluate(truth, results).summary()
    others = {
        "pycocotools": score_by_pycocotools(truth, results),
        "torchmetrics": score_by_torchmetrics(truth, results),
    }
    content = {
        "images": len(truth["images"]),
        "objects": len(truth["annotations"]),
        "categories": len({each["category_id"] for each in truth["annotations"]}),
        "recipe": RECIPE,
        "seconds": json.loads((run / "result.json").read_text())["seconds"],
        **ours,
        "largest_difference": {name: max_difference(ours, other) for name, other in others.items()},
    }
    write_results(options.out, content)
    print(json.dumps({name: content[name] for name in ("bbox", "segm", "largest_difference")}, indent=1))


def select_images(coco: Path, count: int) -> dict[str, Any]:
    """The first `count` images by id that have 2 to 8 objects and no crowd, as COCO annotations."""
    annotations = open_annotated(coco / "instances_train2017.json", coco / "train2017.tar").annotations
    indices = [
        index
        for index, image in enumerate(annotations.images)
        if 2 <= len(image.objects) <= 8 and not any(each.crowd for each in image.objects)
    ]
    return annotations.to_coco(indices[:count])


def lambdanets(arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "lambdanets", *arguments.split()], check=True)


def score_by_pycocotools(truth: dict[str, Any], results: list[dict[str, Any]]) -> dict[str, list[float]]:
    """AP, AP50, AP75, APs, APm, APl of boxes and masks."""
    scores = {}
    for iou_type in ("bbox", "segm"):
        with contextlib.redirect_stdout(io.StringIO()):
            ground_truth = COCO()
            ground_truth.dataset = truth
            ground_truth.createIndex()
            # pycocotools uses the area of the mask only if there is no box
            detections = [{k: v for k, v in each.items() if iou_type == "bbox" or k != "bbox"} for each in results]
            evaluation = COCOeval(ground_truth, ground_truth.loadRes(detections), iou_type)
            evaluation.evaluate()
            evaluation.accumulate()
            evaluation.summarize()
        scores[iou_type] = evaluation.stats[:6].tolist()
    return scores


def score_by_torchmetrics(truth: dict[str, Any], results: list[dict[str, Any]]) -> dict[str, list[float]]:
    """Like `score_by_pycocotools`. Sets the thresholds in float64, since torchmetrics rounds them to float32."""
    metric = MeanAveragePrecision("xyxy", ("bbox", "segm"), backend="faster_coco_eval")
    metric.iou_thresholds, metric.rec_thresholds = IOUS.tolist(), RECALLS.tolist()
    for image in truth["images"]:
        size = image["height"], image["width"]
        objects = [each for each in truth["annotations"] if each["image_id"] == image["id"]]
        predictions = [each for each in results if each["image_id"] == image["id"]]
        target = to_tensors(objects, size) | {"area": torch.tensor([each["area"] for each in objects])}
        scores = torch.tensor([each["score"] for each in predictions])
        metric.update([to_tensors(predictions, size) | {"scores": scores}], [target])
    values = metric.compute()
    names = ("map", "map_50", "map_75", "map_small", "map_medium", "map_large")
    return {iou_type: [float(values[f"{iou_type}_{name}"]) for name in names] for iou_type in ("bbox", "segm")}


def to_tensors(entries: list[dict[str, Any]], size: tuple[int, int]) -> dict[str, torch.Tensor]:
    """Boxes, labels and masks of COCO entries in the format of torchmetrics."""
    boxes = torch.tensor([each["bbox"] for each in entries], dtype=torch.float32).reshape(-1, 4)
    masks = [rle.decode(rle.segmToRle(each["segmentation"], size[1], size[0])) for each in entries]
    return {
        "boxes": torch.cat([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], 1),
        "labels": torch.tensor([each["category_id"] for each in entries], dtype=torch.int64),
        "masks": torch.stack([torch.from_numpy(mask) for mask in masks]) if masks else torch.zeros(0, *size).byte(),
    }


def max_difference(ours: dict[str, Any], other: dict[str, list[float]]) -> float:
    """The maximum difference over boxes, masks and columns. Without objects, ours is None and the other is -1."""
    return max(
        abs((-1.0 if ours[iou_type][column] is None else ours[iou_type][column]) - score)
        for iou_type in other
        for column, score in zip(COLUMNS, other[iou_type], strict=True)
    )


if __name__ == "__main__":
    main()
