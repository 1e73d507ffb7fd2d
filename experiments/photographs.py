"""Lambda layers and 3x3 convolutions on photographs at several resolutions, from the same initial weights.

    python experiments/photographs.py DATA --work RUNS [--seeds 0 1 2] [--sizes 128 160] [--jobs 2]    train
    python experiments/photographs.py [--page docs/results.md]                                         write the page

DATA has train/CLASS/ and val/CLASS/, such as 3,810 images of 97 classes of Caltech 101. The network is a small ResNet
with 3x3 convolutions or lambda layers in c4 and c5. All tensors that both have are equal at the start: for each seed, a
network with convolutions is initialized, and its tensors are copied into the one with lambda layers. The validation
images were not used to choose anything. Finished runs are skipped and interrupted ones resume, so after an
interruption, run the script again. Results of other seeds and sizes are kept.
"""

import argparse
import json
import statistics
import subprocess
import sys
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import torch
from pages import markers
from safetensors.torch import save_file

from lambdanets import create_model
from lambdanets.evidence.studies.summary import confidence_interval
from lambdanets.text_tables import format_mean, markdown_table

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "experiments/results/epyc-2-cores/photographs.json"
BEGIN, END = markers("photographs")
MIXERS = {"convolution": "3x3 convolutions", "lambda": "lambda layers"}
MODEL = "resnet20_mixer_small"
OPTIONS: dict[str, Any] = {"pattern": "CCLL", "small_images": False}
# The regularization of the paper's smallest network (Table 20), and the learning rate and length for few images.
RECIPE = {
    "epochs": 100,
    "batch-size": 64,
    "learning-rate": 0.1,
    "weight-decay": 4e-5,
    "rand-augment": "rand-m10-n2",
    "dropout": 0.2,
    "drop-path": 0.0,
    "label-smoothing": 0.1,
    "ema-decay": 0.998,
    "workers": 1,
}
RUN_FIELDS = ("top1", "parameters", "epochs", "training_images", "validation_images", "seconds", "commit")
KEY = ("mixer", "image_size", "seed")
MACHINE_FIELDS = ("versions", "hardware")


def write_initial_weights(seed: int, num_classes: int, folder: Path) -> dict[str, Path]:
    """Write a weight file per mixer, with equal tensors where names and shapes are equal; return the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    networks = {}
    for mixer in MIXERS:
        torch.manual_seed(seed)
        networks[mixer] = create_model(MODEL, mixer=mixer, num_classes=num_classes, **OPTIONS).state_dict()
    source, target = networks.values()
    target |= {name: x for name, x in source.items() if name in target and x.shape == target[name].shape}
    paths = {mixer: folder / f"{mixer}-seed{seed}.safetensors" for mixer in MIXERS}
    for mixer, tensors in networks.items():
        save_file({name: x.contiguous() for name, x in tensors.items()}, paths[mixer])
    return paths


def command(mixer: str, size: int, seed: int, weights: Path, data: Path, run: Path) -> list[str]:
    """The training command of a run, or the one that resumes it."""
    start = [sys.executable, "-m", "lambdanets", "train"]
    if (run / "recipe.json").exists():
        return [*start, "--resume", str(run)]
    options = {"mixer": mixer, **OPTIONS}
    return [
        *(*start, "image_folder", "--data", str(data), "--model", MODEL, "--model-options"),
        *(str(text) for pair in options.items() for text in pair),
        *(str(text) for name, value in RECIPE.items() for text in (f"--{name}", value)),
        *("--image-size", str(size), "--seed", str(seed), "--weights", str(weights), "--run", str(run)),
    ]


def measure(options: argparse.Namespace) -> None:
    """Train the runs, one size and seed after another, and write the results after each."""
    num_classes = sum(path.is_dir() for path in (options.data / "train").iterdir())
    content = json.loads(options.out.read_text(encoding="utf-8")) if options.out.exists() else {"runs": []}
    for seed in options.seeds:
        weights = write_initial_weights(seed, num_classes, options.work / "initial")
        for size in options.sizes:
            folders = {mixer: options.work / f"{mixer}-{size}-seed{seed}" for mixer in MIXERS}
            commands = [
                command(mixer, size, seed, weights[mixer], options.data, folder)
                for mixer, folder in folders.items()
                if not (folder / "result.json").exists()
            ]
            with ThreadPool(options.jobs) as pool:
                pool.map(lambda arguments: subprocess.run(arguments, check=True), commands)
            for mixer, folder in folders.items():
                result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
                run = {"mixer": mixer, "image_size": size, "seed": seed, **{name: result[name] for name in RUN_FIELDS}}
                others = [each for each in content["runs"] if any(each[key] != run[key] for key in KEY)]
                content["runs"] = [*others, run]
                content |= {name: result[name] for name in MACHINE_FIELDS} | {"recipe": RECIPE, "jobs": options.jobs}
                print(run, flush=True)
            options.out.parent.mkdir(parents=True, exist_ok=True)
            options.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def write_section(results: dict[str, Any]) -> str:
    """The text between the page's markers."""
    runs = results["runs"]
    sizes = sorted({run["image_size"] for run in runs})
    first = runs[0]
    top1 = {(run["mixer"], run["image_size"], run["seed"]): 100 * run["top1"] for run in runs}
    rows = []
    for mixer, name in MIXERS.items():
        parameters = next(run["parameters"] for run in runs if run["mixer"] == mixer)
        values = [[x for (m, size, _), x in top1.items() if (m, size) == (mixer, side)] for side in sizes]
        rows.append([f"{name}, {parameters / 1e6:.2f} M parameters", *map(format_mean, values)])
    differences = {
        side: [
            top1["lambda", side, s] - top1["convolution", side, s]
            for m, size, s in top1
            if (m, size) == ("lambda", side)
        ]
        for side in sizes
    }
    rows.append(["paired difference", *(format_interval(differences[side]) for side in sizes)])
    table = markdown_table(["top-1 (%)", *(f"{side} x {side}" for side in sizes)], *rows)
    seeds = sorted({run["seed"] for run in runs})
    return (
        f"{first['training_images']:,} training and {first['validation_images']:,} validation images, "
        f"{first['epochs']} epochs, seeds {', '.join(map(str, seeds))}; mean ± std, and 95% intervals of the "
        f"differences:\n\n{table}\n"
    )


def format_interval(differences: list[float]) -> str:
    """Format a mean difference with its 95% interval, without the interval for a single difference."""
    mean = statistics.mean(differences)
    if len(differences) < 2:
        return f"{mean:+.1f}"
    low, high = confidence_interval(mean, statistics.stdev(differences), len(differences))
    return f"{mean:+.1f} ({low:+.1f} to {high:+.1f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, nargs="?")
    parser.add_argument("--work", type=Path, help="folder for the runs")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--sizes", type=int, nargs="+", default=[128, 160])
    parser.add_argument("--jobs", type=int, default=1, help="runs to train at the same time, at most 2")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--page", type=Path, default=ROOT / "docs/results.md")
    options = parser.parse_args()
    if options.data is not None:
        if options.work is None:
            parser.error("--work must name a folder for the runs")
        measure(options)
    text = options.page.read_text(encoding="utf-8")
    if options.out.exists() and BEGIN in text:
        before, _, rest = text.partition(BEGIN)
        section = write_section(json.loads(options.out.read_text(encoding="utf-8")))
        options.page.write_text(before + BEGIN + section + END + rest.partition(END)[2], encoding="utf-8")


if __name__ == "__main__":
    main()
