"""Noisy Student on Fashion-MNIST: a teacher trained on 2,000 labels, students also on 58,000 pseudo-labels.

    python experiments/noisy_student.py FASHION_MNIST --work FOLDER [--seeds 0 1 2]    train three runs per seed
    python experiments/noisy_student.py [--page docs/pseudo_labels.md]                 write the page's sections

Every step is a `lambdanets` command that writes into FOLDER. After an interruption, run the script again to resume.
FASHION_MNIST is the root folder of torchvision's FashionMNIST. The 10,000 test images are not used to select
weights or settings: 500 of them are evaluated during training, all of them at the end.
"""

import argparse
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from pages import RESULTS, Script, replace_section

from lambdanets.data.datasets import open_splits
from lambdanets.text_tables import markdown_table
from lambdanets_lab.paired import format_difference
from lambdanets_lab.results import read_results, write_results

LABELED = 2_000
RUNS = ("teacher", "control", "student")
TEACHER = "--epochs 15 --batch-size 32 --warmup-epochs 1"
STUDENT = (
    "--epochs 24 --batch-size 16 --warmup-epochs 2 --scale 0.6 1.0 --dropout 0.2 --drop-path 0.1 --ema-decay 0.999"
)
PSEUDO = "--pseudo-ratio 3"
SELECT = "--confidence 0.3 --per-class 5800"


def main() -> None:
    parser = Script(__doc__, "pseudo_labels.md", RESULTS / "xeon-2-cores/noisy_student.json")
    parser.add_argument("data", type=Path, nargs="?")
    parser.add_argument("--work", type=Path, help="folder for images and runs")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options = parser.parse_args()
    if options.data is not None:
        if options.work is None:
            parser.error("--work must name a folder for images and runs")
        measure(options)
    for name, text in sections(read_results(options.out)).items():
        replace_section(options.page, f"noisy_student {name}", text + "\n")


def measure(options: argparse.Namespace) -> None:
    """Train the runs of all seeds, and write the results."""
    seeds = [train_seed(seed, options.data, options.work / f"seed{seed}") for seed in options.seeds]
    content = {
        "labeled": LABELED,
        "pseudo_labeled": 60_000 - LABELED,
        "commands": list_commands(0, Path()),
        "seeds": seeds,
        "gain": mean_and_std([seed["student"] - seed["teacher"] for seed in seeds]),
        **{name: mean_and_std([seed[name] for seed in seeds]) for name in RUNS},
    }
    write_results(options.out, content)
    print({name: content[name] for name in (*RUNS, "gain")})


def sections(results: dict[str, Any]) -> dict[str, str]:
    """The text of each section of docs/pseudo_labels.md by name."""
    header = ["seed", "teacher", "control", "student", "student - teacher, percentage points"]
    rows = []
    for seed in results["seeds"]:
        gain = 100 * (round(seed["student"], 4) - round(seed["teacher"], 4))  # rounded as in the table
        rows.append([str(seed["seed"]), *(f"{seed[name]:.4f}" for name in RUNS), f"{gain:+.2f}"])
    means = [f"{results[name]['mean']:.4f} ± {results[name]['std']:.4f}" for name in RUNS]
    mean_gain = f"{100 * results['gain']['mean']:+.2f} ± {100 * results['gain']['std']:.2f}"
    minutes = statistics.mean(seed["training_seconds"] for seed in results["seeds"]) / 60
    recipe_gain = 100 * (results["control"]["mean"] - results["teacher"]["mean"])
    label_gains = [100 * (seed["student"] - seed["control"]) for seed in results["seeds"]]
    summary = (
        f"{recipe_gain:.2f} percentage points of the gain are due to the recipe alone. The pseudo-labels change top-1 "
        f"by {min(label_gains):+.2f} to {max(label_gains):+.2f} points, on\naverage by "
        f"{format_difference(label_gains)}, with the 95% interval over seeds in parentheses. The three trainings of a "
        "seed took "
        f"{minutes:.0f} minutes on one thread of {results['hardware']['processor']}, with other\nwork on the machine, "
        "November 2026."
    )
    table = markdown_table(header, *rows, ["mean ± std", *means, mean_gain])
    commands = [f"    {command}" for command in results["commands"].values()]
    return {"commands": "\n".join(commands), "results": f"{table}\n\n{summary}"}


