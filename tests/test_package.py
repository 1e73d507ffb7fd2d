"""Imports, each in its own process, and the public names."""

import ast
import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

import lambdanets
from lambdanets.inference.model_card import DetectorCard, make_card
from lambdanets.models.weights import save_weights
from lambdanets.training.initial_weights import build_model
from training.detection.tiny_detection import tiny_recipe
from training.teachers import write_teacher

# Runs code in forks of one process, after imports that are slow. The output of fork N is in the file N.
SCRIPT = """
import json, os, sys
for number, (imports, code, *arguments) in enumerate(json.loads(sys.argv[1])):
    exec(imports)
    if os.fork() == 0:
        sys.argv, sys.stdout = ["-c", *arguments], open(str(number), "w")
        exec(code, {})
        sys.stdout.flush()
        os._exit(0)
    assert os.wait()[1] == 0, code
"""
PACKAGE = "import sys, lambdanets; dir(lambdanets); print(lambdanets.__version__, *sys.modules)"
LAYER = """
import sys
from lambdanets import LambdaLayer2d
import lambdanets as ln
ln.plan, ln.ops, ln.layers
print(*sys.modules)
"""
IMPORT_ORDERS = (
    "import lambdanets, timm",
    "import timm, lambdanets",
    "import importlib.util, lambdanets; importlib.util.find_spec('timm'); import timm",
)
REGISTERED = "print(timm.is_model('lambda_resnet50'), timm.is_model('resnet50'))"
MODULES = ("data.shards", "inference.predictor", "inference.figures", "inference.detections")
PREDICTIONS = f"""
import sys, numpy as np, lambdanets as ln
for path in sys.argv[1:]:
    ln.load(path).predict(np.zeros((9, 9, 3), np.uint8))
print(*sys.modules)
import {", ".join(f"lambdanets.{module}" for module in MODULES)}
print(*sys.modules)
"""


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    """The lines that PACKAGE, LAYER, each of IMPORT_ORDERS and PREDICTIONS print, each in a new process."""
    folder = tmp_path_factory.mktemp("imports")
    recipe, detector = tiny_recipe(folder / "digits"), folder / "weights.safetensors"
    card = make_card(DetectorCard, recipe, ["cup"], category_ids=[1]).to_json()
    save_weights(detector, build_model(recipe, 1), card)
    forks = [("", PACKAGE), ("import torch", LAYER)]
    forks += [("import torchvision", f"{imports}; {REGISTERED}") for imports in IMPORT_ORDERS]
    forks.append(("", PREDICTIONS, str(write_teacher(folder / "classifier")), str(detector)))
    if sys.platform != "linux":  # where forking a process with threads is not safe
        runs = [[sys.executable, "-c", f"{imports}\n{code}", *arguments] for imports, code, *arguments in forks]
        return [subprocess.run(run, capture_output=True, text=True, check=True).stdout.splitlines() for run in runs]
    subprocess.run([sys.executable, "-c", SCRIPT, json.dumps(forks)], cwd=folder, check=True)
    return [(folder / str(number)).read_text().splitlines() for number in range(len(forks))]


def test_importing_the_package_does_not_import_torch(outputs):
    heavy = {"torch", "numpy", "timm", "torchvision", "lightning", "matplotlib", "sklearn", "pydantic"}
    assert not heavy & set(outputs[0][0].split())


def test_importing_a_layer_imports_neither_timm_nor_the_compiler(outputs):
    loaded = set(outputs[1][0].split())
    assert "lambdanets.layers" in loaded
    assert not {"timm", "torchvision", "lightning", "matplotlib", "sklearn", "torch._dynamo"} & loaded


def test_models_are_registered_with_timm_in_any_import_order(outputs):
    assert outputs[2:-1] == [["True True"]] * len(IMPORT_ORDERS)


def modules_in(modules, *packages):
    return [module for module in modules if module.startswith(packages)]


def test_inference_imports_neither_training_nor_plotting_libraries(outputs):
    after_predict, after_inference = (line.split() for line in outputs[-1])
    assert "lambdanets.inference.detector" in after_predict
    assert modules_in(after_predict, "matplotlib", "pandas", "torchmetrics", "sklearn", "pyarrow") == []
    assert modules_in(after_inference, "lightning", "lambdanets.training", "faster_coco_eval") == []


def test_public_names_are_frozen():
    # a name that is added here can never be removed
    expected = (
        "Classifier Detector LambdaLayer LambdaLayer1d LambdaLayer2d LambdaLayer3d RelativeEmbedding Segmenter adopt "
        "attention_map create_model decode_step evaluate explain export foreign_state_dict lambda_interaction layers "
        "list_models load mask_rcnn models ops plan position_interaction push_to_hub replace_convolutions "
        "save_pretrained start_decoding"
    )
    assert lambdanets.__all__ == expected.split()
    assert set(lambdanets.__all__) <= set(dir(lambdanets))
    assert lambdanets.LambdaLayer2d is importlib.import_module("lambdanets.layers").LambdaLayer2d


def test_type_checkers_see_every_public_name():
    tree = ast.parse(Path(lambdanets.__file__).read_text(encoding="utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    imported = {alias.name for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert imported == set(lambdanets.__all__)
