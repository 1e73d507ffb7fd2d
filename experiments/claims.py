"""The claims of the paper beside what was measured here: writes the table of docs/results.md from results.

    python experiments/claims.py [--page docs/results.md]

A claim about accuracy is confirmed if the 95% confidence interval of the paired difference over at least three seeds
(Student's t) is above 0, refuted if it is below 0, and undecided otherwise. A claim about cost is confirmed if it holds
in all measured cases, refuted if in none; otherwise the verdict says in how many.
"""

import argparse
import functools
import json
import operator
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from comparison import FASHION_MNIST, read_cifar10
from frontier import OURS, PAPER_SPEEDUPS, frontier, speedups
from pages import markers, replace_section
from photographs import complete_runs

from lambdanets.evidence.paired import confidence_interval, format_difference, paired_differences
from lambdanets.evidence.studies.results import read_comparison
from lambdanets.text_tables import markdown_table

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "experiments/results"
NUCLEI = ("nuclei", "nuclei_convolution")  # recipes with lambda layers and with convolutions
UNETS = ("lambda_unet_small", "unet_small")
BEGIN, END = markers("claims")


class Finding(NamedTuple):
    """A claim with its reference, what was measured, whether that confirms it, and for an accuracy its differences."""

    claim: str
    measured: str
    verdict: str
    differences: Sequence[float] = ()


def read(path: str) -> Any:
    """Read a results file."""
    return json.loads((RESULTS / path).read_text(encoding="utf-8"))


def verdict(differences: Sequence[float]) -> str:
    """Return "confirmed" if the interval is above 0, "refuted" if it is below 0, and otherwise "undecided"."""
    low, high = confidence_interval(differences)
    if len(differences) < 3:
        return "undecided"
    return "confirmed" if low > 0 else "refuted" if high < 0 else "undecided"


def verdict_of_cases(cases: Sequence[bool], kind: str) -> str:
    """Return the verdict on a claim about cost, from whether it holds in each case."""
    if all(cases):
        return "confirmed"
    return f"for {sum(cases)} of {len(cases)} {kind}" if any(cases) else "refuted on this CPU"


def finding(claim: str, measured: str, differences: Sequence[float]) -> Finding:
    """A finding about a paired difference in points."""
    seeds = "one seed, no interval" if len(differences) == 1 else f"{len(differences)} seeds"
    return Finding(claim, f"{measured} {format_difference(differences)}, {seeds}", verdict(differences), differences)


def points(runs: list[dict[str, Any]], select: dict[str, Any], *score: str) -> dict[int, float]:
    """Return a score, in points, by seed of the runs whose fields have the selected values; `score`: nested keys."""
    selected = [run for run in runs if all(run[name] == value for name, value in select.items())]
    return {run["seed"]: 100 * functools.reduce(operator.getitem, score, run) for run in selected}


BETTER = "Lambda layers are more accurate than"
BETTER_THAN_CONVOLUTIONS = f"{BETTER} 3x3 convolutions: 78.4 and 76.9 (Table 3)"
# claim, variant, baseline: names of variants in the results of `lambdanets compare`
ACCURACY = (
    (BETTER_THAN_CONVOLUTIONS, "lambda", "convolution"),
    (f"{BETTER} squeeze-and-excitation: 77.6 (Table 3)", "lambda", "channel_attention"),
    (f"{BETTER} double attention: 77.0 † (Table 3)", "lambda", "double_attention"),
    (f"{BETTER} efficient attention: 77.3 † (Table 3)", "lambda", "efficient_attention"),
    (f"{BETTER} local attention: 77.4 † (Table 3)", "lambda", "local_attention"),
    (f"{BETTER} local relation: 77.3 † (Table 3)", "lambda", "local_relation"),
    (f"{BETTER} patchwise attention: 78.2 † (Table 3)", "lambda", "patchwise_attention"),
    (f"{BETTER} augmented attention: 77.7 † (Table 3)", "lambda", "augmented_attention"),
    (f"{BETTER} axial attention: 77.5 (Table 4)", "lambda", "axial_attention"),
    ("Not in the paper: more accurate than the Performer, softmax features", "lambda", "performer_softmax"),
    ("Content and position are better than content alone: 78.4 and 68.8 (Table 9)", "lambda", "lambda position=False"),
    ("Content and position are better than position alone: 78.1 (Table 9)", "lambda", "lambda content=False"),
    ("A scope of 15 is better than 3: 78.5 and 77.6 (Table 10)", "lambda scope=15", "lambda scope=3"),
    ("A scope of 15 is better than 7: 78.2 (Table 10)", "lambda scope=15", "lambda scope=7"),
    ("Batch norm is better than none: 78.4 and 76.2 (Table 11)", "lambda", "lambda batch_norm=False"),
    ("Softmax on keys is better than no normalization: 70.0 (Table 11)", "lambda", "lambda normalize_keys=none"),
    ("Softmax on keys is better than L2 normalization: 78.0 (Table 11)", "lambda", "lambda normalize_keys=l2"),
    (
        "Softmax on keys alone is better than also on queries: 78.1 (Table 11)",
        "lambda",
        "lambda normalize_queries=softmax",
    ),
)


