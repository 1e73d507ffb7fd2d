"""Overfits a small LambdaResNet to a few COCO images and evaluates it on them: an end-to-end sanity check.

    python experiments/coco_overfit.py COCO --work FOLDER [--images 4]
    python experiments/coco_overfit.py                                    write docs/detection.md

COCO has instances_train2017.json and train2017.tar. Results are scored by lambdanets, pycocotools and torchmetrics,
which must agree to 1e-6, and written as JSON and as a paragraph of docs/detection.md.
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
from faster_coco_eval import mask as runs
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from torchmetrics.detection import MeanAveragePrecision

from lambdanets.data.coco.images import open_annotated
from lambdanets.inference.coco_results import read_results
from lambdanets.inference.coco_scores import IOUS, RECALLS, evaluate
from lambdanets.provenance import commit, hardware, versions

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "experiments/results/epyc-2-cores/coco_overfit.json"
RECIPE = (
    "--model-options small_images False --image-size 320 --jitter 1.0 1.0 --levels 1 2 3 4 --epochs 250 --batch-size 4 "
    "--learning-rate 0.02 --warmup-epochs 10 --weight-decay 0"
)
BEGIN, END = "<!-- written by experiments/coco_overfit.py -->\n", "<!-- end of coco_overfit -->\n"
COLUMNS = ("AP", "AP50", "AP75", "APs", "APm", "APl")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("coco", type=Path, nargs="?")
    parser.add_argument("--work", type=Path)
    parser.add_argument("--images", type=int, default=4)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--page", type=Path, default=ROOT / "docs/detection.md")
    options = parser.parse_args()
    if options.coco is not None:
        if options.work is None:
            parser.error("--work must name a folder for the run")
        measure(options)
    before, _, rest = options.page.read_text(encoding="utf-8").partition(BEGIN)
    text = before + BEGIN + section(json.loads(options.out.read_text())) + END + rest.partition(END)[2]
    options.page.write_text(text, encoding="utf-8")


def section(result: dict[str, Any]) -> str:
    """The paragraph of the page. Raises ValueError if the scores differ from those of the other packages."""
    if max(result["largest_difference"].values()) >= 1e-6:
        raise ValueError(f"scores must equal those of other packages, got differences {result['largest_difference']}")
    return (
        f"The small LambdaResNet overfits {result['images']} training images of COCO with {result['objects']} objects "
        f"of {result['categories']} categories in {result['seconds'] / 60:.0f} minutes on two cores\n"
        f"(with other work on the machine): box AP50 {result['bbox']['AP50']:.2f}, mask AP50 "
        f"{result['segm']['AP50']:.2f} on the same images. The scores equal those of pycocotools and\n"
        "torchmetrics within 1e-6 (`python experiments/coco_overfit.py COCO --work FOLDER`).\n"
    )


def measure(options: argparse.Namespace) -> None:
    """Train, score by three packages, and write the result."""
    options.work.mkdir(parents=True, exist_ok=True)
    truth = chosen(options.coco, options.images)
    data, run, scored = (options.work / name for name in ("few.json", "run", "scored"))
    data.write_text(json.dumps(truth))
    tar = options.coco / "train2017.tar"
    where = f"--data {data} --images {tar} --validation-data {data}"
    lambdanets(f"detect train digits {where} {RECIPE} --run {run}")
    lambdanets(f"detect evaluate {run} --out {scored}")
    results = read_results(scored / "results.json")
    ours = evaluate(truth, results).summary()
    theirs = {"pycocotools": by_pycocotools(truth, results), "torchmetrics": by_torchmetrics(truth, results)}
    content = {
        "images": len(truth["images"]),
        "objects": len(truth["annotations"]),
        "categories": len({each["category_id"] for each in truth["annotations"]}),
        "recipe": RECIPE,
        "seconds": json.loads((run / "result.json").read_text())["seconds"],
        **ours,
        "largest_difference": {name: difference(ours, other) for name, other in theirs.items()},
        "commit": commit(),
        "versions": versions(),
        "hardware": hardware(),
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(content, indent=1) + "\n")
    print(json.dumps({name: content[name] for name in ("bbox", "segm", "largest_difference")}, indent=1))


def chosen(coco: Path, count: int) -> dict[str, Any]:
    """The first `count` images by id with 2 to 8 objects and no crowd, with all categories."""
    images = open_annotated(coco / "instances_train2017.json", coco / "train2017.tar").annotations
    few = [
        number
        for number, image in enumerate(images.images)
        if 2 <= len(image.objects) <= 8 and not any(each.crowd for each in image.objects)
    ]
    return images.to_coco(few[:count])


def lambdanets(arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "lambdanets", *arguments.split()], check=True)


def by_pycocotools(truth: dict[str, Any], results: list[dict[str, Any]]) -> dict[str, list[float]]:
    """AP, AP50, AP75, APs, APm, APl of boxes and masks."""
    scores = {}
    for kind in ("bbox", "segm"):
        with contextlib.redirect_stdout(io.StringIO()):
            known = COCO()
            known.dataset = truth
            known.createIndex()
            # without boxes, pycocotools uses the area of the mask
            kept = [{k: v for k, v in each.items() if kind == "bbox" or k != "bbox"} for each in results]
            evaluation = COCOeval(known, known.loadRes(kept), kind)
            evaluation.evaluate()
            evaluation.accumulate()
            evaluation.summarize()
        scores[kind] = evaluation.stats[:6].tolist()
    return scores


def by_torchmetrics(truth: dict[str, Any], results: list[dict[str, Any]]) -> dict[str, list[float]]:
    """As `by_pycocotools`, with float64 thresholds: torchmetrics rounds its own to float32."""
    metric = MeanAveragePrecision("xyxy", ("bbox", "segm"), backend="faster_coco_eval")
    metric.iou_thresholds, metric.rec_thresholds = IOUS.tolist(), RECALLS.tolist()
    for image in truth["images"]:
        size = image["height"], image["width"]
        objects = [each for each in truth["annotations"] if each["image_id"] == image["id"]]
        found = [each for each in results if each["image_id"] == image["id"]]
        target = tensors(objects, size) | {"area": torch.tensor([each["area"] for each in objects])}
        metric.update([tensors(found, size) | {"scores": torch.tensor([each["score"] for each in found])}], [target])
    values = metric.compute()
    names = ("map", "map_50", "map_75", "map_small", "map_medium", "map_large")
    return {kind: [float(values[f"{kind}_{name}"]) for name in names] for kind in ("bbox", "segm")}


def tensors(entries: list[dict[str, Any]], size: tuple[int, int]) -> dict[str, torch.Tensor]:
    boxes = torch.tensor([each["bbox"] for each in entries], dtype=torch.float32).reshape(-1, 4)
    masks = [runs.decode(runs.segmToRle(each["segmentation"], size[1], size[0])) for each in entries]
    return {
        "boxes": torch.cat([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], 1),
        "labels": torch.tensor([each["category_id"] for each in entries], dtype=torch.int64),
        "masks": torch.stack([torch.from_numpy(mask) for mask in masks]) if masks else torch.zeros(0, *size).byte(),
    }


def difference(ours: dict[str, Any], theirs: dict[str, list[float]]) -> float:
    """The maximum difference over boxes, masks and columns; -1 means that there is no such object."""
    return max(
        abs((-1.0 if ours[kind][column] is None else ours[kind][column]) - other)
        for kind in theirs
        for column, other in zip(COLUMNS, theirs[kind], strict=True)
    )


if __name__ == "__main__":
    main()
