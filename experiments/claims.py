"""The paper's claims about accuracy beside what was measured: writes docs/claims.md and its figure.

    python experiments/claims.py [--page docs/claims.md]

A claim is confirmed if the 95% confidence interval of the paired difference over at least three
seeds (Student's t) is above 0, refuted if it is below 0, and undecided otherwise.
"""

import math
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from pages import RESULTS, PageScript, read_results, replace_section

from lambdanets_lab import plot_style
from lambdanets_lab.markdown import markdown_table
from lambdanets_lab.seeds import confidence_interval, format_difference, paired_differences, scores_by_seed
from lambdanets_lab.studies.catalog import STUDIES
from lambdanets_lab.studies.results import read_comparison

# results.json of each `lambdanets compare`
CIFAR10 = sorted((RESULTS / "epyc-2-cores/cifar10").glob("*.json"))
FASHION_MNIST = [RESULTS / "xeon-2-cores/fashion_mnist.json"]
LIMIT = 10.0  # points in the figure


class Accuracy(NamedTuple):
    """A claim about accuracy with its reference, its name in the figure, the data and score, and paired differences."""

    claim: str
    label: str
    score: str
    differences: Sequence[float]


def verdict(differences: Sequence[float], comparisons: int = 1) -> str:
    """Return "confirmed" if the interval is above 0, "refuted" if it is below 0, and otherwise "undecided".

    comparisons: number of comparisons for which the level of 5% is corrected (Bonferroni).
    """
    low, high = confidence_interval(differences, 1 - 0.05 / comparisons)
    if len(differences) < 3:
        return "undecided"
    return "confirmed" if low > 0 else "refuted" if high < 0 else "undecided"


BETTER_THAN_CONVOLUTIONS = "Lambda layers are more accurate than 3x3 convolutions: 78.4 and 76.9 (Table 3)"
BOTH_TERMS = "Content and position are better than"
SOFTMAX_KEYS = "Softmax on keys is better than"
# claim, name in the figure, variant, baseline: names of variants in the results of `lambdanets compare`
VARIANTS = (
    (f"{BOTH_TERMS} content alone: 78.4 and 68.8 (Table 9)", "content alone", "lambda", "lambda position=False"),
    (f"{BOTH_TERMS} position alone: 78.1 (Table 9)", "position alone", "lambda", "lambda content=False"),
    ("A scope of 15 is better than 3: 78.5 and 77.6 (Table 10)", "scope 3", "lambda scope=15", "lambda scope=3"),
    ("A scope of 15 is better than 7: 78.2 (Table 10)", "scope 7", "lambda scope=15", "lambda scope=7"),
    ("Batch norm is better than none: 78.4 and 76.2 (Table 11)", "no batch norm", "lambda", "lambda batch_norm=False"),
    (
        f"{SOFTMAX_KEYS} no normalization: 70.0 (Table 11)",
        "keys not normalized",
        "lambda",
        "lambda normalize_keys=none",
    ),
    (f"{SOFTMAX_KEYS} L2 normalization: 78.0 (Table 11)", "keys with L2 norm", "lambda", "lambda normalize_keys=l2"),
    (
        "Softmax on keys alone is better than also on queries: 78.1 (Table 11)",
        "queries normalized too",
        "lambda",
        "lambda normalize_queries=softmax",
    ),
)


def mixer_claims() -> Iterator[tuple[str, str, str, str]]:
    """The claims about the variants of the study "mixers", as in VARIANTS."""
    for name, variant in STUDIES["mixers"].variants.items():
        claim = f"Not in the paper: more accurate than {name}"
        if variant.paper_top1 is not None:
            table = 4 if name == "axial attention" else 3
            quoted = " †" * variant.quoted
            claim = f"Lambda layers are more accurate than {name}: {variant.paper_top1}{quoted} (Table {table})"
        if name == "convolution":
            yield BETTER_THAN_CONVOLUTIONS, "3x3 convolution", "lambda", variant.name
        elif name != "lambda":
            yield claim, name, "lambda", variant.name


