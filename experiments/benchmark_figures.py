"""Draws docs/engine_layers.png and docs/engine_scaling.png from the committed results of `lambdanets benchmark`."""

import json
from pathlib import Path

from lambdanets.evidence import plot_style
from lambdanets.evidence.benchmark.kinds import KINDS
from lambdanets.evidence.benchmark.report import read_rows

ROOT = Path(__file__).parents[1]

for kind, name in (("layer", "engine_layers"), ("scaling", "engine_scaling")):
    content = json.loads((ROOT / f"experiments/results/xeon-2-cores/{kind}.json").read_text(encoding="utf-8"))
    figure = KINDS[kind].draw(read_rows(content))
    assert figure is not None
    plot_style.save(figure, ROOT / f"docs/{name}.png")
