"""Overfits a small LambdaResNet to a few COCO images and evaluates it on them: an end-to-end sanity check.

    python experiments/coco_overfit.py COCO --work FOLDER [--images 4]
    python experiments/coco_overfit.py                                    write docs/detection_results.md

COCO is a folder with instances_train2017.json and train2017.tar. lambdanets, pycocotools and torchmetrics score the
results; the scores must agree to 1e-6. They are written as JSON and as a paragraph of docs/detection_results.md.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from pages import RESULTS, ROOT, Script, replace_section

from lambdanets.data.coco.images import open_annotated
from lambdanets.inference.coco_scores import evaluate
from lambdanets_lab.results import read_results, write_results

sys.path.append(str(ROOT / "tests/training/detection"))  # the scores of other packages

from synthetic_detections import pycocotools_scores, torchmetrics_scores

RECIPE = (
    "--model-options small_images False --image-size 320 --jitter 1.0 1.0 --levels 1 2 3 4 --epochs 250 --batch-size 4 "
    "--learning-rate 0.02 --warmup-epochs 10 --weight-decay 0"
)


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
    others = {"pycocotools": pycocotools_scores(truth, results), "torchmetrics": torchmetrics_scores(truth, results)}
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


def max_difference(ours: dict[str, Any], other: dict[str, Any]) -> float:
    """The maximum difference over boxes, masks and columns, of which both packages lack the same."""
    pairs = [(ours[iou_type][column], score) for iou_type in other for column, score in other[iou_type].items()]
    assert all((score is None) == (expected is None) for score, expected in pairs)
    return max(abs(score - expected) for score, expected in pairs if score is not None)


if __name__ == "__main__":
    main()