def mixers() -> Iterator[Accuracy]:
    files = {"CIFAR-10, 10 epochs ¶": CIFAR10, "Fashion-MNIST, 188 steps": FASHION_MNIST}
    datasets = {name: read_comparison(*paths) for name, paths in files.items()}
    for claim, label, *variants in (*mixer_claims(), *VARIANTS):
        differences = {
            name: paired_differences(
                *(scores_by_seed(results.rows, {"variant": variant}, "top1") for variant in variants)
            )
            for name, results in datasets.items()
        }
        if not any(differences.values()):
            raise ValueError(f"results must have runs of both {' and '.join(variants)}, got none")
        yield from (Accuracy(claim, label, name, each) for name, each in differences.items() if each)


def photographs() -> Iterator[Accuracy]:
    runs = read_results(RESULTS / "photographs.json")["runs"]
    for size in sorted({run["image_size"] for run in runs}):
        top1 = [
            scores_by_seed(runs, {"mixer": mixer, "image_size": size}, "top1") for mixer in ("lambda", "convolution")
        ]
        score = f"Caltech 101, {size} pixels, {runs[0]['epochs']} epochs"
        yield Accuracy(BETTER_THAN_CONVOLUTIONS, "3x3 convolution", score, paired_differences(*top1))


def pairs(path: str, recipe: str, *score: str) -> list[float]:
    """Return the paired differences between the runs of a recipe and of the same with convolutions."""
    runs, recipes = read_results(RESULTS / path)["runs"], (recipe, f"{recipe}_convolution")
    return paired_differences(*(scores_by_seed(runs, {"recipe": name}, *score) for name in recipes))


def tasks() -> list[Accuracy]:
    """Compare students with and without pseudo-labels, and lambda layers and convolutions in other tasks."""
    students = read_results(RESULTS / "xeon-2-cores/noisy_student.json")["seeds"]
    labels = paired_differences(*(scores_by_seed(students, {}, name) for name in ("student", "control")))
    all_objects, small = (pairs("epyc-2-cores/nuclei.json", "nuclei", "segm", column) for column in ("AP", "APs"))
    more = [of_small - of_all for of_small, of_all in zip(small, all_objects, strict=True)]
    on_nuclei = pairs("xeon-2-cores/segmentation.json", "nuclei_masks", "test", "dice")
    on_digits = pairs("segmentation_digits.json", "digit_masks", "validation", "dice")
    detection = "Lambda layers in the backbone improve detection (Table 14)"
    unet, layer = "Not in the paper: lambda layers in a U-Net improve segmentation", "3x3 convolution"
    by_size = "They improve small objects more than all (Table 14)"
    pseudo_labels = "Pseudo-labels improve accuracy (Table 5)"
    return [
        Accuracy(pseudo_labels, "no pseudo-labels", "Fashion-MNIST, 2,000 labels ¶", labels),
        Accuracy(detection, layer, "cell nuclei, mask AP, validation images ‡", all_objects),
        Accuracy(by_size, "gain of all objects", "cell nuclei, mask APs, validation images ‡", more),
        Accuracy(unet, layer, "cell nuclei, Dice ¶", on_nuclei),
        Accuracy(unet, layer, "scattered digits, Dice, validation images ‡", on_digits),
    ]


def num_comparisons(findings: Sequence[Accuracy]) -> int:
    """The number of comparisons over at least three seeds, whose verdicts may be due to chance."""
    return sum(len(each.differences) > 2 for each in findings)


def multiplicity(findings: Sequence[Accuracy]) -> str:
    """State how many verdicts chance alone explains, how many remain after Bonferroni's correction, and its power."""
    count = num_comparisons(findings)
    decided, remain = (
        sum(verdict(each.differences, comparisons) != "undecided" for each in findings) for comparisons in (1, count)
    )
    by_chance = 1 - 0.95**count
    _, uncorrected = confidence_interval([-1.0, 0.0, 1.0])  # a std of 1
    _, corrected = confidence_interval([-1.0, 0.0, 1.0], 1 - 0.05 / count)
    return (
        f"{len(findings)} comparisons, {count} of them over three seeds: {decided} of these intervals exclude 0, and "
        f"{remain} after Bonferroni's correction. If no claim were true\nand the comparisons were independent, at "
        f"least one would exclude 0 with a probability of {by_chance:.0%}. With three seeds, an interval excludes 0\n"
        f"if the mean is more than {uncorrected:.1f} times the std, and with the correction {corrected:.0f} times: "
        "*undecided* does not mean *no effect*.\n‡ and ¶ are explained below the table."
    )


