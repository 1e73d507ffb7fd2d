"""Mask R-CNN on cell nuclei: a small LambdaResNet and its convolution baseline, with the same recipe and seeds.

    python experiments/nuclei.py NUCLEI --work FOLDER [--seeds 0 1 2] [--jobs 2]    train two runs per seed
    python experiments/nuclei.py [--page docs/detection.md]                            write the page from results

NUCLEI has instances_train.json, train.tar, instances_val.json and val.tar. Each run uses the command on the page and
writes into FOLDER. After an interruption, run the script again to resume. The results file keeps the results of other
seeds. With --jobs 2, set OMP_NUM_THREADS to half the number of cores.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from pages import markers, replace_section
from seeded_runs import SeededRunsParser, processors, store, train

from lambdanets.text_tables import format_mean, markdown_table
from lambdanets_lab.paired import format_difference, paired_differences

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "experiments/results/epyc-2-cores/nuclei.json"
BEGIN, END = markers("nuclei")
RECIPES = {"nuclei": "lambda layers", "nuclei_convolution": "3x3 convolutions"}
COLUMNS = ("AP", "AP50", "AP75", "APs", "APm", "APl")
IOU_TYPES = {"bbox": "boxes", "segm": "masks"}
RESULT_FIELDS = (
    *("seconds", "images_per_second", "parameters", "epochs", "training_images", "images", *IOU_TYPES),
    *("commit", "versions", "hardware"),
)


def main() -> None:
    options = SeededRunsParser(__doc__.splitlines()[0], ROOT / "docs/detection.md").parse_options()
    out = options.out or RESULTS
    if options.data is not None:
        measure(options, out)
    replace_section(options.page, (BEGIN, END), section(json.loads(out.read_text(encoding="utf-8"))))


def command(recipe: str, seed: int, data: Path, run: Path) -> list[str]:
    """The arguments of the `lambdanets` command of a run."""
    return [
        *("train", recipe, "--seed", str(seed), "--run", str(run)),
        *("--data", str(data / "instances_train.json"), "--images", str(data / "train.tar")),
        *("--validation-data", str(data / "instances_val.json"), "--validation-images", str(data / "val.tar")),
    ]


def measure(options: argparse.Namespace, out: Path) -> None:
    """Train the runs, one seed after another, and write the result of each when it is finished."""
    keys = [{"recipe": recipe, "seed": seed} for seed in options.seeds for recipe in RECIPES]
    runs = {options.work / f"{key['recipe']}-seed{key['seed']}": key for key in keys}
    commands = {run: command(**key, data=options.data, run=run) for run, key in runs.items()}
    for run, result in train(commands, options.jobs):
        fields = {name: result[name] for name in RESULT_FIELDS}
        store(out, runs[run], {"jobs": options.jobs} | fields)


def section(results: dict[str, Any]) -> str:
    """The text between the page's markers."""
    runs = results["runs"]
    seeds = sorted({run["seed"] for run in runs})
    minutes = [run["seconds"] / 60 for run in runs]
    num_threads, jobs = max(run["hardware"]["threads"] for run in runs), max(run["jobs"] for run in runs)
    shown = " ".join(command("nuclei", 0, Path("NUCLEI"), Path("runs/nuclei")))
    lines = [
        f"{runs[0]['training_images']} training images, {runs[0]['images']} validation images, {runs[0]['epochs']} "
        f"epochs from random\ninitialization, {min(minutes):.0f} to {max(minutes):.0f} minutes per run on "
        f"{processors(runs)}"
        + (f", {jobs} at a time" if jobs > 1 else "")
        + f" with {num_threads} thread{'s' * (num_threads > 1)} each; "
        + (f"mean ± std of {len(seeds)} seeds, " if len(seeds) > 1 else "one seed, ")
        + "in percent, of the last epoch's\nEMA weights.",
        "",
        "    lambdanets " + shown.replace(" --data", " \\\n      --data").replace(" --val", " \\\n      --val", 1),
        "",
    ]
    rows = []
    for iou_type, label in IOU_TYPES.items():
        scores = {
            recipe: {
                column: {
                    run["seed"]: 100 * run[iou_type][column]
                    for run in runs
                    if run["recipe"] == recipe and run[iou_type][column] is not None
                }
                for column in COLUMNS
            }
            for recipe in RECIPES
        }
        for recipe, layers in RECIPES.items():
            cells = [format_mean(list(scores[recipe][column].values())) for column in COLUMNS]
            parameters = f"{next(run['parameters'] for run in runs if run['recipe'] == recipe) / 1e6:.2f} M parameters"
            rows.append([f"{label}, {layers}, {parameters}", *cells])
        differences = [paired_differences(*(scores[recipe][column] for recipe in RECIPES)) for column in COLUMNS]
        cells = [format_difference(values) if values else "-" for values in differences]
        rows.append([f"{label}, paired difference, 95% interval", *cells])
    return "\n".join([*lines, markdown_table(["", *COLUMNS], *rows)]) + "\n"


if __name__ == "__main__":
    main()
