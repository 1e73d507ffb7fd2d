"""A detector and its exported file, shared by several tests because the export is slow."""

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import lambdanets as ln
from lab.export.shallow_resnet import shallow_lambda_resnet
from lambdanets_lab.export.export import Exported
from training.detection.constructed_detector import write_constructed_detector


class ExportedDetector(NamedTuple):
    """A constructed detector, its weight file, its folder of images, and its ONNX file for images of any size."""

    detector: ln.Detector
    weights: Path
    images: Path
    exported: Exported


@pytest.fixture(scope="session", autouse=True)
def shared_onnx_functions() -> Iterator[None]:
    """Cache the operator functions of torch.onnx, which it otherwise builds for each export, in about a second."""
    with pytest.MonkeyPatch.context() as patch:
        try:
            from torch.onnx._internal.exporter._registration import onnxscript_apis

            patch.setattr(onnxscript_apis, "get_torchlib_ops", functools.cache(onnxscript_apis.get_torchlib_ops))
        except (ImportError, AttributeError):
            pass  # another version of PyTorch, or onnxscript is not installed
        yield


@pytest.fixture(scope="session")
def exported_detector(tmp_path_factory: pytest.TempPathFactory) -> ExportedDetector:
    folder = tmp_path_factory.mktemp("exported_detector")
    write_constructed_detector(folder, model=shallow_lambda_resnet.__name__)
    detector = ln.load(folder / "initial.safetensors", device="cpu")
    exported = ln.export(detector, folder / "m.onnx", dynamic=True)
    return ExportedDetector(detector, folder / "initial.safetensors", folder / "digits", exported)
