"""Why lambda layers lose on scattered digits: U-Nets with other scopes and learning rates, on the same digits.

    python experiments/unet_ablation.py digits --work RUNS [--seeds 1 2] [--jobs 2]    train; results are kept by seed
    python experiments/unet_ablation.py [--page docs/segmentation.md]                  write the table

The recipe is that of the scattered digits with 40 epochs instead of 100. After an interruption, run the script again:
unfinished runs resume. With --jobs 2, set OMP_NUM_THREADS to half the number of cores.
"""

import argparse
from pathlib import Path
from typing import Any

from pages import markers, replace_section
from seeded_runs import SeededRunsParser, is_stored, processors, store, stored_runs, train

from lambdanets.text_tables import markdown_table

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "experiments/results/unet_ablation.json"
EPOCHS, LEARNING_RATE = 40, 0.002
SCOPES = (23, 15, 11, 7, 5, 3)
OTHER_RATES = (0.0006, 0.006)
RUN_FIELDS = ("seconds", "parameters", "epochs", "training_images", "commit", "versions", "hardware")
CONVOLUTION = "3x3 convolution"


def settings() -> list[dict[str, Any]]:
    """The layer and the learning rate of each U-Net; the learning rates for three of the layers."""
    layers = [CONVOLUTION, *(f"scope {scope}" for scope in SCOPES)]
    compared = (CONVOLUTION, "scope 23", "scope 7")
    rates = [(layer, rate) for rate in OTHER_RATES for layer in compared]
    return [
        {"layer": name, "learning_rate": rate} for name, rate in [*((name, LEARNING_RATE) for name in layers), *rates]
    ]


def command(layer: str, learning_rate: float, seed: int, run: Path) -> list[str]:
    """The arguments of the `lambdanets` command of a run."""
    recipe = ["digits_convolution"] if layer == CONVOLUTION else ["digits", "--model-options", *layer.split()]
    options = ["--epochs", str(EPOCHS), "--learning-rate", str(learning_rate), "--seed", str(seed), "--run", str(run)]
    return ["segment", "train", *recipe, *options]


def measure(options: argparse.Namespace, out: Path) -> None:
    """Train the runs, and write the result of each when it is finished."""
    keys = [setting | {"seed": seed} for seed in options.seeds for setting in settings()]
    runs = {
        options.work / "-".join([key["layer"].replace(" ", "-"), str(key["learning_rate"]), str(key["seed"])]): key
        for key in keys
        if not is_stored(out, key)
    }
    for run, result in train({run: command(**key, run=run) for run, key in runs.items()}, options.jobs):
        store(out, runs[run], {"dice": result["dice"]} | {name: result[name] for name in RUN_FIELDS})


def write_section(runs: list[dict[str, Any]]) -> str:
    """The text between the page's markers."""
    seeds = sorted({run["seed"] for run in runs})
    dice = {(run["layer"], run["learning_rate"], run["seed"]): f"{100 * run['dice']:.1f}" for run in runs}
    rows = [
        [setting["layer"], f"{setting['learning_rate']}", *(dice.get((*setting.values(), seed), "") for seed in seeds)]
        for setting in settings()
    ]
    table = markdown_table(["layer", "learning rate", *(f"seed {seed}" for seed in seeds)], *rows)
    return f"Dice (%) after {EPOCHS} epochs on {processors(runs)}:\n\n{table}\n"


def main() -> None:
    parser = SeededRunsParser(__doc__.splitlines()[0], ROOT / "docs/segmentation.md")
    parser.set_defaults(seeds=[1, 2])
    options = parser.parse_options()
    out = options.out or RESULTS
    if options.data is not None:
        measure(options, out)
    if runs := stored_runs(out):
        replace_section(options.page, markers("unet_ablation"), write_section(runs))


if __name__ == "__main__":
    main()
