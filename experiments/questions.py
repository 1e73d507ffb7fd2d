"""Four questions on CIFAR-10, registered before the first run: lambda layers against four other layers, eight seeds.

    python experiments/questions.py DATA --work RUNS --tune [--jobs 2]     learning rates, on held-out training images
    python experiments/questions.py DATA --work RUNS [--seeds 0] [--jobs 2]    train; the results are kept by seed
    python experiments/questions.py [--page docs/results.md]                   write the page

DATA has train/CLASS/ and val/CLASS/ with all images of CIFAR-10. A run is one seed of one layer. After an interruption,
run the script again: unfinished runs resume. With --jobs 2, set OMP_NUM_THREADS to half the number of cores.
"""

import argparse
import itertools
import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pages import markers, replace_section
from scipy.stats import ttest_1samp
from seeded_runs import SeededRunsParser, processors, store, train

from lambdanets.text_tables import format_mean, markdown_table
from lambdanets_lab.paired import confidence_interval, paired_differences
from lambdanets_lab.studies.execution import read_top1

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "experiments/results/questions"
RESULTS, LEARNING_RATES = FOLDER / "runs.json", FOLDER / "learning_rates.json"
MODEL = "resnet20_mixer_small"
LAMBDA = "lambda layer"
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
TUNING = {"epochs": 5, "hold-out": 0.2}
TUNING_SEED = 100
EPOCHS, LEVEL = 10, 0.05
RUN_FIELDS = ("parameters", "epochs", "training_images", "seconds", "commit", "versions", "hardware")


def command(layer: str, seed: int, recipe: Mapping[str, Any], data: Path, run: Path) -> list[str]:
    """The arguments of the `lambdanets` command of a run."""
    options = LAYERS[layer] | {"pattern": "CCLL"}
    return [
        *("train", "cifar10", "--data", str(data), "--model", MODEL, "--model-options"),
        *(str(text) for pair in options.items() for text in pair),
        *(str(text) for name, value in recipe.items() for text in (f"--{name}", value)),
        *("--seed", str(seed), "--run", str(run)),
    ]


def best_rates() -> dict[str, float]:
    """The learning rate of each layer with the highest top-1 on held-out training images."""
    runs = json.loads(LEARNING_RATES.read_text(encoding="utf-8"))["runs"]
    best = {}
    for layer in LAYERS:
        scores = {run["learning_rate"]: run["held_out_top1"] for run in runs if run["layer"] == layer}
        if not scores.keys() >= set(RATES):
            raise SystemExit(f"the learning rates of {layer} must be compared first, with --tune")
        best[layer] = max(scores, key=lambda rate: scores[rate])
    return best


def measure(options: argparse.Namespace, out: Path) -> None:
    """Train the runs, and write the result of each when it is finished."""
    settings: dict[Path, tuple[dict[str, Any], dict[str, Any]]] = {}
    if options.tune:
        for rate, layer in itertools.product(RATES, LAYERS):
            key = {"layer": layer, "seed": TUNING_SEED, "learning_rate": rate}
            settings[run_folder(options.work, key)] = key, {**PRECISION, **TUNING, "learning-rate": rate}
    else:
        rates = best_rates()
        for seed, layer in itertools.product(options.seeds, LAYERS):
            key = {"layer": layer, "seed": seed, "learning_rate": rates[layer]}
            recipe = {**PRECISION, "epochs": EPOCHS, "learning-rate": rates[layer]}
            settings[run_folder(options.work, key)] = key, recipe
    commands = {
        run: command(key["layer"], key["seed"], recipe, options.data, run) for run, (key, recipe) in settings.items()
    }
    score = "held_out_top1" if options.tune else "top1"
    for run, result in train(commands, options.jobs):
        key, recipe = settings[run]
        fields = {"recipe": recipe, "jobs": options.jobs, score: result[score], f"{score}_by_epoch": read_top1(run)}
        store(out, key, fields | {name: result[name] for name in RUN_FIELDS})


def run_folder(work: Path, key: Mapping[str, Any]) -> Path:
    layer = key["layer"].replace(" ", "-").replace(",", "")
    return work / f"{layer}-lr{key['learning_rate']}-seed{key['seed']}"


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


def write_section(runs: Sequence[Mapping[str, Any]]) -> str:
    """The text between the page's markers."""
    top1: dict[str, dict[int, float]] = {layer: {} for layer in LAYERS}
    for run in runs:
        top1[run["layer"]][run["seed"]] = 100 * run["top1"]
    pairs = {other: paired_differences(top1[LAMBDA], top1[other]) for other in QUESTIONS}
    adjusted = holm([float(ttest_1samp(values, 0).pvalue) for values in pairs.values()])
    rows = []
    for (other, differences), p in zip(pairs.items(), adjusted, strict=True):
        plain, corrected = (confidence_interval(differences, 1 - LEVEL / count) for count in (1, len(pairs)))
        intervals = [" to ".join(f"{bound:+.2f}" for bound in interval) for interval in (plain, corrected)]
        difference = f"{statistics.fmean(differences):+.2f}"
        means = [format_mean(list(top1[layer].values())) for layer in (LAMBDA, other)]
        rows.append([QUESTIONS[other], *means, difference, *intervals, f"{p:.3f}", answer(differences, p)])
    columns = ("question", "lambda layer", "the other", "difference", "95% interval", "corrected interval")
    table = markdown_table([*columns, "p (Holm)", "answer"], *rows)
    seeds = sorted(top1[LAMBDA])
    return (
        f"Top-1 (%) on the 10,000 test images, mean ± std of {len(seeds)} seeds, trained on {processors(runs)}; the "
        f"corrected intervals are of {100 - 100 * LEVEL / len(pairs):.2f}% (Bonferroni):\n\n{table}\n"
    )


def main() -> None:
    parser = SeededRunsParser(__doc__.splitlines()[0], ROOT / "docs/results.md")
    parser.set_defaults(seeds=list(range(8)))
    parser.add_argument("--tune", action="store_true", help="only compare learning rates")
    options = parser.parse_options()
    out = options.out or (LEARNING_RATES if options.tune else RESULTS)
    if options.data is not None:
        measure(options, out)
    if not options.tune and out.is_file():
        runs = json.loads(out.read_text(encoding="utf-8"))["runs"]
        if {(run["layer"], run["seed"]) for run in runs} >= set(itertools.product(LAYERS, range(8))):
            replace_section(options.page, markers("questions"), write_section(runs))


if __name__ == "__main__":
    main()
