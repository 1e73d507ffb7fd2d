"""Without the packages of extras, the core works, and other commands print which extra to install."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from PIL import Image

from lambdanets.errors import EXTRAS

# Runs without the packages of extras: the Python API, `lambdanets predict`, and other commands.
CORE = """
import json, sys
packages, run, image, commands = json.loads(sys.argv[1])
sys.modules.update(dict.fromkeys(packages))  # importing them raises ModuleNotFoundError
import numpy, PIL.Image, torch, timm, lambdanets as ln, lambdanets.inference.figures as figures
from lambdanets.cli import main
model = ln.create_model("lambda_resnet20_small", num_classes=3).eval()
assert model(torch.randn(2, 3, 32, 32)).shape == (2, 3)
layer, maps = ln.LambdaLayer2d(8, scope=3), torch.randn(2, 8, 4, 4)
assert torch.compile(layer, backend="eager")(maps).shape == maps.shape
assert torch.export.export(layer, (maps,)).module()(maps).shape == maps.shape
make_layer = lambda conv: ln.LambdaLayer2d(conv.in_channels, conv.out_channels, stride=conv.stride[0])
assert ln.replace_convolutions(timm.create_model("resnet10t"), make_layer, "layer4.*.conv2")
assert ln.load(run).predict(image)
assert main(["predict", run, image]) == 0
assert figures.overlay_classes(PIL.Image.open(image), numpy.eye(8, dtype=numpy.uint8)).size == (8, 8)  # of a segmenter
for command in commands:
    print("exit code", main(command))
"""


@pytest.mark.slow
def test_core_works_without_extras_and_commands_print_the_missing_extra(quick_run, tmp_path):
    Image.new("L", (8, 8)).save(tmp_path / "image.png")
    commands = [
        ["evaluate", str(quick_run)],
        ["train", "digits", "--run", "run"],
        ["compare", "mixers", "--out", "study"],
        ["tables"],
        ["benchmark", "layer", "--out", "times"],
        ["pseudo-label", str(quick_run), "shards", "labels"],
        ["train", "scattered_digits", "--run", "detector"],
        ["train", "digit_masks", "--run", "segmenter"],
        ["export", str(quick_run), "--out", "model.onnx"],
        ["export", str(quick_run), "--to", "openvino", "--out", "model.xml"],
        ["demo", str(quick_run), "--port", "0"],
    ]
    argument = json.dumps([list(EXTRAS), str(quick_run), "image.png", commands])
    process = subprocess.run(
        [sys.executable, "-c", CORE, argument], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr
    assert re.findall(r"exit code (\d+)", process.stdout) == ["2"] * len(commands)
    errors = [line for line in process.stderr.splitlines() if line.startswith("lambdanets: ")]
    message = r'lambdanets: \w+ is not installed; install it with: pip install "lambdanets\[(\w+)\]"'
    extras = [match[1] for match in map(re.compile(message).fullmatch, errors) if match]
    assert extras == ["train"] * 8 + ["export"] * 2 + ["demo"], errors
    assert sorted(path.name for path in tmp_path.iterdir()) == ["image.png", "predictions.jsonl"]


def test_extra_in_each_error_message_installs_the_package():
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    distribution_names = {"sklearn": "scikit-learn", "skimage": "scikit-image"}
    for package, extra in EXTRAS.items():
        requirements = " ".join(project["optional-dependencies"][extra])
        assert distribution_names.get(package, package).replace("_", "-") in requirements
        assert package not in " ".join(project["dependencies"])
