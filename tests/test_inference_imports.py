import subprocess
import sys

import pytest

from lambdanets.inference.weights import save_weights
from lambdanets.training.detection.model import build_model, describe
from training.detection.tiny_detection import tiny_recipe
from training.teachers import write_teacher

MODULES = ["data.shards.images", *(f"inference.{name}" for name in ("evaluation", "confusion", "detection_figures"))]
IMPORT = f"""
import sys, {", ".join(f"lambdanets.{module}" for module in MODULES)}
print([name for name in sys.modules if name.startswith(("lightning", "lambdanets.training"))])
"""
PREDICT = """
import sys, numpy as np, lambdanets as ln
model = ln.load(sys.argv[1])
model.predict(np.zeros((9, 9, 3), np.uint8))
heavy = ("lightning", "matplotlib", "pandas", "torchmetrics", "sklearn", "duckdb", "pyarrow", "lambdanets.training")
print([name for name in heavy if name in sys.modules])
"""


def output_of(*arguments):
    script = [sys.executable, "-c", *map(str, arguments)]
    return subprocess.run(script, capture_output=True, text=True, check=True).stdout.strip()


def test_inference_and_data_import_neither_lightning_nor_training():
    assert output_of(IMPORT) == "[]"


@pytest.mark.parametrize("task", ["classification", "detection"])
def test_predict_imports_neither_training_nor_plotting_libraries(task, tmp_path):
    if task == "classification":
        run = write_teacher(tmp_path / "run")
    else:
        recipe, run = tiny_recipe(tmp_path / "digits"), tmp_path / "weights.safetensors"
        save_weights(run, build_model(recipe, ["cup"]), describe(recipe, ["cup"], category_ids=[1]))
    assert output_of(PREDICT, run) == "[]"
