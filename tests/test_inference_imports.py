import subprocess
import sys

import pytest

from lambdanets.inference.weights import save_weights
from lambdanets.training.detection.model import build_model, make_model_card
from training.detection.tiny_detection import tiny_recipe
from training.teachers import write_teacher

MODULES = [
    "data.shards.images",
    *(f"inference.{name}" for name in ("evaluation", "confusion", "detection_figures", "segmentation_figures")),
    *(f"inference.{name}" for name in ("detection", "coco_results", "label_images")),  # of `detect predict`
]
SCRIPT = f"""
import sys, numpy as np, lambdanets as ln
for path in sys.argv[1:]:
    ln.load(path).predict(np.zeros((9, 9, 3), np.uint8))
print(*sys.modules)
import {", ".join(f"lambdanets.{module}" for module in MODULES)}
print(*sys.modules)
"""


def modules_in(modules, *packages):
    return [module for module in modules if module.startswith(packages)]


@pytest.mark.slow
def test_inference_imports_neither_training_nor_plotting_libraries(tmp_path):
    recipe, detector = tiny_recipe(tmp_path / "digits"), tmp_path / "weights.safetensors"
    save_weights(
        detector,
        build_model(recipe, ["cup"]),
        make_model_card(recipe, ["cup"], category_ids=[1]).to_json(recipe.fields()),
    )
    script = [sys.executable, "-c", SCRIPT, str(write_teacher(tmp_path / "classifier")), str(detector)]
    output = subprocess.run(script, capture_output=True, text=True, check=True).stdout
    after_predict, after_inference = (line.split() for line in output.splitlines())
    assert "lambdanets.inference.detector" in after_predict
    assert modules_in(after_predict, "matplotlib", "pandas", "torchmetrics", "sklearn", "duckdb", "pyarrow") == []
    assert modules_in(after_inference, "lightning", "lambdanets.training", "faster_coco_eval") == []
