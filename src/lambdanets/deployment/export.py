"""Export of classifiers and networks to files that other runtimes execute."""

import copy
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lambdanets.bounds import Range, check
from lambdanets.deployment.runtimes import RUNTIMES, Run, Runtime
from lambdanets.errors import InputError, nearest, one_line
from lambdanets.inference.classifier import Classifier
from lambdanets.inference.loading import load
from lambdanets.signals import deferred, interruptible

MAX_ERROR = 1e-3  # of deep networks in float32; layers differ by less than 1e-6
_MULTIPLE = 32  # side to which dynamic test sizes are rounded for networks that do not run at odd sizes


@dataclass(frozen=True, eq=False, repr=False)
class Exported:
    """An exported model.

    path: the model file. files: all files, with OpenVINO also the weights. errors: relative error of the outputs, by
    shape of the images. run: runs the file on images (b, c, H, W). network: the PyTorch network on the CPU, which
    returns a tuple of tensors.
    """

    path: Path
    files: tuple[Path, ...]
    errors: dict[tuple[int, ...], float]
    run: Run
    network: nn.Module

    def __repr__(self) -> str:
        return f"Exported({str(self.path)!r}, largest error {max(self.errors.values()):.1e})"


class _WithTensors(nn.Module):
    """Calls a network and returns its outputs, a tensor or a sequence or mapping of tensors, as a tuple."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        outputs = self.network(images)
        if isinstance(outputs, Tensor):
            return (outputs,)
        return tuple(outputs.values() if isinstance(outputs, Mapping) else outputs)


def export(
    model: str | os.PathLike[str] | Classifier | nn.Module,
    path: str | os.PathLike[str],
    *,
    to: str = "onnx",
    image_size: int | tuple[int, int] | None = None,
    batch_size: int = 1,
    dynamic: bool = False,
) -> Exported:
    """Export a model, run the file in its runtime, and compare the outputs with PyTorch's on random images.

    model: a run folder or weight file, a `Classifier`, or a network with images (b, c, H, W) as input and a tensor or
        a sequence or mapping of tensors as output, such as one with features_only. It is exported in evaluation mode
        and in float32.
    path: new file, with the suffix .onnx, .xml or .pt2.
    to: "onnx", for ONNX Runtime; "openvino", an .xml file and a .bin file with the weights; "pt2", for torch.export.
    image_size: side, or (height, width) of the images; default that of a classifier or of the network's pretrained_cfg.
    batch_size: images per batch; with dynamic, any number is possible.
    dynamic: export a graph for any batch size and image size. It is slower: the position term is then always a
        convolution with the whole table.

    The input is "images", preprocessed; the output "logits" for classifiers, otherwise "output", "output_0" and so on,
    or the keys of the mapping. Class names, preprocessing and the shape are metadata of the file, as JSON with the key
    "lambdanets".

    Raises InputError for invalid arguments, for a network that cannot be exported, and if the outputs differ by more
    than 1e-3 (relative norm). No file is then left behind.
    """
    runtime = _runtime(to)
    path = Path(path)
    if path.suffix != runtime.suffix:
        raise InputError(f"path must end in {runtime.suffix} for {to}, got {path}")
    files = [path] if runtime.suffix != ".xml" else [path.with_suffix(".bin"), path]
    for file in files:
        if file.exists():
            raise InputError(f"{file} exists; choose another file, or remove it")
    check("batch_size", batch_size, int, Range(1))
    source = load(model, device="cpu") if isinstance(model, str | os.PathLike) else model
    network = source.model if isinstance(source, Classifier) else source
    if not isinstance(network, nn.Module):
        raise InputError(
            f"model must be a classifier or a network, got {type(source).__name__}; "
            "of a detector, export the backbone: detector.model.backbone"
        )
    shape = (batch_size, _channels(network), *_sides(source, image_size))
    network = _WithTensors(copy.deepcopy(network).cpu().float().eval())
    names = _output_names(source, network, shape)
    description = {"images": list(shape), "dynamic": dynamic, "outputs": names}
    if isinstance(source, Classifier):
        description = json.loads(source.card.to_json({})) | description
    program = _trace(network, shape, dynamic)
    path.parent.mkdir(parents=True, exist_ok=True)
    with interruptible(), tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
        try:
            unfinished = runtime.write(program, Path(folder) / path.name, names, json.dumps(description))
        except OSError as error:
            error.filename = str(path)
            raise
        errors = _compare(network, runtime.open(unfinished[-1]), shape, dynamic)
        if not max(errors.values()) <= MAX_ERROR:
            worst = max(errors, key=lambda size: errors[size])
            raise InputError(
                f"outputs of {runtime.title} must agree with PyTorch's within {MAX_ERROR}, got {errors[worst]:.1e} for "
                f"images of shape {worst}; no file was written; report this"
            )
        with deferred():
            for file in unfinished:
                file.replace(path.with_name(file.name))
    return Exported(path, tuple(files), errors, runtime.open(path), network)


def _runtime(to: str) -> Runtime:
    if to not in RUNTIMES:
        raise InputError(f"to must be one of {', '.join(RUNTIMES)}, got {to!r}{nearest(str(to), RUNTIMES)}")
    return RUNTIMES[to]


def _channels(network: nn.Module) -> int:
    """Return the number of input channels, from the first convolution."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            return module.in_channels
    raise InputError(f"model must be a network with images as input, got {type(network).__name__} without convolutions")


