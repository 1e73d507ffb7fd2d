"""`lambdanets.export`, `lambdanets export`, and the code of docs/deploy.md and examples/deploy.cpp."""

import json
import os
import re
import resource
import subprocess
from collections import UserDict, namedtuple
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import nn
from torch._inductor import aoti_load_package

import lambdanets as ln
from lambdanets.adoption.layout import SlicesLambdaLayer
from lambdanets.cli import main
from lambdanets.errors import InputError
from lambdanets.inference.model_card import SegmenterCard, make_card
from lambdanets.models.weights import WEIGHTS, save_weights
from lambdanets.tasks.recipes import SegmentationRecipe
from lambdanets_lab.export.graphs import make_graph
from lambdanets_lab.export.runtimes import RUNTIMES, Onnx
from scripts import ROOT

onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
openvino = pytest.importorskip("openvino", reason="openvino is not installed")
pytest.importorskip("onnxscript", reason="onnxscript is not installed")


@pytest.fixture
def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.ReLU(), ln.LambdaLayer2d(8)).eval()


def file_names(folder):
    return sorted(path.name for path in folder.iterdir())


FILES = {"onnx": ["m.onnx"], "openvino": ["m.bin", "m.xml"], "pt2": ["m.pt2"], "aoti": ["m.pt2"]}


def read_metadata(file_format, path):
    if file_format == "onnx":
        text = onnxruntime.InferenceSession(path).get_modelmeta().custom_metadata_map["lambdanets"]
    elif file_format == "openvino":
        text = openvino.Core().read_model(path).get_rt_info(["lambdanets"]).astype(str)
    elif file_format == "pt2":
        files = {"lambdanets.json": ""}
        torch.export.load(path, extra_files=files)
        text = files["lambdanets.json"]
    else:
        text = aoti_load_package(str(path)).get_metadata()["lambdanets"]
    return json.loads(text)


# dynamic ONNX and OpenVINO files are tested below, with whole networks, and in the tests of layers and detectors
@pytest.mark.parametrize("file_format", ["onnx", "openvino", "pt2", "aoti"])
def test_exported_network_and_its_metadata_equal_those_of_pytorch(file_format, network, tmp_path):
    names, dynamic = FILES[file_format], file_format in ("pt2", "aoti")
    if file_format == "aoti":  # each layer is compiled for seconds
        network = nn.Sequential(ln.LambdaLayer2d(3, 8, scope=3, batch_norm=False)).eval()
    exported = ln.export(network, tmp_path / names[-1], to=file_format, image_size=(24, 36), dynamic=dynamic)
    assert file_names(tmp_path) == names
    assert len(exported.errors) == (3 if dynamic else 1)
    assert max(exported.errors.values()) < 1e-4
    images = torch.randn(2, 31, 33, 3).double().permute(0, 3, 1, 2) if dynamic else torch.randn(1, 3, 24, 36)
    (output,) = RUNTIMES[file_format].open(exported.path)(images)
    with torch.no_grad():
        torch.testing.assert_close(output, network(images.float()), rtol=1e-3, atol=1e-3)
    metadata = {"images": [1, 3, 24, 36], "dynamic": dynamic, "outputs": ["output"]}
    assert read_metadata(file_format, exported.path) == metadata


def test_dynamic_file_is_compared_only_at_batches_that_the_network_takes(tmp_path):
    network = nn.Sequential(nn.Conv2d(3, 4, 1), SlicesLambdaLayer(4, scope=3, slices=2)).eval()
    exported = ln.export(network, tmp_path / "m.pt2", to="pt2", image_size=(6, 8), batch_size=3 * 2, dynamic=True)
    assert [*exported.errors] == [(6, 3, 6, 8)]  # not 1 or 7 slices, of which two are a volume


class Returning(nn.Module):
    """A convolution whose outputs are returned by a function of it."""

    def __init__(self, make_outputs):
        super().__init__()
        self.convolution, self.make_outputs = nn.Conv2d(3, 4, 1), make_outputs

    def forward(self, images):
        return self.make_outputs(self.convolution(images))


