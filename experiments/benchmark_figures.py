"""Draws docs/engine_layers.png and docs/engine_scaling.png from the committed results of `lambdanets benchmark`."""

import json
import tempfile
from pathlib import Path

from lambdanets.evidence.benchmark.options import KINDS
from lambdanets.evidence.benchmark.plots import draw
from lambdanets.evidence.benchmark.report import Report, read_rows

ROOT = Path(__file__).parents[1]

for kind, name in (("layer", "engine_layers"), ("scaling", "engine_scaling")):
    content = json.loads((ROOT / f"experiments/results/xeon-2-cores/{kind}.json").read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        draw(Report(kind, KINDS[kind](), content["device"], content["started"], read_rows(content)), Path(folder))
        (ROOT / f"docs/{name}.png").write_bytes((Path(folder) / f"{kind}.png").read_bytes())
