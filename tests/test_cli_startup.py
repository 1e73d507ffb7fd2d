"""Help and usage errors do not import PyTorch; the content of the help."""

import json
import subprocess
import sys

import pytest

from lambdanets.cli import COMMANDS

HEAVY = ("torch", "torchvision", "timm", "lightning", "numpy", "matplotlib", "pyarrow")
HELP_COMMANDS = [
    *COMMANDS,
    *(f"benchmark {kind}" for kind in ("layer", "model", "scaling", "tables")),
    *("train cifar10", "train nuclei", "pseudo-label select", "compare scope"),
]
INVALID_COMMANDS = [
    *("trian", "--verison", "train digits --epoch 3", "train digits --epochs x", "train nothing"),
    *("train regions --epoch 3", "predict a b --batch-size 0", "evaluate a --dta b"),
    *("shard a b --threads x", "pseudo-label a b", "compare scop", "compare scope --variants 3"),
    *("tables 99", "benchmark layr", "kernels --x"),
]
SCRIPT = """
import contextlib, io, json, sys
from lambdanets.cli import main

results = {}
for line in json.load(sys.stdin):
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        try:
            code = main(line.split())
        except SystemExit as error:
            code = error.code or 0
    results[line] = [code, output.getvalue(), [name for name in HEAVY if name in sys.modules]]
print(json.dumps(results))
"""


def run(lines, folder=None):
    """Exit code, output and heavy modules imported so far, for each command line, all run in one process."""
    command = [sys.executable, "-c", f"HEAVY = {HEAVY!r}\n{SCRIPT}"]
    process = subprocess.run(command, input=json.dumps(lines), capture_output=True, text=True, cwd=folder)
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)


@pytest.fixture(scope="module")
def results():
    return run(["", "--help", "--version", *(f"{command} --help" for command in HELP_COMMANDS), *INVALID_COMMANDS])


def test_help_and_usage_errors_do_not_import_pytorch(results):
    assert {line: heavy for line, (_, _, heavy) in results.items() if heavy} == {}


def test_help_exits_with_0_and_usage_errors_with_2_in_one_line(results):
    assert {line: code for line, (code, _, _) in results.items() if line not in INVALID_COMMANDS and code} == {}
    for line in INVALID_COMMANDS:
        code, output, _ = results[line]
        assert (code, output.count("\n")) == (2, 1), output
        assert output.startswith("lambdanets: ")


def test_help_shows_recipes_arguments_groups_and_defaults(results):
    for text in ("usage: lambdanets train [RECIPE] ", "  cifar10: ", "    image_folder_50\n", "--epochs EPOCHS"):
        assert text in results["train --help"][1]
    assert "usage: lambdanets predict MODEL IMAGES... " in results["predict --help"][1]
    for command in ("adopt", "evaluate", "explain", "export"):
        assert f"usage: lambdanets {command} MODEL " in results[f"{command} --help"][1]
    assert "Number of epochs. (default: 60)" in " ".join(results["train cifar10 --help"][1].split())
    for group in ("Hyperparameters that all tasks have", "Hyperparameters of classifier training"):
        assert f"\n{group}:\n  --" in results["train cifar10 --help"][1]


def test_existing_outputs_are_reported_before_pytorch_is_imported(tmp_path):
    (tmp_path / "image.png").touch()
    (tmp_path / "model.onnx").touch()
    (tmp_path / "done").mkdir()
    (tmp_path / "done/results.json").touch()
    commands = {
        "predict digits image.png --out model.onnx": "model.onnx exists",
        "predict digits missing.png": "missing.png",
        "export digits": "model.onnx exists",
        "evaluate digits --out done": "done is not empty",
        "explain digits image.png --out done": "done is not empty",
        "adopt lambda_resnet26t --out done": "done is not empty",
        "predict nuclei image.png --out done": "done is not empty",
    }
    for line, (exit_code, output, imported) in run([*commands], tmp_path).items():
        assert (exit_code, {*imported} - {"numpy"}) == (2, set()), output  # Pillow's images need NumPy
        assert commands[line] in output
