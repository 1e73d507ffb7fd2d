"""Post-training quantization of ONNX and OpenVINO models to int8, with NNCF."""

import contextlib
import io
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from lambdanets.errors import InputError, explain_missing_extras, one_line
from lambdanets.terminal import echo

MAX_CALIBRATION_IMAGES = 300
MAX_DROP = 0.005  # in accuracy, absolute
OUTSIDE_MODULES = "root"  # prefix of the names of operations outside the network's modules
_PRINTED = ("Metric of", "Accuracy drop", "Calculating ranking scores", "Reverted")  # restoring accuracy may take long
_NUM_RANKING_IMAGES = 50  # validation images to rank the layers by their loss


Run = Callable[[Tensor], list[Tensor]]  # runs a model file


class Validation(Protocol):
    """Validation and calibration data of a model.

    metric: name of the accuracy metric, for messages.
    """

    @property
    def metric(self) -> str: ...

    def __len__(self) -> int:
        """The number of validation images."""

    def calibration(self) -> list[Tensor]:
        """Return up to MAX_CALIBRATION_IMAGES calibration images as inputs of the graph."""

    def accuracy(self, run: Run, indices: Sequence[int]) -> tuple[float, list[float]]:
        """Return the accuracy of a model file on the validation images at `indices`, in [0, 1], and on each image."""


def calibration_indices(num_images: int) -> list[int]:
    """Return the indices of up to MAX_CALIBRATION_IMAGES random images."""
    generator = torch.Generator().manual_seed(0)
    return sorted(torch.randperm(num_images, generator=generator)[:MAX_CALIBRATION_IMAGES].tolist())


@dataclass(frozen=True)
class Quantization:
    """The result of int8 quantization.

    metric: "top-1 accuracy" or "mask AP", on `images` validation images.
    accuracy, float_accuracy: of the int8 and the float32 file, in [0, 1].
    float_bytes: size of the float32 files.
    float_layers: operations left in float32, because accuracy dropped too much with them in int8.
    """

    metric: str
    images: int
    accuracy: float
    float_accuracy: float
    float_bytes: int
    float_layers: tuple[str, ...]


def quantize(
    model: Any, open_model: Callable[[Any], Run], make_input: Callable[[Any], Any], validation: Validation
) -> tuple[Any, tuple[str, ...]]:
    """Quantize weights and activations to int8, with ranges from calibration data.

    If accuracy drops by more than MAX_DROP, layers are reverted to float32, in order of the accuracy that they restore.
    Bias correction is off: it made outputs less accurate. Operations outside modules, such as those on box coordinates,
    stay in float32.

    model: onnx.ModelProto or openvino.Model. open_model: returns a function that runs such a model.
    make_input: converts images to the input of the model.

    Returns the model, and the operations left in float32.
    """
    os.environ.setdefault("NNCF_CI", "1")  # no telemetry
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)  # it warns if there is no GPU
    with explain_missing_extras():
        import nncf
    images = validation.calibration()
    parameters = nncf.AdvancedQuantizationParameters(disable_bias_correction=True)
    ranking = nncf.AdvancedAccuracyRestorerParameters(ranking_subset_size=_NUM_RANKING_IMAGES, num_ranking_workers=1)
    with _capture_log() as messages:
        try:
            quantized = nncf.quantize_with_accuracy_control(
                model,
                nncf.Dataset(images, make_input),
                nncf.Dataset(range(len(validation))),
                lambda candidate, indices: validation.accuracy(open_model(candidate), list(indices)),
                max_drop=MAX_DROP,
                subset_size=len(images),
                ignored_scope=nncf.IgnoredScope(patterns=[f"{OUTSIDE_MODULES}/.*"], validate=False),
                advanced_quantization_parameters=parameters,
                advanced_accuracy_restorer_parameters=ranking,
            )
        except InputError:
            raise
        except Exception as error:  # NNCF and the runtimes raise many types
            raise InputError(f"model cannot be quantized by NNCF: {one_line(error)[:300]}") from error
    return quantized, _reverted_operations(messages)


class _Collector(logging.Handler):
    """Collects the messages of NNCF, and prints those about accuracy on stderr."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        self.messages.append(message)
        if message.startswith(_PRINTED):
            echo(f"int8: {message.splitlines()[0]}", file=sys.stderr)


@contextlib.contextmanager
def _capture_log() -> Iterator[list[str]]:
    """Replace the handlers of NNCF's logger by a collector of its messages, and hide NNCF's progress bars."""
    handler = _Collector()
    logger = logging.getLogger("nncf")
    handlers, logger.handlers = logger.handlers, [handler]
    level = logger.level
    logger.setLevel(logging.INFO)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield handler.messages
    finally:
        logger.handlers = handlers
        logger.setLevel(level)


def _reverted_operations(messages: Sequence[str]) -> tuple[str, ...]:
    """Return the operations that NNCF's log lists as reverted to floating point."""
    lists = [message.splitlines()[1:] for message in messages if message.startswith("Reverted ")]
    return tuple(name.strip() for names in lists for name in names)
