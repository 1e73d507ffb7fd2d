"""Lambda layers and 3x3 convolutions on photographs at several resolutions, from the same initial weights.

    python experiments/photographs.py DATA --work RUNS [--seeds 0 1 2] [--sizes 128 160] [--jobs 2]    train
    python experiments/photographs.py [--page docs/photographs.md]                                      write the page

DATA has train/CLASS/ and val/CLASS/, such as 3,810 images of 97 classes of Caltech 101. The network is a small ResNet
with 3x3 convolutions or lambda layers in c4 and c5. Networks with the same seed have equal initial weights in all
layers that both have. After an interruption, run the script again. Results of other seeds and sizes are kept. With
--jobs 2, set OMP_NUM_THREADS to half the number of cores.
"""

import argparse
import itertools
from pathlib import Path
from typing import Any

from pages import RESULTS, replace_section
from seeded_runs import SeededRuns, seeds, stored_runs, train_missing

from lambdanets_lab.markdown import markdown_table
from lambdanets_lab.seeds import format_difference, paired_differences, paired_rows, processors, scores_by_seed
from lambdanets_lab.studies.execution import read_top1

OUT = RESULTS / "photographs.json"
MIXERS = {"lambda": "lambda layers", "convolution": "3x3 convolutions"}
MODEL = "resnet20_mixer_small"
OPTIONS: dict[str, Any] = {"pattern": "CCLL", "small_images": False}
LEARNING_RATE = 0.2  # chosen for the convolution on images held out: epyc-2-cores/photographs_learning_rate.json
# The regularization of the paper's smallest network (Table 20), and the length for few images.
RECIPE = {
    "epochs": 60,
    "batch-size": 64,
    "weight-decay": 4e-5,
    "rand-augment": "rand-m10-n2",
    "dropout": 0.2,
    "drop-path": 0.0,
    "label-smoothing": 0.1,
    "ema-decay": 0.998,
    "workers": 1,
}


def measure(options: argparse.Namespace, out: Path) -> None:
    """Train the runs, and write the result of each when it is finished."""
    keys = [
        {"mixer": mixer, "image_size": size, "seed": seed, "learning_rate": LEARNING_RATE}
        for seed, size, mixer in itertools.product(options.seeds, options.sizes, MIXERS)
    ]

    def command(mixer: str, image_size: int, seed: int, learning_rate: float) -> list[object]:
        choices = {"mixer": mixer, **OPTIONS}
        return [
            *("train", "image_folder_50", "--data", options.data, "--model", MODEL, "--model-options"),
            *itertools.chain(*choices.items()),
            *("--image-size", image_size, "--seed", seed, "--learning-rate", learning_rate),
            *(word for name, value in RECIPE.items() for word in (f"--{name}", value)),
        ]

    def fields(run: Path, result: dict[str, Any]) -> dict[str, Any]:
        scores = {"top1": result["top1"], "top1_by_epoch": read_top1(run)}
        return {"recipe": RECIPE, "validation_images": result["validation_images"], **scores}

    train_missing(options, out, "{mixer}-{image_size}-seed{seed}", keys, command, fields)


def section(runs: list[dict[str, Any]]) -> str:
    """The text between the page's markers."""
    sizes = sorted({run["image_size"] for run in runs})
    scores, gains = {}, []
    for mixer, name in MIXERS.items():
        parameters = next(run["parameters"] for run in runs if run["mixer"] == mixer) / 1e6
        columns = [scores_by_seed(runs, {"mixer": mixer, "image_size": size}, "top1") for size in sizes]
        scores[f"{name}, {parameters:.2f} M parameters"] = columns
        gains.append(format_difference(paired_differences(columns[-1], columns[0]), 1))
    rows = paired_rows(scores, "paired difference, 95% interval", 1)
    header = ["top-1 (%)", *(f"{size} x {size}" for size in sizes), f"{sizes[-1]} - {sizes[0]}, paired"]
    table = markdown_table(header, *([*row, gain] for row, gain in zip(rows, [*gains, ""], strict=True)))
    return (
        f"{runs[0]['training_images']:,} training and {runs[0]['validation_images']:,} validation images, "
        f"{runs[0]['epochs']} epochs, {seeds(runs)}, trained on {processors(runs)}:\n\n{table}\n"
    )


def main() -> None:
    parser = SeededRuns(__doc__, "photographs.md")
    parser.add_argument("--sizes", type=int, nargs="+", default=[128, 160])
    options = parser.parse_options()
    out = options.out or OUT
    if options.data is not None:
        measure(options, out)
    replace_section(options.page, "photographs", section(stored_runs(out)))


if __name__ == "__main__":
    main()