def accuracy_table(findings: Sequence[Accuracy]) -> str:
    count = num_comparisons(findings)
    rows = []
    for claim in dict.fromkeys(each.claim for each in findings):
        measured, verdicts = [], []
        for each in findings:
            if each.claim == claim:
                seeds = "one seed" if len(each.differences) == 1 else f"{len(each.differences)} seeds"
                measured.append(f"{each.score}: {format_difference(each.differences)}, {seeds}")
                uncorrected, corrected = verdict(each.differences), verdict(each.differences, count)
                verdicts.append(uncorrected if corrected == uncorrected else f"{uncorrected}, not if corrected")
        rows.append([claim, "<br>".join(measured), "<br>".join(verdicts)])
    return markdown_table(["claim", "measured, paired difference in points (95% interval)", "verdict"], *rows)


def draw(findings: Sequence[Accuracy], path: Path) -> None:
    """Draw the paired differences of all claims about accuracy, with their 95% confidence intervals."""
    figure, (axis,) = plot_style.subplots(1, height=0.31 * len(findings) + 0.9, width=9.5)
    for y, each in enumerate(findings):
        mean = statistics.fmean(each.differences)
        color = plot_style.OURS if verdict(each.differences) != "undecided" else plot_style.REFERENCE
        if len(each.differences) > 1:
            axis.plot(confidence_interval(each.differences), (y, y), color=color)
        face = color if len(each.differences) > 1 else "white"
        if abs(mean) < LIMIT:
            axis.plot(mean, y, "o", color=color, markerfacecolor=face, markersize=6)
        else:
            side = "left" if mean < 0 else "right"
            axis.text(math.copysign(0.98 * LIMIT, mean), y, f"{mean:+.1f}", fontsize=9, va="bottom", ha=side)
    axis.axvline(0, color=plot_style.NEUTRAL, zorder=0)
    seeds = [", 2 seeds" if len(each.differences) == 2 else "" for each in findings]
    labels = [f"vs. {each.label} ({each.score}{suffix})" for each, suffix in zip(findings, seeds, strict=True)]
    axis.set_yticks(range(len(findings)), labels, fontsize=9)
    axis.set(
        xlim=(-LIMIT, LIMIT),
        ylim=(len(findings) - 0.5, -0.5),
        xlabel="paired difference in points; positive supports the claim",
    )
    axis.set_title("blue: the interval excludes 0; hollow: one seed", fontsize=10)
    axis.grid(axis="x", **plot_style.GRID)
    plot_style.save(figure, path)


def accuracy() -> list[Accuracy]:
    """Return all comparisons of an accuracy; those of one claim follow each other."""
    findings = [*mixers(), *photographs(), *tasks()]
    claims = [each.claim for each in findings]
    return sorted(findings, key=lambda each: claims.index(each.claim))


def main() -> None:
    page = PageScript(__doc__, "claims.md").parse_args().page
    accuracies = accuracy()
    draw(accuracies, page.parent / "results/claims.png")
    section = [
        "![Paired differences in accuracy with their 95% confidence intervals](results/claims.png)",
        multiplicity(accuracies),
        "<details><summary>The claims about accuracy, with their numbers and verdicts</summary>",
        accuracy_table(accuracies),
        "† quoted by the paper from another paper, with another network and training<br>\n"
        "‡ the recipe was selected on these images; the detection runs have an EMA of the parameters only<br>\n"
        "¶ the recipe was changed after an earlier version had been scored on these images",
        "</details>",
    ]
    replace_section(page, "claims", "\n\n".join(section) + "\n")


if __name__ == "__main__":
    main()
