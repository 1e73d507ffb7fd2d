"""A teacher on 2,000 labels of Fashion-MNIST, and students that learn from its labels for the other 58,000 as well.

    python benchmarks/noisy_student.py FASHION_MNIST --work FOLDER [--seeds 0 1 2] [--out RESULTS.json]

Every step is a command of lambdanets that a person could type; FOLDER keeps what they leave, and a script that was
stopped goes on. FASHION_MNIST holds the four original files in torchvision's layout. The images used to choose nothing
are the 10,000 test images: 500 of them are looked at in training, all of them at the end.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from lambdanets.provenance import commit, hardware, versions
from lambdanets.training.data.datasets import open_splits

LABELLED = 2_000
TEACHER = "--epochs 15 --batch-size 32 --warmup-epochs 1"
STUDENT = "--epochs 10 --batch-size 16 --warmup-epochs 1 --dropout 0.1 --drop-path 0.05 --average-decay 0.99"
PSEUDO = "--pseudo-ratio 3"
SELECT = "--confidence 0.3 --per-class 5800"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/xeon-2-cores/noisy_student.json"))
    options = parser.parse_args()
    seeds = [one_seed(seed, options.data, options.work / f"seed{seed}") for seed in options.seeds]
    content = {
        "labelled": LABELLED,
        "pseudo_labelled": 60_000 - LABELLED,
        "commands": commands_of(0, Path()),
        "seeds": seeds,
        "gain": spread([seed["student"] - seed["teacher"] for seed in seeds]),
        **{name: spread([seed[name] for seed in seeds]) for name in ("teacher", "student", "control")},
        "commit": commit(),
        "versions": versions(),
        "hardware": hardware(),
    }
    options.out.write_text(json.dumps(content, indent=1) + "\n")
    print(json.dumps({name: content[name] for name in ("teacher", "control", "student", "gain")}, indent=1))


def spread(values: list[float]) -> dict[str, float]:
    """Mean and standard deviation over the seeds."""
    return {
        "mean": round(statistics.mean(values), 4),
        "deviation": round(statistics.stdev(values), 4) if len(values) > 1 else 0.0,
    }


def commands_of(seed: int, work: Path) -> dict[str, str]:
    """The commands for a seed, in order."""
    train = f"lambdanets train fashion_mnist --data {work}/labelled --seed {seed}"
    return {
        "teacher": f"{train} {TEACHER} --run {work}/teacher",
        "shard": f"lambdanets shard {work}/unlabelled {work}/shards --unlabelled --images-per-shard 5800",
        "label": f"lambdanets pseudo-label {work}/teacher {work}/shards {work}/labels --top 10",
        "select": f"lambdanets pseudo-label select {work}/labels {work}/selected {SELECT}",
        "student": f"{train} {STUDENT} {PSEUDO} --pseudo-labels {work}/selected --pseudo-images {work}/shards "
        f"--run {work}/student",
        "control": f"{train} {STUDENT} --run {work}/control",
    }


def one_seed(seed: int, data: Path, work: Path) -> dict[str, float]:
    """Top-1 on the 10,000 test images of the teacher, the student, and the student's recipe on the labels alone."""
    if not (work / "ready").is_file():
        write_images(seed, data, work)
    seconds = {}
    for name, command in commands_of(seed, work).items():
        begun = time.monotonic()
        run(command)
        seconds[f"{name}_seconds"] = round(time.monotonic() - begun, 1)
    top1 = {name: evaluated(work / name, work / "test") for name in ("teacher", "student", "control")}
    print(f"seed {seed}: {top1}", flush=True)
    return {"seed": seed, **top1, **seconds}


def run(command: str) -> str:
    print(command, flush=True)
    done = subprocess.run([sys.executable, "-m", *command.split()], stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


def evaluated(folder: Path, data: Path) -> float:
    return float(run(f"lambdanets evaluate {folder} --data {data}").split()[-1])


def write_images(seed: int, data: Path, work: Path) -> None:
    """The labelled images and 2,000 test images, the unlabelled, and all test images, as PNG files."""
    splits = open_splits(str(data))
    random = np.random.default_rng(seed)
    labels, test_labels = np.asarray(splits.train.labels), np.asarray(splits.validation.labels)
    chosen = drawn(random, labels, LABELLED)
    watched = drawn(random, test_labels, 500)
    parts = {
        "labelled/train": (splits.train, chosen, True),
        "labelled/val": (splits.validation, watched, True),
        "unlabelled": (splits.train, np.setdiff1d(np.arange(len(labels)), chosen), False),
        "test/train": (splits.train, drawn(random, labels, 20), True),  # a set has a training part
        "test/val": (splits.validation, np.arange(len(test_labels)), True),
    }
    for name, (images, numbers, by_class) in parts.items():
        for number in numbers:
            image, label = images.load(int(number))
            folder = work / name / (splits.classes[label].replace("/", "-") if by_class else "")
            folder.mkdir(parents=True, exist_ok=True)
            image.save(folder / f"{number:05}.png")
    (work / "ready").touch()


def drawn(random: np.random.Generator, labels: np.ndarray, count: int) -> np.ndarray:
    """So many numbers, as many of each class."""
    classes = np.unique(labels)
    each = [random.choice(np.flatnonzero(labels == label), count // len(classes), replace=False) for label in classes]
    return np.sort(np.concatenate(each))


if __name__ == "__main__":
    main()
