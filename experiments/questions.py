"""Four questions on CIFAR-10, registered before the first run: lambda layers against four other layers, eight seeds.

    python experiments/questions.py [--page docs/results.md]    write the page and its figure

The runs are finished; this script of commit db27fe43 compared learning rates, trained, and timed the steps. Runs that
train side by side slow each other down, so accuracy is drawn over the time of as many steps, timed in turn.
"""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pages import RESULTS, PageScript, read_results, replace_section
from scipy.stats import ttest_1samp

from lambdanets_lab import plot_style
from lambdanets_lab.markdown import format_mean, markdown_table
from lambdanets_lab.seeds import confidence_interval, paired_differences, scores_by_seed

FOLDER = RESULTS / "questions"
OUT, STEPS = FOLDER / "runs.json", FOLDER / "steps.json"
LAMBDA = "lambda layer"
LAYERS = (
    LAMBDA,
    "3x3 convolution",
    "position lambda only",
    "content lambda only",
    "Performer, softmax features",
)
QUESTIONS = {other: f"Is a lambda layer more accurate than a {other}?" for other in LAYERS if other != LAMBDA}
LEVEL = 0.05


def draw(runs: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw the mean top-1 after each epoch over the time of its steps, and the corrected intervals."""
    steps = read_results(STEPS)
    figure, (curves, answers) = plot_style.subplots(2, height=3.6)
    styles = ((plot_style.OURS, "o"), *plot_style.BASELINES)
    for layer, (color, marker) in zip(LAYERS, styles, strict=False):
        scores = [run["top1_by_epoch"] for run in runs if run["layer"] == layer]
        means = [100 * statistics.fmean(values) for values in zip(*scores, strict=True)]
        epoch = steps["seconds"][layer]["median"] * 50_000 / steps["batch"][0] / 60
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


def paired(runs: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """The differences in top-1 to the lambda layer by seed, in points, for each question."""
    top1 = {layer: scores_by_seed(runs, {"layer": layer}, "top1") for layer in LAYERS}
    assert all(scores.keys() == set(range(8)) for scores in top1.values())
    return {other: paired_differences(top1[LAMBDA], top1[other]) for other in QUESTIONS}


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
    p_values = [float(ttest_1samp(values, 0).pvalue) for values in pairs.values()]
    rows = []
    for (other, differences), p in zip(pairs.items(), holm(p_values), strict=True):
        plain, corrected = (confidence_interval(differences, 1 - LEVEL / count) for count in (1, len(QUESTIONS)))
        intervals = [" to ".join(f"{bound:+.2f}" for bound in interval) for interval in (plain, corrected)]
        difference = f"{statistics.fmean(differences):+.2f}"
        means = [format_mean([*scores_by_seed(runs, {"layer": name}, "top1").values()]) for name in (LAMBDA, other)]
        rounded = "< 0.001" if p < 0.001 else f"{p:.3f}"
        rows.append([QUESTIONS[other], *means, difference, *intervals, rounded, answer(differences, p)])
    columns = ("question", "lambda layer", "the other", "difference", "95% interval", "corrected interval")
    table = markdown_table([*columns, "p (Holm)", "answer"], *rows)
    seeds = len({run["seed"] for run in runs})
    confidence = f"{100 - 100 * LEVEL / len(QUESTIONS):.2f}%"
    return (
        f"![Top-1 over the time of training, and the differences to the lambda layer](results/questions.png)\n\n"
        f"Top-1 (%) on the 10,000 test images, mean ± std of {seeds} seeds; the corrected intervals are of "
        f"{confidence} (Bonferroni; Holm's test, which gives the answers, also "
        f"rejects some differences whose corrected interval includes 0).\n\n{table}\n"
    )


def main() -> None:
    options = PageScript(__doc__, "results.md").parse_args()
    runs = read_results(OUT)["runs"]
    replace_section(options.page, "questions", section(runs))
    draw(runs, options.page.parent / "results/questions.png")


if __name__ == "__main__":
    main()
