"""The steps of CONTRIBUTING.md, followed in a copy of the package."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


@pytest.fixture
def package(tmp_path):
    """A copy of the package, without what is not code."""
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    return tmp_path / "src/lambdanets"


def add_line(path, before, line):
    text = path.read_text(encoding="utf-8")
    assert before in text
    path.write_text(text.replace(before, line + before, 1), encoding="utf-8")


def run(package, *arguments):
    environment = os.environ | {"PYTHONPATH": str(package.parent)}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, env=environment, cwd=package.parents[1], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def steps_of(title):
    return PAGE.partition(f"## To add {title}\n")[2].partition("\n## ")[0]


def test_an_algorithm_is_a_file_and_a_line(package):
    steps = steps_of("an algorithm for the position interaction")
    assert "ops/position/NAME.py" in steps
    assert "ops/position/plan.py" in steps
    (package / "ops/position/all_pairs.py").write_text(
        "from lambdanets.ops.position.lambda_order import LambdaOrder\n\n\n"
        "class AllPairs(LambdaOrder):\n    name = 'all_pairs'\n"
    )
    plan = package / "ops/position/plan.py"
    add_line(plan, "from lambdanets.ops.position.fourier", "from lambdanets.ops.position.all_pairs import AllPairs\n")
    add_line(plan, "        ValueAxisConvolution(),\n", "        AllPairs(),\n")
    script = """
import torch, lambdanets as ln
x = torch.randn(2, 3, 12, 4), torch.randn(3, 5, 4), torch.randn(2, 12, 6), (3, 4)
one, other = (ln.position_interaction(*x, algorithm=name) for name in ("all_pairs", "query_order"))
torch.testing.assert_close(one, other)
print(ln.plan(*x))
"""
    assert "all_pairs" in run(package, "-c", script)


def test_a_mixer_is_a_file_and_a_line(package):
    steps = steps_of("a mixer")
    assert "layers/baselines/NAME.py" in steps
    assert "layers/baselines/__init__.py" in steps
    (package / "layers/baselines/pointwise.py").write_text(
        "from torch import nn\n\n\nclass Pointwise(nn.Conv2d):\n"
        "    def __init__(self, dim, dim_out=None, *, stride=1, device=None, dtype=None):\n"
        "        super().__init__(dim, dim_out or dim, 1, stride=stride, device=device, dtype=dtype)\n"
    )
    registry = package / "layers/baselines/__init__.py"
    add_line(
        registry, "from lambdanets.layers.lambda_layer", "from lambdanets.layers.baselines.pointwise import Pointwise\n"
    )
    add_line(registry, '    "lambda": LambdaLayer2d,\n', '    "pointwise": Pointwise,\n')
    script = """
import torch, lambdanets as ln
model = ln.create_model("resnet20_mixer_small", mixer="pointwise", num_classes=3)
print(tuple(model(torch.randn(2, 3, 32, 32)).shape))
"""
    assert run(package, "-c", script).strip() == "(2, 3)"


def test_a_recipe_is_a_file(package):
    steps = steps_of("a recipe")
    assert "recipes/NAME.py" in steps
    (package / "recipes/wide_digits.py").write_text(
        '"""Scanned digits in larger batches: nothing is promised.\n\nRun: lambdanets train wide_digits\n"""\n\n'
        "from dataclasses import replace\n\nfrom lambdanets.recipes.digits import recipe as digits\n\n"
        "recipe = replace(digits, batch_size=32)\n"
    )
    said = run(package, "-m", "lambdanets", "train", "wide_digits", "--help")
    assert "wide_digits: Scanned digits in larger batches" in said
    assert "(default: 32)" in said


def test_a_row_of_a_table_is_a_line_and_its_figures(package):
    steps = steps_of("a row of the paper's tables")
    assert "evidence/tables/rows.py" in steps
    assert "paper.json" in steps
    add_line(
        package / "evidence/tables/rows.py",
        '        "conv (He et al. 2016, author run)": Build("resnet50"),\n',
        '        "another": Build("resnet18"),\n',
    )
    path = package / "evidence/tables/paper.json"
    figure = '{"table": "3", "row": "another", "column": "params", "value": 11.7, "unit": "M", "precision": 0.1}'
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace('"figures": [', f'"figures": [{figure},', 1), encoding="utf-8")
    script = """
from lambdanets.evidence.tables.paper import numbers_of
from lambdanets.evidence.tables.verdicts import compare
print(*(line.verdict for line in compare([figure for figure in numbers_of(["3"]) if figure.row == "another"], {})))
"""
    assert run(package, "-c", script).strip() == "match"
