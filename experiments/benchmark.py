"""Writes the times of docs/benchmark.md and README.md, and their figures, from results of `lambdanets benchmark`.

    python experiments/benchmark.py

The results are those of `lambdanets benchmark layer`, `model` and `scaling`, in experiments/results.
"""

from pathlib import Path
from typing import Any

from pages import MACHINES, ROOT, PageScript, read_results, replace_section

from lambdanets_lab import plot_style
from lambdanets_lab.benchmark.report import draw_layer_times, draw_scaling, read_rows
from lambdanets_lab.markdown import markdown_table

FIGURES = {"layer": ("engine_layers.png", draw_layer_times), "scaling": ("engine_scaling.png", draw_scaling)}
OURS, CONVOLUTION, OTHERS = "lambdanets", "3x3 convolution", ("lambda-networks", "timm")
COLUMNS = (OURS, CONVOLUTION, *OTHERS)
README_SHAPES = ("56x56x64", "28x28x256", "14x14x512")
STAGES = {"CCCL": "c5", "CCLL": "c4, c5", "CLLL": "c3, c4, c5", "LLLL": "c2, c3, c4, c5"}

# Values of a layer by shape and candidate.
Cells = dict[str, dict[str, float]]


def read(kind: str, machine: Path = MACHINES[0]) -> dict[str, Any]:
    return read_results(machine / f"{kind}.json")


def hardware(results: dict[str, Any]) -> str:
    hardware = results["hardware"]
    return f"{hardware['processor']}, {hardware['threads']} threads, {results['started'].split()[0]}"


def cells(results: dict[str, Any], scope: int, phase: str, column: str) -> Cells:
    """Return a column of the measured rows by shape and candidate."""
    values: Cells = {}
    for row in results["rows"]:
        if row["sizes"]["scope"] == scope and row["sizes"]["pass"] == phase and row["skip_reason"] is None:
            name = CONVOLUTION if row["candidate"] == "convolution" else row["candidate"]
            values.setdefault(row["sizes"]["shape"], {})[name] = row[column]
    return values


def format_milliseconds(seconds: float) -> str:
    milliseconds = 1000 * seconds
    return f"{milliseconds:.0f}" if milliseconds >= 100 else f"{milliseconds:.1f}"


def layer_table(times: Cells) -> str:
    rows = [[shape, *(format_milliseconds(row[name]) for name in COLUMNS)] for shape, row in times.items()]
    return markdown_table(["map x channels", *COLUMNS], *rows)


def ratios_to_fastest_other(values: Cells) -> tuple[float, float]:
    """Return the smallest and the largest ratio of the best other lambda layer to ours, over all shapes."""
    ratios = [min(row[name] for name in OTHERS) / row[OURS] for row in values.values()]
    return min(ratios), max(ratios)


def compare_with_convolution(times: Cells) -> str:
    """Say at which shapes the layer takes less time than the convolution."""
    ratios = {shape: row[OURS] / row[CONVOLUTION] for shape, row in times.items()}
    faster, slower = (
        ", ".join(f"{shape} ({ratio:.2f})" for shape, ratio in ratios.items() if (ratio > 1) is is_slower)
        for is_slower in (False, True)
    )
    return (
        f"In training at scope 23 it takes less time than the convolution at {faster}, and more at {slower}; in "
        "parentheses, its time / that of the convolution."
    )


def summary(layer: dict[str, Any]) -> str:
    training, inference = (cells(layer, 23, phase, "median_seconds") for phase in ("training", "inference"))
    peaks = cells(layer, 23, "training", "peak_bytes")
    fast, fast_inference, small = (ratios_to_fastest_other(values) for values in (training, inference, peaks))
    return (
        f"- At scope 23, training is {fast[0]:.1f} to {fast[1]:.1f} times and inference {fast_inference[0]:.1f} to "
        f"{fast_inference[1]:.1f} times as fast as the fastest other\n  lambda layer, with {1 / small[1]:.2f} to "
        f"{1 / small[0]:.2f} of its memory.\n"
        f"- {compare_with_convolution(training)}"
    )


def network_table(model: dict[str, Any]) -> str:
    times = {
        (row["candidate"].removeprefix(f"{OURS} "), row["sizes"]["pass"]): row["median_seconds"]
        for row in model["rows"]
        if row["skip_reason"] is None
    }
    rows = [
        [stages, *(f"{times['resnet50', phase] / times[pattern, phase]:.2f}" for phase in ("training", "inference"))]
        for pattern, stages in STAGES.items()
    ]
    return markdown_table(["stages with lambda layers", "training", "inference"], *rows)


def machine_section(machine: Path) -> str:
    layer, model = read("layer", machine), read("model", machine)
    parts = [
        "One layer, milliseconds (median of up to 20 runs), batch 8, 16-dimensional queries, 4 heads, float32, on\n"
        f"{hardware(layer)}; [`experiments/results`](../experiments/results) has every sample."
    ]
    for scope in layer["options"]["scopes"]:
        for phase, comment in (("training", " (forward and backward)"), ("inference", "")):
            table = layer_table(cells(layer, scope, phase, "median_seconds"))
            parts += [f"Scope {scope}, {phase}{comment}:", table]
    parts += [
        summary(layer),
        "ResNet-50 with lambda layers, throughput relative to plain ResNet-50, 224 x 224 pixels, batch 8, scope 23, "
        f"float32, on\n{hardware(model)}:",
        network_table(model),
    ]
    return "\n\n".join(parts)


def page_section() -> str:
    """The tables of the first machine, and folded those of the others."""
    first, *others = MACHINES
    folded = [
        f"<details><summary>On {hardware(read('layer', machine))}</summary>\n\n{machine_section(machine)}\n\n</details>"
        for machine in others
    ]
    return "\n\n".join([machine_section(first), *folded]) + "\n"


def readme_section() -> str:
    layer = read("layer")
    times = cells(layer, 23, "training", "median_seconds")
    rows = []
    for shape in README_SHAPES:
        best = min(times[shape].values())
        values = [f"{1000 * times[shape][name]:.0f}" for name in COLUMNS]
        bold = zip(COLUMNS, values, strict=True)
        rows.append([shape, *(f"**{value}**" if times[shape][name] == best else value for name, value in bold)])
    low, high = ratios_to_fastest_other(times)
    return (
        "One layer, forward and backward, in milliseconds (median of up to 20 runs): batch 8, scope 23, 16-dimensional "
        f"queries, 4 heads, float32, on {hardware(layer)}:\n\n{markdown_table(['map x channels', *COLUMNS], *rows)}\n\n"
        f"In training at scope 23 the layer is {low:.1f} to {high:.1f} times as fast as the faster of lambda-networks "
        f"and timm. {compare_with_convolution(times).replace('In training at scope 23 it', 'It')} "
        "[Benchmarks](docs/benchmark.md) has all shapes, memory and whole networks; [Algorithms](docs/engine.md) "
        "explains why.\n"
    )


def main() -> None:
    parser = PageScript(__doc__, "benchmark.md")
    parser.add_argument("--readme", type=Path, default=ROOT / "README.md")
    options = parser.parse_args()
    replace_section(options.page, "benchmark", page_section())
    replace_section(options.readme, "benchmark", readme_section())
    for kind, (name, draw) in FIGURES.items():
        plot_style.save(draw(read_rows(read(kind))), options.page.with_name(name))


if __name__ == "__main__":
    main()