@pytest.mark.parametrize(
    ("returned", "names"), [(UserDict, ("a", "b")), (namedtuple("Pair", "a b"), ("output_0", "output_1"))]
)
def test_network_may_return_other_mappings_and_sequences(returned, names, tmp_path):
    network, images = Returning(lambda y: returned(a=y, b=y.mean((2, 3)))), torch.randn(1, 3, 8, 8)
    exported = ln.export(network, tmp_path / "m.pt2", to="pt2", image_size=8)
    assert exported.graph.outputs == names
    assert type(torch.export.load(exported.path).module()(images)) is (dict if returned is UserDict else tuple)
    torch.testing.assert_close(exported.run(images)[1], network.convolution(images).mean((2, 3)))


POOLED = nn.Sequential(nn.Conv2d(3, 3, 1), nn.AvgPool2d(2, ceil_mode=True))
ONE_PIXEL = {"to": "openvino", "image_size": 1}


@pytest.mark.parametrize(
    ("model", "name", "options", "message"),
    [
        (POOLED, "m.onnx", {"to": "tensorrt"}, "to must be one of onnx, openvino, pt2, aoti, got"),
        (3, "m.onnx", {}, "model must be a trained model or a network, got int"),
        (nn.Conv2d(3, 3, 1), "m.onnx", {"image_size": None}, "image_size must be given for a Conv2d"),
        (Returning(lambda y: y if y.sum() >= 0 else -y), "m.onnx", {}, "cannot be exported by torch.ex"),
        (Returning(nn.Conv2d(3, 3, 1).weight * 2), "m.onnx", {}, "must run on float32 images .* the deepcopy protocol"),
        (POOLED, "m.xml", ONE_PIXEL, "its pools must not be larger than their maps; choose a larger image_size"),
        (POOLED, "m.xml", ONE_PIXEL | {"dynamic": True}, r"got inf for images of shape \(1, 3, 1, 1\); no file"),
        (Returning(lambda y: {"y": y, "no": None}), "m.pt2", {"to": "pt2"}, "tensors, got NoneType"),
        (Returning(lambda y: {}), "m.pt2", {"to": "pt2"}, "sequence or mapping of tensors, got none"),
    ],
)
def test_invalid_arguments_are_one_line_errors_without_a_file(model, name, options, message, tmp_path):
    with pytest.raises(InputError, match=message) as raised:
        ln.export(model, tmp_path / name, **{"image_size": 16} | options)
    assert "\n" not in str(raised.value)
    assert file_names(tmp_path) == []


def test_exported_segmenter_has_the_logits_and_the_card(tmp_path):
    torch.manual_seed(0)
    recipe = SegmentationRecipe(images="", model_options={"scope": 3, "widths": [4, 8, 16], "lambda_stages": 1})
    network = ln.create_model(recipe.model, num_classes=3, **recipe.model_options)
    card = make_card(SegmenterCard, recipe, ("a", "b"), category_ids=(1, 2))
    save_weights(tmp_path / WEIGHTS, network, card.to_json())
    exported = ln.export(tmp_path / WEIGHTS, tmp_path / "m.onnx", image_size=32, dynamic=True)
    metadata = read_metadata("onnx", exported.path)
    assert (metadata["classes"], metadata["outputs"]) == (["a", "b"], ["logits"])
    assert exported.run(torch.zeros(2, 3, 40, 56))[0].shape == (2, 3, 40, 56)
    assert make_graph(ln.load(tmp_path / WEIGHTS), None, 1).shape == (1, 3, 256, 256)


@pytest.mark.parametrize(("factor", "error"), [(1.01, "1.0e-02"), (torch.nan, "inf")])
def test_file_with_wrong_outputs_is_not_kept(factor, error, tmp_path, monkeypatch):
    open_file = Onnx().open

    def open_with_error(runtime, path):
        run = open_file(path)
        return lambda images: [factor * output for output in run(images)]

    monkeypatch.setattr(Onnx, "open", open_with_error)
    with pytest.raises(InputError, match=f"outputs of ONNX Runtime must .* got {error} for images of shape"):
        ln.export(nn.Conv2d(3, 4, 1), tmp_path / "m.onnx", image_size=16)
    assert file_names(tmp_path) == []


