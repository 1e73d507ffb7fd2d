import subprocess
import sys

import pytest

from training.teaching import write_teacher

MODULES = [
    *("lambdanets.inference.classification", "lambdanets.inference.detection", "lambdanets.data.shards.images"),
    *("lambdanets.inference.evaluation", "lambdanets.inference.detection_figures", "lambdanets.inference.confusion"),
]
PREDICT = """
import sys, numpy as np, lambdanets as ln
model = ln.load(sys.argv[1])
model.predict(np.zeros((9, 9, 3), np.uint8))
heavy = ("lightning", "matplotlib", "pandas", "torchmetrics", "sklearn", "duckdb", "pyarrow", "lambdanets.training")
print([name for name in heavy if name in sys.modules])
"""


@pytest.mark.parametrize("module", MODULES)
def test_inference_and_data_import_neither_lightning_nor_training(module):
    script = (
        f"import sys, {module}; print([n for n in sys.modules if n.startswith(('lightning', 'lambdanets.training'))])"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


@pytest.mark.parametrize("task", ["classification", "detection"])
def test_predicting_imports_no_library_of_training_or_figures(task, tmp_path, request):
    run = (
        write_teacher(tmp_path / "run")
        if task == "classification"
        else request.getfixturevalue("trained_detector") / "run"
    )
    script = [sys.executable, "-c", PREDICT, str(run)]
    done = subprocess.run(script, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