def accuracy() -> list[Finding]:
    """Compare the accuracy of mixers."""
    datasets = {"CIFAR-10, 10 epochs": read_cifar10(), "Fashion-MNIST, 188 steps": read_comparison(FASHION_MNIST)}
    findings = []
    for claim, *variants in ACCURACY:
        before = len(findings)
        for name, results in datasets.items():
            top1 = [points(results["runs"], {"variant": variant}, "top1") for variant in variants]
            if differences := paired_differences(*top1):
                findings.append(finding(claim, f"{name}:", differences))
        if len(findings) == before:
            raise ValueError(f"results must have runs of both {' and '.join(variants)}, got none")
    return findings


def photographs() -> list[Finding]:
    """Compare the accuracy of lambda layers and convolutions on photographs of each size."""
    runs = complete_runs(read("photographs.json")["runs"])
    findings = []
    for size in sorted({run["image_size"] for run in runs}):
        top1 = [points(runs, {"mixer": mixer, "image_size": size}, "top1") for mixer in ("lambda", "convolution")]
        name = f"Caltech 101, {size} pixels, {runs[0]['epochs']} epochs:"
        findings.append(finding(BETTER_THAN_CONVOLUTIONS, name, paired_differences(*top1)))
    return findings


def pseudo_labels() -> Finding:
    """Compare students trained with pseudo-labels and with the same recipe without them."""
    rows = read("xeon-2-cores/noisy_student.json")["seeds"]
    claim = "Pseudo-labels improve accuracy (Table 5)"
    differences = paired_differences(*(points(rows, {}, name) for name in ("student", "control")))
    return finding(
        claim, "Fashion-MNIST, 2,000 labeled images, three pseudo-labeled images per labeled image:", differences
    )


def detection() -> list[Finding]:
    """Compare mask AP of lambda layers and convolutions in the backbone, of all and of small objects."""
    runs = read("epyc-2-cores/nuclei.json")["runs"]
    all_objects, small = (
        paired_differences(*(points(runs, {"recipe": recipe}, "segm", column) for recipe in NUCLEI))
        for column in ("AP", "APs")
    )
    more = [of_small - of_all for of_small, of_all in zip(small, all_objects, strict=True)]
    return [
        finding("Lambda layers in the backbone improve detection (Table 14)", "cell nuclei: mask AP", all_objects),
        finding(
            "They improve small objects more than all (Table 14)",
            "cell nuclei: gain in APs - gain in AP of masks",
            more,
        ),
    ]


def segmentation() -> list[Finding]:
    """Compare Dice of U-Nets with lambda layers and with convolutions."""
    nuclei = read("xeon-2-cores/segmentation.json")["runs"]
    digits = read("epyc-2-cores/segmentation_digits.json")["runs"]
    on_nuclei = paired_differences(*(points(nuclei, {"recipe": recipe}, "test", "dice") for recipe in NUCLEI))
    on_digits = paired_differences(*(points(digits, {"model": model}, "dice") for model in UNETS))
    claim = "Not in the paper: lambda layers in a U-Net improve segmentation"
    return [
        finding(claim, "cell nuclei: Dice", on_nuclei),
        finding(claim, "scattered digits, validation images: Dice", on_digits),
    ]


ATTENTION = ("sdpa", "flex-attention", "natten")


def span(ratios: Sequence[float]) -> str:
    """Format a range of ratios."""
    return f"{min(ratios):.1f} to {max(ratios):.1f} times"


