"""A detector and its exported file, which several tests use because its export takes long."""

from pathlib import Path
from typing import NamedTuple

import pytest

import lambdanets as ln
from lambdanets.deployment.export import Exported
from training.detection.constructed_detector import write_constructed_detector


class ExportedDetector(NamedTuple):
    """A constructed detector, its weight file, its folder of images, and its ONNX file for images of any size."""

    detector: ln.Detector
    weights: Path
    images: Path
    exported: Exported


@pytest.fixture(scope="session")
def exported_detector(tmp_path_factory: pytest.TempPathFactory) -> ExportedDetector:
    folder = tmp_path_factory.mktemp("exported_detector")
    write_constructed_detector(folder)
    detector = ln.load(folder / "initial.safetensors", device="cpu")
    exported = ln.export(detector, folder / "m.onnx", dynamic=True)
    return ExportedDetector(detector, folder / "initial.safetensors", folder / "digits", exported)
