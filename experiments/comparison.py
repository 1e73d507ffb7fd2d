"""Writes the tables and figures of docs/comparison.md from the results of `lambdanets compare`.

python experiments/comparison.py measure [--out FILE]    time and memory of a training step with each mixer
python experiments/comparison.py [--page PAGE]           write the tables and figures from experiments/results
"""

import functools
from pathlib import Path
from typing import Any

import torch
from frontier import train_step
from pages import RESULTS, Script, replace_section

from lambdanets import create_model
from lambdanets.allocator import keep_freed_memory
from lambdanets_lab.benchmark.measurement import peak_bytes
from lambdanets_lab.markdown import markdown_table
from lambdanets_lab.results import read_results, write_results
from lambdanets_lab.studies.catalog import MODEL, MODEL_OPTIONS, STUDIES
from lambdanets_lab.studies.results import Comparison, Row, describe_setup, draw_all, read_comparison, study_rows, table
from lambdanets_lab.timing import time_in_turn

FASHION_MNIST = RESULTS / "xeon-2-cores/fashion_mnist.json"
CIFAR10 = RESULTS / "epyc-2-cores/cifar10"  # results.json of each command
BATCH = (128, 3, 32, 32)  # of the CIFAR-10 recipe


def read_cifar10() -> Comparison:
    return read_comparison(*sorted(CIFAR10.glob("*.json")))


def measure(out: Path, *, repeats: int = 20, seconds: float = 4) -> None:
    """Measure quartiles of the seconds and the peak memory of a training step with each variant, timed in turn."""
    runs: dict[str, Any] = {}
    results: dict[str, dict[str, Any]] = {}
    images = torch.randn(BATCH).contiguous(memory_format=torch.channels_last)
    for variant in {v.name: v for study in STUDIES.values() for v in study.variants.values()}.values():
        torch.manual_seed(0)
        options = MODEL_OPTIONS | variant.options
        network = create_model(MODEL, num_classes=10, **options).to(memory_format=torch.channels_last)
        run = runs[variant.name] = functools.partial(train_step, network.train(), images)
        run()
        results[variant.name] = {"peak_bytes": peak_bytes(run, torch.device("cpu"))}
    for name, times in time_in_turn(runs, repeats=repeats, seconds=seconds, on_progress=print).items():
        results[name]["seconds"] = times
    write_results(out, {"variants": results, "batch": BATCH})


def steps_table(comparisons: dict[str, Comparison], steps: dict[str, Any]) -> str:
    """Time and memory of a training step beside the mean top-1 on each data set, fastest first."""
    rows_by_data: dict[str, dict[str, Row]] = {data: {} for data in comparisons}
    labels = {}
    for data, comparison in comparisons.items():
        for study, prefix in (("content_position", "lambda, "), ("mixers", "")):
            for row in study_rows(study, comparison):
                rows_by_data[data][row.variant.name] = row
                labels[row.variant.name] = prefix + row.label
    baseline = 1e3 * steps["variants"]["convolution"]["seconds"]["median"]
    table_rows = []
    for name in sorted(labels, key=lambda name: steps["variants"][name]["seconds"]["median"]):
        step = steps["variants"][name]
        low, median, high = (1e3 * step["seconds"][key] for key in ("lower_quartile", "median", "upper_quartile"))
        time = [f"{median:.0f} ({low:.0f} to {high:.0f})", f"{median / baseline:.2f}"]
        memory = f"{step['peak_bytes'] / steps['batch'][0] / 2**20:.2f}"
        top1 = [format_top1(rows[name]) if name in rows else "" for rows in rows_by_data.values()]
        table_rows.append([labels[name], *time, memory, *top1])
    header = ["variant", "training step, ms (quartiles)", "relative to convolution", "memory, MiB per image"]
    return markdown_table([*header, *(f"top-1, {data}" for data in comparisons)], *table_rows)


def format_top1(row: Row) -> str:
    """The mean over the seeds, in percent, marked if there is only one."""
    return f"{row.mean:.1f}{' (one seed)' if len(row.top1) == 1 else ''}"


def sections(fashion_mnist: Comparison, cifar10: Comparison, steps: dict[str, Any]) -> dict[str, str]:
    """The text of each section of docs/comparison.md by name: tables, and the setup of the runs on Fashion-MNIST."""
    written = {"setup": describe_setup(fashion_mnist)}
    for data, results in (("cifar10", cifar10), ("fashion_mnist", fashion_mnist)):
        for study in results.studies:
            if len(study_rows(study, results)) > 1:
                written[f"{data} {study}"] = table(study, results)
    return written | {"steps": steps_table({"CIFAR-10": cifar10, "Fashion-MNIST": fashion_mnist}, steps)}


def main() -> None:
    parser = Script(__doc__, "comparison.md", RESULTS / "xeon-2-cores/mixer_steps.json")
    parser.add_argument("action", choices=["measure", "write"], nargs="?", default="write")
    options = parser.parse_args()
    if options.action == "measure":
        keep_freed_memory()
        measure(options.out)
        return
    fashion_mnist, cifar10 = read_comparison(FASHION_MNIST), read_cifar10()
    for name, text in sections(fashion_mnist, cifar10, read_results(options.out)).items():
        replace_section(options.page, f"comparison {name}", text + "\n")
    figures = options.page.with_name("comparison")
    draw_all(fashion_mnist, figures)
    draw_all(cifar10, figures / "cifar10")


if __name__ == "__main__":
    main()
