"""U-Nets with lambda layers and with convolutions, with the same recipe and seeds, on cell nuclei and scattered digits.

    python experiments/segmentation.py FOLDER --work RUNS [--seeds 0 1 2] [--jobs 2]   train two runs per seed on nuclei
    python experiments/segmentation.py digits --work RUNS [--seeds 0 1 2] [--jobs 2]   train two runs per seed on digits
    python experiments/segmentation.py [--page docs/detection_results.md]             write the page from results

FOLDER has train, validation and test .json and .tar, as written by `experiments/nuclei_splits.py`. The last
epoch's weights are scored on the test images of nuclei and on the validation images of digits. After an interruption,
run the script again. The results file keeps the results of other seeds. With --jobs 2, set OMP_NUM_THREADS to half the
number of cores.
"""

import argparse
import functools
from pathlib import Path
from typing import Any, NamedTuple

import torch
from pages import RESULTS, replace_section
from seeded_runs import SeededRuns, conditions, seeds, stored_runs, train_missing

import lambdanets as ln
from lambdanets.provenance import provenance
from lambdanets.recipes import find_recipe
from lambdanets_lab.markdown import markdown_table
from lambdanets_lab.models.counting import count_flops
from lambdanets_lab.seeds import paired_rows, scores_by_seed

SCORES = {"dice": "Dice", "iou": "IoU", "boundary_f1": "boundary F1"}


class Comparison(NamedTuple):
    """Two recipes, which differ only in the network.

    recipes: their names in the table. split: the images on which they are scored, "test" or "validation".
    """

    recipes: dict[str, str]
    split: str
    results: Path
    section: str


NUCLEI = Comparison(
    {"nuclei_masks": "lambda layers", "nuclei_masks_convolution": "3x3 convolutions"},
    "test",
    RESULTS / "xeon-2-cores/segmentation.json",
    "segmentation",
)
DIGITS = Comparison(
    {"digit_masks": "lambda layers", "digit_masks_convolution": "3x3 convolutions"},
    "validation",
    RESULTS / "segmentation_digits.json",
    "segmentation digits",
)


def command(recipe: str, seed: int, data: Path) -> list[str]:
    arguments = ["train", recipe, "--seed", str(seed)]
    if recipe in DIGITS.recipes:
        return arguments
    return [
        *arguments,
        *("--data", str(data / "train.json"), "--images", str(data / "train.tar")),
        *("--validation-data", str(data / "validation.json"), "--validation-images", str(data / "validation.tar")),
    ]


def measure(options: argparse.Namespace, comparison: Comparison) -> None:
    """Train and score the runs, one seed after another."""

    def fields(run: Path, result: dict[str, Any]) -> dict[str, Any]:
        validation = {"validation": {name: result[name] for name in SCORES}, "validation_images": result["images"]}
        return validation | (score(run, options.data) if comparison.split == "test" else {})

    keys = [{"recipe": recipe, "seed": seed} for seed in options.seeds for recipe in comparison.recipes]
    make_command = functools.partial(command, data=options.data)
    train_missing(options, comparison.results, "{recipe}-seed{seed}", keys, make_command, fields)


def score(folder: Path, data: Path) -> dict[str, Any]:
    """Return the scores of a run on the test images, their number, and what they were measured with."""
    evaluation = ln.evaluate(folder, data / "test.json", images=data / "test.tar", device="cpu")
    evaluated = provenance()
    return {"test": evaluation.metrics, "test_images": len(evaluation.measures), "evaluated": evaluated}


def section(comparison: Comparison) -> str:
    runs, split, scores = stored_runs(comparison.results), comparison.split, {}
    for recipe, name in comparison.recipes.items():
        parameters = next(run["parameters"] for run in runs if run["recipe"] == recipe) / 1e6
        fields = find_recipe(recipe)
        with torch.device("meta"):
            model = ln.create_model(fields.model, num_classes=2, **fields.model_options)
        multiply_adds = count_flops(model, 256, single_application=True) / 2e9
        label = f"U-Net, {name}, {parameters:.2f} M parameters, {multiply_adds:.1f} G multiply-adds"
        scores[label] = [scores_by_seed(runs, {"recipe": recipe}, split, score) for score in SCORES]
    rows = paired_rows(scores, "paired difference to 3x3 convolutions, 95% interval")
    table = markdown_table(["parameters, multiply-adds for 256 x 256 pixels", *SCORES.values()], *rows)
    return (
        f"EMA weights of the last epoch on {runs[0][f'{split}_images']} {split} images, in percent, {seeds(runs)}; "
        f"{conditions(runs)}, beside other work:\n\n{table}\n"
    )


def main() -> None:
    options = SeededRuns(__doc__, "detection_results.md").parse_options()
    comparisons = [NUCLEI, DIGITS]
    if options.data is not None:
        comparison = DIGITS if options.data == Path("digits") else NUCLEI
        comparisons = [comparison._replace(results=options.out or comparison.results)]
        measure(options, *comparisons)
    for comparison in comparisons:
        replace_section(options.page, comparison.section, section(comparison))


if __name__ == "__main__":
    main()
