"""The kinds of benchmark: what each measures, aggregates and draws."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from matplotlib.figure import Figure

from lambdanets_lab.benchmark import layer, model, plots, scaling, tables
from lambdanets_lab.benchmark.aggregates import fit_exponents, mean_ratios, relative_throughput
from lambdanets_lab.benchmark.measurement import Case, Row


@dataclass(frozen=True)
class Kind:
    """A kind of benchmark.

    make_cases: makes the cases from options, device and the rows measured so far. candidates: names that
    --candidates accepts. aggregate, draw: summarize and plot all rows; draw returns None if there is nothing to plot.
    """

    make_cases: Callable[[Any, torch.device, Sequence[Row]], list[Case]]
    candidates: Sequence[str]
    aggregate: Callable[[Sequence[Row]], list[dict[str, Any]]]
    draw: Callable[[Sequence[Row]], Figure | None]
    images_per_second: bool = False


KINDS = {
    "layer": Kind(layer.make_cases, layer.NAMES, mean_ratios, plots.draw_layer_times),
    "model": Kind(model.make_cases, model.NAMES, relative_throughput, plots.draw_throughput, images_per_second=True),
    "scaling": Kind(scaling.make_cases, scaling.NAMES, fit_exponents, plots.draw_scaling),
    # `lambdanets tables --measured` shows the results and draws their figures
    "tables": Kind(tables.make_cases, tables.NAMES, lambda rows: [], lambda rows: None, images_per_second=True),
}
