"""What importing the package does, each in a process of its own."""

import subprocess
import sys

import pytest

import lambdanets


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_importing_the_package_leaves_everything_but_torch_asleep():
    heavy = {"timm", "torchvision", "lightning", "matplotlib", "sklearn", "tyro"}
    code = "import sys, torch; before = set(sys.modules); import lambdanets; print(*(set(sys.modules) - before))"
    assert not heavy & set(run(code).split())


def test_importing_the_package_takes_less_than_half_a_second_beyond_torch():
    code = "import torch, time; t = time.perf_counter(); import lambdanets; print(time.perf_counter() - t)"
    assert min(float(run(code)) for _ in range(2)) < 0.5


@pytest.mark.parametrize(
    "imports", ["import lambdanets, timm", "import timm, lambdanets", "import lambdanets.models, timm"]
)
def test_timm_finds_the_models_in_whichever_order_the_two_are_imported(imports):
    assert run(f"{imports}; print(timm.is_model('lambda_resnet50'), timm.is_model('resnet50'))") == "True True"


def test_every_public_name_is_there():
    assert set(lambdanets.__all__) <= set(dir(lambdanets))
    assert all(getattr(lambdanets, name).__doc__ for name in lambdanets.__all__)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        lambdanets.nothing  # noqa: B018
