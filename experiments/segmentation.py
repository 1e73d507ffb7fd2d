"""U-Nets with lambda layers and with convolutions, with the same recipe and seeds, on cell nuclei and scattered digits.

    python experiments/segmentation.py FOLDER --work RUNS [--seeds 0 1 2] [--jobs 2]   train two runs per seed on nuclei
    python experiments/segmentation.py digits --work RUNS [--seeds 0 1 2] [--jobs 2]   train two runs per seed on digits
    python experiments/segmentation.py [--page docs/segmentation.md]                   write the page from results

FOLDER has train, validation and test .json and .tar, as written by `experiments/nuclei_test_set.py split`. The last
epoch's weights are scored on the test images of nuclei and on the validation images of digits. After an interruption,
run the script again. The results file keeps the results of other seeds. With --jobs 2, set OMP_NUM_THREADS to half the
number of cores.
"""

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Any

import torch
from pages import markers, replace_section
from seeded_runs import SeededRunsParser, processors, store, train

import lambdanets as ln
from lambdanets.provenance import provenance
from lambdanets.recipes import find_recipe
from lambdanets.text_tables import format_mean, markdown_table
from lambdanets_lab.models.counting import count_flops
from lambdanets_lab.paired import format_difference, paired_differences

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "experiments/results/xeon-2-cores"
SCORES = {"dice": "Dice", "iou": "IoU", "boundary_f1": "boundary F1"}
# of result.json
RUN_FIELDS = ("seconds", "parameters", "epochs", "training_images", "commit", "versions", "hardware")


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Two recipes, which differ only in the network.

    recipes: their names in the table. split: the images on which they are scored, "test" or "validation".
    """

    recipes: dict[str, str]
    split: str
    results: Path
    section: tuple[str, str]


NUCLEI = Comparison(
    {"nuclei_masks": "lambda layers", "nuclei_masks_convolution": "3x3 convolutions"},
    "test",
    RESULTS / "segmentation.json",
    markers("segmentation"),
)
DIGITS = Comparison(
    {"digit_masks": "lambda layers", "digit_masks_convolution": "3x3 convolutions"},
    "validation",
    RESULTS / "segmentation_digits.json",
    ("<!-- written by experiments/segmentation.py digits -->\n", "<!-- end of segmentation on digits -->\n"),
)


def main() -> None:
    options = SeededRunsParser(__doc__.splitlines()[0], ROOT / "docs/segmentation.md").parse_options()
    comparisons = [NUCLEI, DIGITS]
    if options.data is not None:
        comparison = DIGITS if options.data == Path("digits") else NUCLEI
        comparisons = [dataclasses.replace(comparison, results=options.out or comparison.results)]
        measure(options, *comparisons)
    for comparison in comparisons:
        runs = json.loads(comparison.results.read_text(encoding="utf-8"))["runs"]
        replace_section(options.page, comparison.section, write_section(comparison, runs))


def command(recipe: str, seed: int, data: Path, run: Path) -> list[str]:
    """The arguments of the `lambdanets` command of a run."""
    arguments = ["train", recipe, "--seed", str(seed), "--run", str(run)]
    if recipe in DIGITS.recipes:
        return arguments
    return [
        *arguments,
        *("--data", str(data / "train.json"), "--images", str(data / "train.tar")),
        *("--validation-data", str(data / "validation.json"), "--validation-images", str(data / "validation.tar")),
    ]


def measure(options: argparse.Namespace, comparison: Comparison) -> None:
    """Train and score the runs, one seed after another, and write the result of each when it is finished."""
    keys = [{"recipe": recipe, "seed": seed} for seed in options.seeds for recipe in comparison.recipes]
    runs = {options.work / f"{key['recipe']}-seed{key['seed']}": key for key in keys}
    commands = {run: command(**key, data=options.data, run=run) for run, key in runs.items()}
    for run, result in train(commands, options.jobs):
        fields: dict[str, Any] = {name: result[name] for name in RUN_FIELDS}
        fields |= {"jobs": options.jobs, "validation": {name: result[name] for name in SCORES}}
        fields |= {"validation_images": result["images"]}
        if comparison.split == "test":
            fields |= score(run, options.data)
        store(comparison.results, runs[run], fields)


def score(folder: Path, data: Path) -> dict[str, Any]:
    """Return the scores of a run on the test images, their number, and what they were measured with."""
    evaluation = ln.evaluate(folder, data / "test.json", images=data / "test.tar", device="cpu")
    evaluated = provenance()
    return {"test": evaluation.scores.means(), "test_images": len(evaluation.readable), "evaluated": evaluated}


def write_section(comparison: Comparison, runs: list[dict[str, Any]]) -> str:
    """The text between the page's markers."""
    split = comparison.split
    seeds = sorted({run["seed"] for run in runs})
    minutes = [run["seconds"] / 60 for run in runs]
    jobs = max(run["jobs"] for run in runs)
    at_once = f", {jobs} at a time" if jobs > 1 else ""
    spread = f"mean ± std of {len(seeds)} seeds" if len(seeds) > 1 else "one seed"
    num_threads = max(run["hardware"]["threads"] for run in runs)
    threads = f"{num_threads} thread{'s' * (num_threads > 1)} each"
    lines = [
        f"EMA weights of the last epoch on {runs[0][f'{split}_images']} {split} images, in percent, {spread}; "
        f"{runs[0]['epochs']} epochs from random initialization, {min(minutes):.0f} to {max(minutes):.0f}",
        f"minutes per run on {processors(runs)}{at_once} with {threads}, beside other work:",
        "",
    ]
    by_recipe = {recipe: {run["seed"]: run for run in runs if run["recipe"] == recipe} for recipe in comparison.recipes}
    rows = []
    for recipe, name in comparison.recipes.items():
        of_recipe = by_recipe[recipe].values()
        parameters = f"{next(iter(of_recipe))['parameters'] / 1e6:.2f} M parameters"
        with torch.device("meta"):
            model = ln.create_model(find_recipe(recipe).model, num_classes=2)
        multiply_adds = f"{count_flops(model, 256, single_application=True) / 2e9:.1f} G multiply-adds"
        cells = [format_mean([100 * run[split][score] for run in of_recipe]) for score in SCORES]
        rows.append([f"U-Net, {name}, {parameters}, {multiply_adds}", *cells])
    differences = []
    for score in SCORES:
        percent = [{seed: 100 * run[split][score] for seed, run in runs.items()} for runs in by_recipe.values()]
        differences.append(format_difference(paired_differences(*percent)))
    rows.append(["paired difference to 3x3 convolutions, 95% interval", *differences])
    table = markdown_table(["parameters, multiply-adds for 256 x 256 pixels", *SCORES.values()], *rows)
    return "\n".join([*lines, table]) + "\n"


if __name__ == "__main__":
    main()