def layer_costs() -> list[Finding]:
    """Compare time and memory of a layer with PyTorch's best attention and with the 3x3 convolution."""
    findings = []
    for kind, column, file in (
        ("memory", "peak_bytes", "table-4_layers_memory.json"),
        ("time", "median_seconds", "table-4_layers_time.json"),
    ):
        rows = [row for row in read(f"xeon-2-cores/tables/{file}")["rows"] if row["skip_reason"] is None]
        values = {(*row["sizes"].values(), row["candidate"]): row[column] for row in rows}
        for candidates, name, claim in (
            (
                ATTENTION,
                "attention",
                f"A lambda layer needs less {kind} than attention over the same context (Table 4)",
            ),
            (("convolution",), "a convolution", f"Not in the paper: it needs less {kind} than a 3x3 convolution"),
        ):
            best: dict[tuple[Any, ...], float] = {}
            for (*case, candidate), value in values.items():
                if candidate in candidates:
                    best[*case,] = min(value, best.get((*case,), value))
            ratios = {case: value / values[*case, "lambdanets"] for case, value in best.items()}
            small, large = (
                [r for (shape, *_), r in ratios.items() if (int(shape.split("x")[0]) > 14) is is_large]
                for is_large in (False, True)
            )
            text = f"{name} needs {span(small)} as much on maps up to 14x14, {span(large)} on 28x28 and 56x56"
            findings.append(Finding(claim, text, verdict_of_cases([r > 1 for r in ratios.values()], "cases")))
    return findings


def network_costs() -> list[Finding]:
    """Compare ResNet-50 with lambda layers and with local or axial attention in all stages."""
    rows = {(row["candidate"], row["sizes"]["pass"]): row for row in read("xeon-2-cores/tables/table-4.json")["rows"]}
    findings = []
    for layer, images in (("axial self-attention", 960), ("local self-attention 7x7", 440)):
        speeds, memory = [], []
        for phase in ("inference", "training"):
            other, ours = rows[layer, phase], rows["lambda layer", phase]
            speeds.append(statistics.median(other["seconds"]) / statistics.median(ours["seconds"]))
            memory.append(ours["peak_bytes"] / other["peak_bytes"])
        text = f"{speeds[0]:.1f} times as fast in inference, {speeds[1]:.1f} in training"
        text += f", with {memory[0]:.0%} and {memory[1]:.0%} of the memory"
        claim = f"ResNet-50 with lambda layers is faster than with {layer}: 1,160 and {images} images/s (Table 4)"
        findings.append(Finding(claim, text, verdict_of_cases([ratio > 1 for ratio in speeds], "passes")))
    return findings


def speed() -> list[Finding]:
    """Compare the speed of LambdaResNets with other families at equal published accuracy."""
    results = read("epyc-2-cores/frontier.json")
    findings = []
    for family, (low, high) in PAPER_SPEEDUPS.items():
        ratios = list(speedups(frontier(results, "training", OURS), frontier(results, "training", family)).values())
        claim = f"LambdaResNets train {low} to {high} times as fast as {family} at equal accuracy (Figure 4)"
        measured = f"{min(ratios):.2f} to {max(ratios):.2f} times as fast on this CPU"
        measured += f"; faster at {sum(ratio > 1 for ratio in ratios)} of {len(ratios)} accuracies"
        findings.append(Finding(claim, measured, verdict_of_cases([ratio >= low for ratio in ratios], "accuracies")))
    return findings


def multiplicity(findings: Sequence[Finding]) -> str:
    """State how many verdicts chance alone explains, and how many remain after Bonferroni's correction."""
    tested = [each.differences for each in findings if len(each.differences) > 2]
    decided = [values for values in tested if verdict(values) != "undecided"]
    bounds = [confidence_interval(values, 1 - 0.05 / len(tested)) for values in decided]
    remain = sum(low > 0 or high < 0 for low, high in bounds)
    by_chance = 1 - 0.95 ** len(tested)
    return (
        f"{len(tested)} rows compare an accuracy over three or more seeds: {len(decided)} of the intervals exclude 0, "
        f"{remain} after Bonferroni's\ncorrection for {len(tested)} comparisons. If no claim were true and the "
        f"rows were independent, at least one would exclude 0 with a probability of {by_chance:.0%}."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--page", type=Path, default=ROOT / "docs/results.md")
    page = parser.parse_args().page
    findings = [
        *accuracy(),
        *photographs(),
        pseudo_labels(),
        *detection(),
        *segmentation(),
        *network_costs(),
        *layer_costs(),
        *speed(),
    ]
    claims = [each.claim for each in findings]
    findings.sort(key=lambda each: claims.index(each.claim))
    table = markdown_table(Finding._fields[:3], *(each[:3] for each in findings))
    quoted = "† quoted by the paper from another paper, with another network and training"
    replace_section(page, (BEGIN, END), f"{table}\n\n{quoted}\n\n{multiplicity(findings)}\n")


if __name__ == "__main__":
    main()