@pytest.mark.parametrize("file_format", ["openvino", "onnx", "pt2"])
def test_full_disk_error_names_the_file(file_format, tmp_path):
    path = tmp_path / f"m{RUNTIMES[file_format].suffix}"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))  # Python ignores SIGXFSZ
    try:
        with pytest.raises(OSError, match="File too large"):
            ln.export(nn.Conv2d(3, 512, 7), path, to=file_format, image_size=16)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert file_names(tmp_path) == []


def test_command_reports_errors_time_and_size(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("lambda_resnet20_small").mkdir()  # a folder without weights is not the model
    command = "export lambda_resnet20_small --image-size 16 20 --seconds 0.1"
    assert main(command.split()) == 0
    output = capsys.readouterr().out
    assert "images 1 x 3 x 16 x 20: relative difference" in output
    assert "ONNX Runtime" in output
    assert "model.onnx: " in output
    assert b"site-packages" not in Path("model.onnx").read_bytes()  # no paths of this machine
    assert main(["export", "unknown_model"]) == 2
    assert main(["export", "missing.safetensors", "--out", "other.onnx"]) == 2
    assert main(["export", "missing/run", "--out", "other.onnx"]) == 2
    assert main(["export", "lambda_resnet20_small", "--out", "other.pt"]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 4
    assert "missing/run" in errors[2]
    assert "--out must end in .onnx for --to onnx" in errors[3]
    assert file_names(tmp_path) == ["lambda_resnet20_small", "model.onnx"]


def test_python_code_of_deploy_page_classifies_as_predict(shallow_run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/deploy.md").read_text(encoding="utf-8"), re.DOTALL)
    (code,) = (block for block in blocks if "InferenceSession" in block)
    assert "torch" not in code
    ln.export(shallow_run, "model.onnx", image_size=48)
    classifier = ln.load(shallow_run, device="cpu")
    preprocessing = replace(classifier.card.preprocessing, image_size=48)
    Image.open(sorted(Path(classifier.card.recipe["data"]).rglob("*.png"))[0]).resize((37, 52)).save("photo.jpg")
    exec(code, variables := {})
    (prediction,) = replace(classifier, card=replace(classifier.card, preprocessing=preprocessing)).predict("photo.jpg")
    probabilities = torch.from_numpy(variables["logits"][0]).softmax(0)
    torch.testing.assert_close(probabilities, prediction.probabilities, rtol=1e-3, atol=1e-3)
    assert capsys.readouterr().out.splitlines()[-1] == prediction.classes[int(probabilities.argmax())]


@pytest.mark.skipif(
    "ONNXRUNTIME_INCLUDE" not in os.environ, reason="needs ONNX Runtime's C++ headers, which its wheel lacks"
)
def test_cpp_example_runs(shallow_run, tmp_path):
    source = ROOT / "examples/deploy.cpp"
    ln.export(shallow_run, tmp_path / "model.onnx")
    (library,) = Path(onnxruntime.__file__).parent.glob("capi/libonnxruntime.so.*")
    (tmp_path / "libonnxruntime.so").symlink_to(library)
    (tmp_path / "libonnxruntime.so.1").symlink_to(library)
    include = ["-I", os.environ["ONNXRUNTIME_INCLUDE"], "-L."]
    subprocess.run(["g++", "-std=c++17", source, *include, "-lonnxruntime", "-o", "deploy"], cwd=tmp_path, check=True)
    environment = os.environ | {"LD_LIBRARY_PATH": str(tmp_path)}
    run = subprocess.run(["./deploy"], cwd=tmp_path, env=environment, check=True, capture_output=True, text=True)
    assert run.stdout in ("0\n", "1\n")
