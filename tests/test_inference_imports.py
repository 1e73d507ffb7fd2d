import subprocess
import sys

import pytest

MODULES = ["lambdanets.inference.classification", "lambdanets.inference.detection", "lambdanets.data.shards.images"]


@pytest.mark.parametrize("module", MODULES)
def test_inference_and_data_import_neither_lightning_nor_training(module):
    script = (
        f"import sys, {module}; print([n for n in sys.modules if n.startswith(('lightning', 'lambdanets.training'))])"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
