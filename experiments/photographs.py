"""Lambda layers and 3x3 convolutions on photographs at several resolutions, from the same initial weights.

    python experiments/photographs.py DATA --work RUNS --tune 0.1 0.2 0.4 [--jobs 2]                  learning rates
    python experiments/photographs.py DATA --work RUNS [--seeds 0 1 2] [--sizes 128 160] [--jobs 2]    train
    python experiments/photographs.py [--page docs/results.md]                                         write the page

DATA has train/CLASS/ and val/CLASS/, such as 3,810 images of 97 classes of Caltech 101. The network is a small ResNet
with 3x3 convolutions or lambda layers in c4 and c5. Networks with the same seed have equal initial weights in all
layers that both have. The learning rate was chosen for the convolution, on training images held out. After an
interruption, run the script again. Results of other seeds and sizes are kept. With --jobs 2, set OMP_NUM_THREADS to
half the number of cores.
"""

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Any

from pages import markers, replace_section
from seeded_runs import SeededRunsParser, processors, store, train

from lambdanets.text_tables import format_mean, markdown_table
from lambdanets_lab.paired import format_difference, paired_differences
from lambdanets_lab.studies.execution import read_top1

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "experiments/results/photographs.json"
LEARNING_RATES = ROOT / "experiments/results/epyc-2-cores/photographs_learning_rate.json"
BEGIN, END = markers("photographs")
MIXERS = {"convolution": "3x3 convolutions", "lambda": "lambda layers"}
MODEL = "resnet20_mixer_small"
OPTIONS: dict[str, Any] = {"pattern": "CCLL", "small_images": False}
# The regularization of the paper's smallest network (Table 20), and the learning rate and length for few images.
RECIPE = {
    "epochs": 60,
    "batch-size": 64,
    "learning-rate": 0.2,
    "weight-decay": 4e-5,
    "rand-augment": "rand-m10-n2",
    "dropout": 0.2,
    "drop-path": 0.0,
    "label-smoothing": 0.1,
    "ema-decay": 0.998,
    "workers": 1,
}
TUNING = {"epochs": 30, "hold-out": 0.2}  # of runs that compare learning rates
TUNED: dict[str, Any] = {"mixer": "convolution", "image_size": 128, "seed": 9}  # of these runs
RUN_FIELDS = (
    *("parameters", "epochs", "training_images", "validation_images", "seconds"),
    *("commit", "versions", "hardware"),
)


def command(mixer: str, image_size: int, seed: int, recipe: dict[str, Any], data: Path, run: Path) -> list[str]:
    """The arguments of the `lambdanets` command of a run."""
    options = {"mixer": mixer, **OPTIONS}
    return [
        *("train", "image_folder_50", "--data", str(data), "--model", MODEL, "--model-options"),
        *(str(text) for pair in options.items() for text in pair),
        *(str(text) for name, value in recipe.items() for text in (f"--{name}", value)),
        *("--image-size", str(image_size), "--seed", str(seed), "--run", str(run)),
    ]


def measure(options: argparse.Namespace, out: Path) -> None:
    """Train the runs, and write the result of each when it is finished."""
    if options.tune:
        recipes = [RECIPE | TUNING | {"learning-rate": rate} for rate in options.tune]
        settings = {options.work / f"lr{recipe['learning-rate']}": (TUNED, recipe) for recipe in recipes}
    else:
        keys = [
            {"mixer": mixer, "image_size": size, "seed": seed}
            for seed in options.seeds
            for size in options.sizes
            for mixer in MIXERS
        ]
        settings = {options.work / "{mixer}-{image_size}-seed{seed}".format(**key): (key, RECIPE) for key in keys}
    commands = {
        run: command(**key, recipe=recipe, data=options.data, run=run) for run, (key, recipe) in settings.items()
    }
    score = "held_out_top1" if options.tune else "top1"
    for run, result in train(commands, options.jobs):
        key, recipe = settings[run]
        fields = {"recipe": recipe, "jobs": options.jobs, score: result[score], f"{score}_by_epoch": read_top1(run)}
        fields |= {name: result[name] for name in RUN_FIELDS}
        store(out, {**key, "learning_rate": recipe["learning-rate"]}, fields)


def complete_runs(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The runs of the seeds that have runs of both networks at all sizes."""
    counts = Counter(run["seed"] for run in runs)
    num_sizes = len({run["image_size"] for run in runs})
    return [run for run in runs if counts[run["seed"]] == len(MIXERS) * num_sizes]


def write_section(results: dict[str, Any]) -> str:
    """The text between the page's markers, about the seeds that have runs of both networks at all sizes."""
    runs = complete_runs(results["runs"])
    sizes = sorted({run["image_size"] for run in runs})
    seeds = sorted({run["seed"] for run in runs})
    first = runs[0]
    top1: dict[tuple[str, int], dict[int, float]] = {}
    for run in runs:
        top1.setdefault((run["mixer"], run["image_size"]), {})[run["seed"]] = 100 * run["top1"]
    small, large = sizes[0], sizes[-1]
    rows = []
    for mixer, name in MIXERS.items():
        parameters = next(run["parameters"] for run in runs if run["mixer"] == mixer) / 1e6
        gain = format_difference(paired_differences(top1[mixer, large], top1[mixer, small]), 1)
        means = [format_mean(list(top1[mixer, size].values())) for size in sizes]
        rows.append([f"{name}, {parameters:.2f} M parameters", *means, gain])
    differences = [paired_differences(top1["lambda", size], top1["convolution", size]) for size in sizes]
    rows.append(["paired difference, 95% interval", *(format_difference(values, 1) for values in differences), ""])
    table = markdown_table(["top-1 (%)", *(f"{size} x {size}" for size in sizes), f"{large} - {small}, paired"], *rows)
    spread = f"mean ± std of {len(seeds)} seeds" if len(seeds) > 1 else "one seed"
    return (
        f"{first['training_images']:,} training and {first['validation_images']:,} validation images, "
        f"{first['epochs']} epochs, {spread}, trained on {processors(runs)}:\n\n{table}\n"
    )


def main() -> None:
    parser = SeededRunsParser(__doc__.splitlines()[0], ROOT / "docs/results.md")
    parser.add_argument("--sizes", type=int, nargs="+", default=[128, 160])
    parser.add_argument("--tune", type=float, nargs="+", metavar="RATE", help="only compare learning rates")
    options = parser.parse_options()
    out = options.out or (LEARNING_RATES if options.tune else RESULTS)
    if options.data is not None:
        measure(options, out)
    if not options.tune:
        results = json.loads(out.read_text(encoding="utf-8"))
        replace_section(options.page, (BEGIN, END), write_section(results))


if __name__ == "__main__":
    main()