def _sides(source: Any, image_size: int | tuple[int, int] | None) -> tuple[int, int]:
    """Return height and width of the images."""
    if image_size is None:
        if isinstance(source, Classifier):
            image_size = source.card.preprocessing.image_size
        else:
            size = (getattr(source, "pretrained_cfg", None) or {}).get("input_size")
            if size is None:
                raise InputError(f"image_size must be given for a {type(source).__name__}, got None")
            image_size = int(size[-2]), int(size[-1])
    sides = (image_size, image_size) if isinstance(image_size, int) else tuple(image_size)
    if len(sides) != 2:
        raise InputError(f"image_size must be a side or (height, width), got {image_size}")
    for side in sides:
        check("image_size", side, int, Range(1))
    return sides


@torch.inference_mode()
def _output_names(source: Any, network: _WithTensors, shape: Sequence[int]) -> list[str]:
    outputs = network.network(torch.zeros(shape))
    if isinstance(source, Classifier):
        return ["logits"]
    if isinstance(outputs, Mapping):
        return [str(name) for name in outputs]
    return ["output"] if isinstance(outputs, Tensor) else [f"output_{i}" for i in range(len(outputs))]


def _trace(network: nn.Module, shape: tuple[int, ...], dynamic: bool) -> torch.export.ExportedProgram:
    """Trace the network with torch.export. Raises InputError, which includes the reason, if that fails."""
    batch, *others = shape
    # with a batch of 1 or equal sides, torch.export could take a dynamic size for a constant
    images = torch.zeros(max(2, batch), *others[:-1], others[-1] + _MULTIPLE) if dynamic else torch.zeros(shape)
    sizes = dict.fromkeys((0, 2, 3), torch.export.Dim.DYNAMIC) if dynamic else None
    try:
        with torch.no_grad():
            return torch.export.export(network, (images,), dynamic_shapes=None if sizes is None else (sizes,))
    except Exception as error:  # exceptions of many types
        advice = "; export it without dynamic" if dynamic else ""
        raise InputError(f"model cannot be exported by torch.export: {one_line(error)[:300]}{advice}") from error


def _compare(network: nn.Module, run: Run, shape: tuple[int, ...], dynamic: bool) -> dict[tuple[int, ...], float]:
    """Return the relative error of the runtime by shape of the images: several shapes if dynamic."""
    generator = torch.Generator().manual_seed(0)
    errors = {}
    for size in _test_shapes(network, shape) if dynamic else [shape]:
        images = torch.randn(size, generator=generator)
        with torch.inference_mode():
            expected = network(images)
        errors[size] = max(
            float((actual - reference).norm() / reference.norm().clamp(min=1e-30))
            for actual, reference in zip(run(images), expected, strict=True)
        )
    return errors


@torch.inference_mode()
def _test_shapes(network: nn.Module, shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return the given shape and two others, one smaller and one larger, with odd sides if the network allows them."""
    batch, channels, height, width = shape
    shapes = [shape]
    for images, factor in ((1, 0.75), (batch + 1, 1.3)):
        odd = (images, channels, int(height * factor) | 1, int(width * factor / 2) | 1)
        even = (*odd[:2], *(-(-side // _MULTIPLE) * _MULTIPLE for side in odd[2:]))
        try:
            network(torch.zeros(odd))
            shapes.append(odd)
        except (RuntimeError, ValueError):
            shapes.append(even)
    return shapes
