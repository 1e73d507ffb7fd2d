"""The kinds of benchmark: what each measures and draws."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from matplotlib.figure import Figure

from lambdanets_lab.benchmark import layer, model, plots, scaling, tables
from lambdanets_lab.benchmark.measurement import Case, Row


@dataclass(frozen=True)
class Kind:
    """A kind of benchmark.

    make_cases: makes the cases from options, device and the rows measured so far. candidates: names that
    --candidates accepts. draw: plots all rows, or returns None if there is nothing to plot.
    """

    make_cases: Callable[[Any, torch.device, Sequence[Row]], list[Case]]
    candidates: Sequence[str]
    draw: Callable[[Sequence[Row]], Figure | None] = lambda rows: None
    images_per_second: bool = False


KINDS = {
    "layer": Kind(layer.make_cases, layer.NAMES, plots.draw_layer_times),
    "model": Kind(model.make_cases, model.NAMES, images_per_second=True),
    "scaling": Kind(scaling.make_cases, scaling.NAMES, plots.draw_scaling),
    # `lambdanets tables --measured` shows the results and draws their figures
    "tables": Kind(tables.make_cases, tables.NAMES, images_per_second=True),
}
