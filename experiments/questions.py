"""Four questions on CIFAR-10, registered before the first run: lambda layers against four other layers, eight seeds.

    python experiments/questions.py DATA --work RUNS --tune [--jobs 2]     learning rates, on held-out training images
    python experiments/questions.py DATA --work RUNS [--seeds 0] [--jobs 2]    train; the results are kept by seed
    python experiments/questions.py --steps                                    time a training step of each layer
    python experiments/questions.py [--page docs/results.md]                   write the page and its figure

DATA has train/CLASS/ and val/CLASS/ with all images of CIFAR-10. A run is one seed of one layer. Results name the
commit with PYTHONPATH=src:lab. After an interruption, run the script again: unfinished runs resume. With --jobs 2, set
OMP_NUM_THREADS to half the number of cores. Runs that train side by side slow each other down, so accuracy is drawn
over the time of as many steps, timed in turn.
"""

import argparse
import functools
import itertools
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from pages import RESULTS, read_results, replace_section
from scipy.stats import ttest_1samp
from seeded_runs import SeededRuns, seeds, stored_runs, train_missing
from torch import Tensor, nn

from lambdanets import create_model
from lambdanets.allocator import keep_freed_memory
from lambdanets.provenance import provenance
from lambdanets.records import write_json
from lambdanets_lab import plot_style
from lambdanets_lab.markdown import format_mean, markdown_table
from lambdanets_lab.seeds import confidence_interval, paired_differences, processors, scores_by_seed
from lambdanets_lab.studies.execution import read_top1
from lambdanets_lab.timing import summarize, time_interleaved

FOLDER = RESULTS / "questions"
OUT, LEARNING_RATES, STEPS = FOLDER / "runs.json", FOLDER / "learning_rates.json", FOLDER / "steps.json"
BATCH, TRAINING_IMAGES = (128, 3, 32, 32), 50_000
MODEL = "resnet20_mixer_small"
LAMBDA = "lambda layer"
PATTERN = "CCLL"
LAYERS: dict[str, dict[str, Any]] = {
    LAMBDA: {"mixer": "lambda"},
    "3x3 convolution": {"mixer": "convolution"},
    "position lambda only": {"mixer": "lambda", "content": False},
    "content lambda only": {"mixer": "lambda", "position": False},
    "Performer, softmax features": {"mixer": "performer_softmax"},
}
QUESTIONS = {other: f"Is a lambda layer more accurate than a {other}?" for other in LAYERS if other != LAMBDA}
RATES = (0.2, 0.4, 0.8)
PRECISION = {"precision": "bf16-mixed"}
TUNING = {"epochs": 5, "hold-out": 0.2}  # of runs that compare learning rates
TUNING_SEED = 100
EPOCHS, LEVEL = 10, 0.05
SEEDS = range(8)


def best_rates() -> dict[str, float]:
    """The learning rate of each layer with the highest top-1 on held-out training images."""
    best = {}
    for layer in LAYERS:
        runs = [run for run in stored_runs(LEARNING_RATES) if run["layer"] == layer]
        scores = {run["learning_rate"]: run["held_out_top1"] for run in runs}
        if not scores.keys() >= set(RATES):
            raise SystemExit(f"the learning rates of {layer} must be compared first, with --tune")
        best[layer] = max(scores, key=lambda rate: scores[rate])
    return best


def measure(options: argparse.Namespace, out: Path) -> None:
    """Train the runs, and write the result of each when it is finished."""
    if options.tune:
        score, recipe = "held_out_top1", PRECISION | TUNING
        rates = [(TUNING_SEED, layer, rate) for rate, layer in itertools.product(RATES, LAYERS)]
    else:
        score, recipe = "top1", {**PRECISION, "epochs": EPOCHS}
        rates = [(seed, *pair) for seed, pair in itertools.product(options.seeds, best_rates().items())]
    keys = [{"layer": layer, "seed": seed, "learning_rate": rate} for seed, layer, rate in rates]

    def command(layer: str, seed: int, learning_rate: float) -> list[object]:
        choices = LAYERS[layer] | {"pattern": PATTERN}
        return [
            *("train", "cifar10", "--data", options.data, "--model", MODEL, "--model-options"),
            *itertools.chain(*choices.items()),
            *(word for name, value in recipe.items() for word in (f"--{name}", value)),
            *("--learning-rate", learning_rate, "--seed", seed),
        ]

    def fields(run: Path, result: dict[str, Any]) -> dict[str, Any]:
        return {"recipe": recipe, score: result[score], f"{score}_by_epoch": read_top1(run)}

    train_missing(options, out, "{layer}-lr{learning_rate}-seed{seed}", keys, command, fields)


def train_step(network: nn.Module, images: Tensor) -> None:
    """Forward and backward pass; frees the gradients."""
    network(images).sum().backward()
    network.zero_grad(set_to_none=True)


def measure_steps() -> None:
    """Time a training step of each layer's network in turn."""
    keep_freed_memory()
    images = torch.randn(BATCH).contiguous(memory_format=torch.channels_last)
    runs = {}
    for layer, options in LAYERS.items():
        torch.manual_seed(0)
        network = create_model(MODEL, num_classes=10, pattern=PATTERN, **options)
        network = network.to(memory_format=torch.channels_last).train()
        runs[layer] = torch.autocast("cpu", torch.bfloat16)(functools.partial(train_step, network, images))
    samples = time_interleaved(runs, repeats=20, seconds=20)
    seconds = {layer: summarize(times)._asdict() for layer, times in samples.items()}
    content = {"seconds": seconds, "batch": BATCH, "threads": torch.get_num_threads()}
    write_json(STEPS, content | provenance())


