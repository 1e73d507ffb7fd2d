"""Imports, each in its own process, and the public names."""

import ast
import importlib
import inspect
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest

import lambdanets

# Runs each argument as Python code in a fork of a process that has imported torch and torchvision, which are slow.
SCRIPT = """
import os, sys, torch, torchvision
for code in sys.argv[1:]:
    if os.fork() == 0:
        exec(code)
        sys.stdout.flush()
        os._exit(0)
    assert os.wait()[1] == 0
"""
IMPORT_ORDERS = (
    "import lambdanets, timm",
    "import timm, lambdanets",
    "import lambdanets.models, timm",
    "from lambdanets import create_model; import timm",
    "import importlib.util, lambdanets; importlib.util.find_spec('timm'); import timm",
)


def run(*arguments):
    return subprocess.run(
        [sys.executable, "-c", *arguments], capture_output=True, text=True, check=True
    ).stdout.splitlines()


def test_importing_the_package_does_not_import_torch():
    code = "import sys, lambdanets; dir(lambdanets); print(lambdanets.__version__, *sys.modules)"
    heavy = {"torch", "numpy", "timm", "torchvision", "lightning", "matplotlib", "sklearn", "tyro"}
    assert not heavy & set(run(code)[0].split())


def test_importing_a_layer_imports_torch_but_not_timm():
    code = "import sys; from lambdanets import LambdaLayer2d; import lambdanets as ln; "
    code += "ln.plan, ln.ops, ln.layers; print(*sys.modules)"
    loaded = set(run(code)[0].split())
    assert "torch" in loaded
    assert not {"timm", "torchvision", "lightning", "matplotlib", "sklearn", "tyro"} & loaded


@pytest.mark.skipif(sys.platform != "linux", reason="forking a process with threads is safe only on Linux")
def test_models_are_registered_with_timm_in_any_import_order():
    check = "print(timm.is_model('lambda_resnet50'), timm.is_model('resnet50'))"
    assert run(SCRIPT, *(f"{imports}; {check}" for imports in IMPORT_ORDERS)) == ["True True"] * len(IMPORT_ORDERS)


LAYERS = {"LambdaLayer", "LambdaLayer1d", "LambdaLayer2d", "LambdaLayer3d", "RelativeEmbedding"}
DECODING = {"decode_step", "start_decoding"}
OPERATIONS = {"lambda_interaction", "plan", "position_interaction"}
MODELS = {"create_model", "list_models", "mask_rcnn", "replace_convolutions"}
INFERENCE = {"Classifier", "Detector", "Segmenter", "evaluate", "export", "load"}
ADOPTION = {"adopt", "foreign_state_dict"}
INTERPRETABILITY = {"attention_map", "explain"}
HUB = {"push_to_hub", "save_pretrained"}
PACKAGES = {"layers", "models", "ops"}
REFERENCE = (Path(__file__).parents[1] / "docs/reference.md").read_text(encoding="utf-8")


def test_public_names_are_frozen():
    # a name that is added here can never be removed
    expected = LAYERS | DECODING | OPERATIONS | MODELS | ADOPTION | HUB | INFERENCE | INTERPRETABILITY | PACKAGES
    assert set(lambdanets.__all__) == expected
    assert set(lambdanets.__all__) <= set(dir(lambdanets))
    assert lambdanets.LambdaLayer2d is importlib.import_module("lambdanets.layers").LambdaLayer2d


@pytest.mark.parametrize("name", lambdanets.__all__)
def test_every_public_name_has_its_own_docstring(name):
    doc = getattr(lambdanets, name).__doc__
    assert doc
    assert not doc.startswith(f"{name}(")  # the default docstring of a dataclass


def test_reference_page_lists_exactly_the_public_names():
    assert set(re.findall(r"^### `ln\.(\w+)[`(]", REFERENCE, re.MULTILINE)) == set(lambdanets.__all__)


@pytest.mark.parametrize("package", ["layers", "models", "ops"])
def test_reference_page_lists_the_names_of_each_package(package):
    public = set(importlib.import_module(f"lambdanets.{package}").__all__)
    assert set(re.findall(rf"`ln\.{package}\.(\w+)[`(]", REFERENCE)) == public - set(lambdanets.__all__)


SIGNATURES = re.findall(r"`ln\.((?:\w+\.)?\w+)\(([^`]*)\)`", REFERENCE)


@pytest.mark.parametrize(("name", "parameters"), SIGNATURES, ids=[name for name, _ in SIGNATURES])
def test_signatures_on_the_reference_page_match_the_code(name, parameters):
    function: object = lambdanets
    for part in name.split("."):
        function = getattr(function, part)
    signature = inspect.signature(function)
    unannotated = inspect.Signature(
        [parameter.replace(annotation=inspect.Parameter.empty) for parameter in signature.parameters.values()]
    )
    assert f"({parameters})" == str(unannotated).replace("'", '"')


def test_a_layer_and_an_operation_can_be_pickled():
    layer = pickle.loads(pickle.dumps(lambdanets.LambdaLayer2d(8, scope=3, heads=2)))
    assert isinstance(layer, lambdanets.LambdaLayer2d)
    assert pickle.loads(pickle.dumps(lambdanets.lambda_interaction)) is lambdanets.lambda_interaction


def test_type_checkers_see_every_public_name():
    tree = ast.parse(Path(lambdanets.__file__).read_text(encoding="utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    imported = {alias.name for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert imported == set(lambdanets.__all__)


def test_unknown_name_raises_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        lambdanets.nothing  # noqa: B018
