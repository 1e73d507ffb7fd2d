"""Why lambda layers lose on scattered digits: other scopes, learning rates and initial embeddings, on the same digits.

    python experiments/unet_ablation.py digits --work RUNS [--seeds 1 2] [--jobs 2]    train; results are kept by seed
    python experiments/unet_ablation.py [--page docs/detection_results.md]          write the table

The recipe is that of the scattered digits with 40 epochs instead of 100. After an interruption, run the script again:
unfinished runs resume. With --jobs 2, set OMP_NUM_THREADS to half the number of cores.
"""

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from pages import RESULTS, replace_section
from seeded_runs import SeededRuns, stored_runs, train_missing

from lambdanets.layers import RelativeEmbedding
from lambdanets.models.weights import save_weights
from lambdanets.recipes import find_recipe
from lambdanets.tasks.segmentation import SegmentationTask
from lambdanets.training.initial_weights import build_model
from lambdanets_lab.markdown import markdown_table
from lambdanets_lab.seeds import processors

OUT = RESULTS / "unet_ablation.json"
EPOCHS, LEARNING_RATE = 40, 0.002
SCOPES = (23, 15, 11, 7, 5, 3)
OTHER_RATES = (0.0006, 0.006)
CONVOLUTION = "3x3 convolution"
LOCAL = (23, 7)  # scopes with local initial embeddings
WINDOW = 1.5  # standard deviation of their Gaussian window, in positions


def settings() -> list[dict[str, Any]]:
    """The layer and the learning rate of each U-Net; the learning rates for three of the layers."""
    layers = [CONVOLUTION, *(f"scope {scope}" for scope in SCOPES), *(f"scope {scope}, local" for scope in LOCAL)]
    compared = (CONVOLUTION, "scope 23", "scope 7")
    rates = [(layer, rate) for rate in OTHER_RATES for layer in compared]
    return [
        {"layer": name, "learning_rate": rate} for name, rate in [*((name, LEARNING_RATE) for name in layers), *rates]
    ]


def command(work: Path, layer: str, learning_rate: float, seed: int) -> list[object]:
    recipe: list[object] = ["digit_masks_convolution"]
    if layer != CONVOLUTION:
        scope, _, local = layer.removeprefix("scope ").partition(",")
        recipe = ["digit_masks", "--model-options", "scope", scope]
        if local:
            recipe += ["--weights", write_local_weights(work / f"local-{scope}-{seed}.safetensors", int(scope), seed)]
    return ["train", *recipe, "--epochs", EPOCHS, "--learning-rate", learning_rate, "--seed", seed]


@torch.no_grad()
def write_local_weights(path: Path, scope: int, seed: int) -> Path:
    """Write the initial weights of a seed, with embeddings times a Gaussian window, of the same norm as before."""
    recipe = replace(find_recipe("digit_masks"), seed=seed, model_options={"scope": scope})
    task = SegmentationTask(recipe)
    torch.manual_seed(seed)
    model = build_model(recipe, len(task.classes))
    for module in model.modules():
        if isinstance(module, RelativeEmbedding):
            rows, columns = (torch.arange(side) - side // 2 for side in module.scope)
            squares = rows[:, None] ** 2 + columns**2
            local = module.table * torch.exp(-squares / (2 * WINDOW**2))[:, :, None]
            module.table.copy_(local * (module.table.norm() / local.norm()))
    path.parent.mkdir(parents=True, exist_ok=True)
    save_weights(path, model, task.card().without_paths().to_json())
    return path


def section(runs: list[dict[str, Any]]) -> str:
    seeds = sorted({run["seed"] for run in runs})
    dice = {(run["layer"], run["learning_rate"], run["seed"]): f"{100 * run['dice']:.1f}" for run in runs}
    rows = [
        [layer, f"{rate}", *(dice.get((layer, rate, seed), "") for seed in seeds)]
        for layer, rate in (setting.values() for setting in settings())
        if any((layer, rate, seed) in dice for seed in seeds)
    ]
    table = markdown_table(["layer", "learning rate", *(f"seed {seed}" for seed in seeds)], *rows)
    return f"Dice (%) after {EPOCHS} epochs on {processors(runs)}:\n\n{table}\n"


def main() -> None:
    options = SeededRuns(__doc__, "detection_results.md", seeds=(1, 2)).parse_options()
    out = options.out or OUT
    if options.data is not None:
        keys = [setting | {"seed": seed} for seed in options.seeds for setting in settings()]
        folder, make_command = "{layer}-{learning_rate}-{seed}", functools.partial(command, options.work)
        train_missing(options, out, folder, keys, make_command, lambda run, result: {"dice": result["dice"]})
    replace_section(options.page, "unet_ablation", section(stored_runs(out)))


if __name__ == "__main__":
    main()