def draw(runs: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw the mean top-1 after each epoch over the time of its steps, and the corrected intervals."""
    seconds = read_results(STEPS)["seconds"]
    figure, (curves, answers) = plot_style.subplots(2, height=3.6)
    styles = ((plot_style.OURS, "o"), *plot_style.BASELINES)
    for layer, (color, marker) in zip(LAYERS, styles, strict=False):
        if not is_finished(runs, layer):
            continue
        scores = [run["top1_by_epoch"] for run in runs if run["layer"] == layer]
        means = [100 * statistics.fmean(values) for values in zip(*scores, strict=True)]
        epoch = seconds[layer]["median"] * TRAINING_IMAGES / BATCH[0] / 60
        minutes = [epoch * number for number in range(1, 1 + len(means))]
        curves.plot(minutes, means, color=color, marker=marker, label=layer)
    curves.set(xlabel="minutes of training steps", ylabel="top-1 on test images (%)")
    curves.legend(fontsize=10)
    pairs = paired(runs)
    for y, differences in enumerate(reversed(pairs.values())):
        low, high = confidence_interval(differences, 1 - LEVEL / len(QUESTIONS))
        answers.plot([low, high], [y, y], color=plot_style.OURS)
        answers.plot(differences, [y] * len(differences), "o", color=plot_style.OURS, alpha=0.35)
        answers.plot(statistics.fmean(differences), y, "|", color=plot_style.OURS, markersize=16)
    answers.set_ylim(-0.5, len(pairs) - 0.5)
    answers.axvline(0, color=plot_style.REFERENCE, linewidth=1)
    answers.set_yticks(range(len(pairs)), list(reversed(pairs)))
    answers.set(xlabel="top-1 of the lambda layer - of the other (points)")
    for axis in (curves, answers):
        axis.grid(**plot_style.GRID)
    plot_style.save(figure, path)


def is_finished(runs: Sequence[Mapping[str, Any]], layer: str) -> bool:
    return {run["seed"] for run in runs if run["layer"] == layer} >= set(SEEDS)


def paired(runs: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """The differences in top-1 to the lambda layer by seed, in points, of the questions with all their runs."""
    top1 = {layer: scores_by_seed(runs, {"layer": layer}, "top1") for layer in LAYERS if is_finished(runs, layer)}
    others = [other for other in QUESTIONS if other in top1 and LAMBDA in top1]
    return {other: paired_differences(top1[LAMBDA], top1[other]) for other in others}


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values: the chance of at least one false answer is at most the level."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for rank, i in enumerate(order):
        largest = adjusted[i] = max(largest, min(1.0, (len(p_values) - rank) * p_values[i]))
    return adjusted


def answer(differences: Sequence[float], adjusted: float) -> str:
    if adjusted >= LEVEL:
        return "undecided"
    return "yes" if statistics.fmean(differences) > 0 else "no"


def section(runs: Sequence[Mapping[str, Any]]) -> str:
    """The text between the page's markers."""
    pairs = paired(runs)
    if not pairs:
        return "The runs are not finished.\n"
    p_values = [float(ttest_1samp(values, 0).pvalue) for values in pairs.values()]
    unknown = [1.0] * (len(QUESTIONS) - len(pairs))  # whatever they are, no adjusted p-value will be larger
    adjusted = holm([*p_values, *unknown])
    rows = []
    for (other, differences), p in zip(pairs.items(), adjusted, strict=False):
        plain, corrected = (confidence_interval(differences, 1 - LEVEL / count) for count in (1, len(QUESTIONS)))
        intervals = [" to ".join(f"{bound:+.2f}" for bound in interval) for interval in (plain, corrected)]
        difference = f"{statistics.fmean(differences):+.2f}"
        means = [format_mean([*scores_by_seed(runs, {"layer": name}, "top1").values()]) for name in (LAMBDA, other)]
        rounded = "< 0.001" if p < 0.001 else f"{p:.3f}"
        rows.append([QUESTIONS[other], *means, difference, *intervals, rounded, answer(differences, p)])
    missing = len(LAYERS) * len(SEEDS) - len(runs)
    ending = f" Of the other questions, {missing} of 40 runs are still to be trained." if missing else ""
    columns = ("question", "lambda layer", "the other", "difference", "95% interval", "corrected interval")
    table = markdown_table([*columns, "p (Holm)", "answer"], *rows)
    answered = [run for run in runs if run["layer"] in (LAMBDA, *pairs)]
    confidence = f"{100 - 100 * LEVEL / len(QUESTIONS):.2f}%"
    return (
        f"![Top-1 over the time of training, and the differences to the lambda layer](results/questions.png)\n\n"
        f"Top-1 (%) on the 10,000 test images, {seeds(answered)}, trained on {processors(answered)}; the corrected "
        f"intervals are of {confidence} (Bonferroni; Holm's test, which gives the answers, also "
        f"rejects some differences whose corrected interval includes 0).{ending}\n\n{table}\n"
    )


def main() -> None:
    parser = SeededRuns(__doc__, "results.md", seeds=SEEDS)
    parser.add_argument("--tune", action="store_true", help="only compare learning rates")
    parser.add_argument("--steps", action="store_true", help="only time a training step of each layer")
    options = parser.parse_options()
    out = options.out or (LEARNING_RATES if options.tune else OUT)
    if options.steps:
        measure_steps()
    elif options.data is not None:
        measure(options, out)
    runs = stored_runs(out)
    if not options.tune:
        replace_section(options.page, "questions", section(runs))
    if not options.tune and paired(runs):
        draw(runs, options.page.parent / "results/questions.png")


if __name__ == "__main__":
    main()