def mean_and_std(values: list[float]) -> dict[str, float]:
    """Mean and std over the seeds."""
    return {
        "mean": round(statistics.mean(values), 4),
        "std": round(statistics.stdev(values), 4) if len(values) > 1 else 0.0,
    }


def list_commands(seed: int, work: Path) -> dict[str, str]:
    """The commands of a seed by name, in the order in which they run."""
    prefix = "" if work == Path() else f"{work}/"
    train = f"lambdanets train fashion_mnist --data {prefix}labeled --seed {seed}"
    return {
        "teacher": f"{train} {TEACHER} --run {prefix}teacher",
        "shard": f"lambdanets shard {prefix}unlabeled {prefix}shards --unlabeled --images-per-shard 5800",
        "label": f"lambdanets pseudo-label {prefix}teacher {prefix}shards {prefix}labels --top 10",
        "select": f"lambdanets pseudo-label select {prefix}labels {prefix}selected {SELECT}",
        "student": f"{train} {STUDENT} {PSEUDO} --pseudo-labels {prefix}selected --pseudo-images {prefix}shards "
        f"--run {prefix}student",
        "control": f"{train} {STUDENT} --run {prefix}control",
    }


def train_seed(seed: int, data: Path, work: Path) -> dict[str, float]:
    """Train teacher, student and control (the student's recipe without pseudo-labels); returns their test top-1."""
    if not (work / "ready").is_file():
        write_images(seed, data, work)
    for command in list_commands(seed, work).values():
        run(command)
    top1 = {name: evaluate(work / name, work / "test") for name in RUNS}
    print(f"seed {seed}: {top1}", flush=True)
    seconds = [read_results(work / name / "result.json")["seconds"] for name in RUNS]
    return {"seed": seed, **top1, "training_seconds": round(sum(seconds), 1)}


def run(command: str) -> str:
    """Run a command, and return what it prints."""
    print(command, flush=True)
    arguments = [sys.executable, "-m", *command.split()]
    return subprocess.run(arguments, stdout=subprocess.PIPE, text=True, check=True).stdout


def evaluate(folder: Path, data: Path) -> float:
    return float(run(f"lambdanets evaluate {folder} --data {data}").split()[-1])


def write_images(seed: int, data: Path, work: Path) -> None:
    """Write the labeled images with 500 test images, the unlabeled images, and all test images, as PNG files."""
    splits = open_splits("torch/fashion_mnist", root=str(data))
    generator = np.random.default_rng(seed)
    labels, test_labels = np.asarray(splits.train.labels), np.asarray(splits.validation.labels)
    labeled = sample_per_class(generator, labels, LABELED)
    evaluated = sample_per_class(generator, test_labels, 500)
    folders = {  # images, indices, whether there is one sub-folder per class
        "labeled/train": (splits.train, labeled, True),
        "labeled/val": (splits.validation, evaluated, True),
        "unlabeled": (splits.train, np.setdiff1d(np.arange(len(labels)), labeled), False),
        "test/train": (splits.train, sample_per_class(generator, labels, 20), True),  # a dataset needs a training split
        "test/val": (splits.validation, np.arange(len(test_labels)), True),
    }
    for name, (images, indices, by_class) in folders.items():
        for index in indices:
            image, label = images.load(int(index))
            folder = work / name / (splits.classes[label].replace("/", "-") if by_class else "")
            folder.mkdir(parents=True, exist_ok=True)
            image.save(folder / f"{index:05}.png")
    (work / "ready").touch()


def sample_per_class(generator: np.random.Generator, labels: np.ndarray, count: int) -> np.ndarray:
    """Draw `count` indices, the same number from each class."""
    indices_by_class = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    per_class = count // len(indices_by_class)
    drawn = [generator.choice(indices, per_class, replace=False) for indices in indices_by_class]
    return np.sort(np.concatenate(drawn))


if __name__ == "__main__":
    main()
