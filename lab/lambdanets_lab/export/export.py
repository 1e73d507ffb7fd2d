"""Export of trained models and networks to files that other runtimes execute."""

import json
import os
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from lambdanets.data.datasets import remap_labels
from lambdanets.errors import InputError, check_choice, one_line
from lambdanets.inference.classifier import Classifier, open_splits_of
from lambdanets.inference.detector import Detector
from lambdanets.inference.loading import load
from lambdanets.inference.predictor import Predictor
from lambdanets.signals import check_signals, uninterrupted
from lambdanets.work import check_new_file
from lambdanets_lab.export.graphs import Graph, Shape, make_graph, make_metadata, zero_norm_weights
from lambdanets_lab.export.int8 import MAX_DROP, Int8Data, Quantization
from lambdanets_lab.export.runtimes import RUNTIMES, Run, Runtime, without_tracing_warnings

_MULTIPLE = 32  # sides of dynamic test images are rounded up to it for networks that fail at odd sizes


@dataclass(frozen=True, eq=False, repr=False)
class Exported:
    """An exported model.

    path: the model file. files: all files, with OpenVINO also the weights.
    errors: error of the float32 file by shape of the images: the relative error of the outputs, or for a detector the
        fraction of objects that differ.
    run: runs the file on images (b, c, H, W); returns a list of tensors.
    graph: the exported graph; `graph.run_pytorch` runs the model in PyTorch.
    quantization: accuracy and size of the int8 and the float32 file, or None without int8.
    """

    path: Path
    files: tuple[Path, ...]
    errors: dict[Shape, float]
    run: Run
    graph: Graph
    quantization: Quantization | None = None

    def __repr__(self) -> str:
        return f"Exported({str(self.path)!r}, largest error {max(self.errors.values()):.1e})"


def export(
    model: str | os.PathLike[str] | Predictor | nn.Module,
    path: str | os.PathLike[str],
    *,
    to: str = "onnx",
    image_size: int | tuple[int, int] | None = None,
    batch_size: int = 1,
    dynamic: bool = False,
    int8: str | os.PathLike[str] | None = None,
) -> Exported:
    """Export a model, run the file in its runtime, and compare the outputs with PyTorch's on random images.

    Args:
        model: what `load` takes or returns, or a network with images (b, c, H, W) as input and a tensor or a sequence
            or mapping of tensors as output, such as one with features_only. It is exported in evaluation mode and in
            float32. In "pt2" files, types other than list, tuple and dict become a tuple or a dict.
        path: new file, with the suffix .onnx, .xml or .pt2.
        to: "onnx", for ONNX Runtime; "openvino", an .xml file and a .bin file with the weights; "pt2", for
            torch.export; "aoti", also .pt2, compiled by AOTInductor for this kind of processor.
        image_size: side, or (height, width) of the images; default that of the model card or of the network's
            pretrained_cfg.
        batch_size: images per batch; with dynamic, any number is possible. 1 for detectors.
        dynamic: export a graph for any batch size and image size; at sizes at which a feature map has a side of 1,
            "pt2" and "aoti" may refuse images, and "openvino" pools wrongly if the pool is larger. It is slower: the
            position term is then always a convolution with the whole table.
        int8: data for post-training quantization of weights and activations to int8; for "onnx", and for "openvino"
            without dynamic. For a classifier, a dataset in a format of `lambdanets train --data`: up to 300 training
            images are the calibration data, and accuracy is measured on the validation split.

    The input is "images", preprocessed; the output "logits" for classifiers and segmenters, otherwise "output",
    "output_0" and so on, or the keys of the mapping. For detectors, the input is one image with values in [0, 1],
    already resized, and the outputs are those of `DetectionGraph`: "boxes", "labels", "scores" and "masks" of n
    objects. Class names, preprocessing and the shape are metadata of the file, as JSON with the key "lambdanets".

    Raises InputError, and leaves no file, for invalid arguments, for a network that cannot be exported, if the outputs
    differ by more than 1e-4 (relative norm) or more than 2% of the objects differ, and if int8 loses more than 0.005
    of the accuracy.
    """
    check_choice("to", to, RUNTIMES)
    runtime, path = RUNTIMES[to], Path(path)
    if path.suffix != runtime.suffix:
        raise InputError(f"path must end in {runtime.suffix} for {to}, got {path}")
    files = [path] if runtime.suffix != ".xml" else [path.with_suffix(".bin"), path]
    for file in files:
        check_new_file(file)
    runtime.check_installed()  # before the model is traced, which takes long
    loaded = load(model, device="cpu") if isinstance(model, str | os.PathLike) else model
    if to == "aoti" and isinstance(loaded, Detector):
        raise InputError(
            "to must be onnx, openvino or pt2 for a detector, got aoti: "
            "AOTInductor computes convolutions wrongly if the number of objects depends on the image"
        )
    if dynamic and isinstance(loaded, Detector) and not loaded.card.hide_padding:
        raise InputError("dynamic must be False for a detector with hide_padding=False, got True")
    graph = make_graph(loaded, image_size, batch_size)
    int8_data = None if int8 is None else _open_int8_data(loaded, graph, to, os.fspath(int8), dynamic)
    metadata = json.dumps(make_metadata(loaded, graph, dynamic=dynamic))
    program = _trace(graph, dynamic)
    path.parent.mkdir(parents=True, exist_ok=True)
    with uninterrupted(), tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
        unfinished = Path(folder) / path.name
        written = runtime.write(program, unfinished, graph.outputs, metadata)
        check_signals()
        errors = _compare(graph, runtime, unfinished, dynamic)
        worst = max(errors, key=lambda shape: errors[shape])
        if errors[worst] > graph.max_error:
            raise InputError(
                f"outputs of {runtime.title} must have a {graph.error_name} of at most {graph.max_error:g}, got "
                f"{errors[worst]:.1e} for images of shape {worst}; no file was written; try another image_size "
                "or another runtime, and report this"
            )
        quantization = None if int8_data is None else _quantize(runtime, written, int8_data)
        check_signals()
        for file in written:
            file.replace(path.with_name(file.name))
    return Exported(path, tuple(files), errors, runtime.open(path), graph, quantization)


def _open_int8_data(model: object, graph: Graph, to: str, data: str, dynamic: bool) -> Int8Data:
    """Open data whose training split is for calibration and whose validation split is for accuracy.

    Raises InputError if the format or the model do not support int8.
    """
    check_choice("to for int8", to, [name for name, runtime in RUNTIMES.items() if runtime.int8])
    if to == "openvino" and dynamic:
        raise InputError("dynamic must be False for int8 with openvino: it computes dynamic int8 convolutions wrongly")
    if not isinstance(model, Classifier):
        raise InputError(f"model must be a classifier for int8, got {type(model).__name__}")
    side = model.card.preprocessing.image_size
    if graph.shape[2:] != (side, side):
        raise InputError(f"image_size must be {side} for int8, as of the images that calibrate, got {graph.shape[2:]}")
    splits = open_splits_of(model.card, data)
    train, validation = (remap_labels(images, model.classes) for images in (splits.train, splits.validation))
    return Int8Data(model, train, validation, graph.shape[0])


def _quantize(runtime: Runtime, files: list[Path], data: Int8Data) -> Quantization:
    """Quantize the written files. Raises InputError if accuracy drops by more than MAX_DROP."""
    float_bytes = sum(file.stat().st_size for file in files)
    float_accuracy = data.accuracy(runtime.open(files[-1]))
    runtime.quantize(files[-1], data.calibration())
    accuracy = data.accuracy(runtime.open(files[-1]))
    if accuracy < float_accuracy - MAX_DROP:
        raise InputError(
            f"int8 must have a top-1 of at least {float_accuracy:.4f} - {MAX_DROP} on {len(data.validation)} "
            f"images, got {accuracy:.4f}; no file was written; export without int8"
        )
    return Quantization(len(data.validation), accuracy, float_accuracy, float_bytes)


def _trace(graph: Graph, dynamic: bool) -> torch.export.ExportedProgram:
    """Trace the network with torch.export. Raises InputError, which includes the reason, if that fails."""
    shape, sizes = graph.shape, None
    if dynamic:
        batch = max(2, shape[0]) if 0 in graph.dynamic_axes else shape[0]
        shape = (batch, shape[1], *_traced_sides(graph))
        sizes = (dict.fromkeys(graph.dynamic_axes, torch.export.Dim.DYNAMIC),)
    try:
        with torch.no_grad(), without_tracing_warnings():
            program = torch.export.export(graph.network, (torch.zeros(shape),), dynamic_shapes=sizes)
    except Exception as error:  # torch.export raises many types
        advice = "; export it without dynamic" if dynamic else ""
        raise InputError(f"model cannot be exported by torch.export: {one_line(error)[:300]}{advice}") from error
    for module in program.graph_module.modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            node.meta.pop("stack_trace", None)  # which would put paths of this machine into the file
    return program


def _traced_sides(graph: Graph) -> tuple[int, int]:
    """Return sides to trace a dynamic graph with.

    They differ, because torch.export treats equal sides as one symbolic dimension. If the network allows it, they are
    odd at all strides: AOTInductor ignores the ceil_mode of pooling if the traced sides are even.
    """
    height, width = (-(-side // _MULTIPLE) * _MULTIPLE for side in graph.shape[2:])
    odd = (height + 1, width + _MULTIPLE + 1)
    return odd if _can_run(graph, (*graph.shape[:2], *odd)) else (height, width + _MULTIPLE)


@torch.inference_mode()
def _can_run(graph: Graph, shape: Shape) -> bool:
    try:
        graph.network(torch.zeros(shape))
    except (RuntimeError, ValueError, AssertionError):
        return False
    return True


def _compare(graph: Graph, runtime: Runtime, path: Path, dynamic: bool) -> dict[Shape, float]:
    """Return the error of a file, keyed by the shape of the images: several shapes if dynamic.

    Raises InputError if the runtime cannot run the file. Warns if the outputs leave parts of the model untested.
    """
    generator = torch.Generator().manual_seed(0)
    errors, num_objects = {}, 0
    run: Run | None = None
    for shape in _test_shapes(graph) if dynamic else [graph.shape]:
        images = graph.make_images(shape, generator)
        expected = graph.run_pytorch(images)
        try:
            run = run or runtime.open(path)
            actual = run(images)
        except Exception as error:  # runtimes raise many types
            raise InputError(
                f"{runtime.title} cannot run the exported model on images of shape {shape}: {one_line(error)[:300]}; "
                "no file was written"
            ) from error
        errors[shape] = graph.error(actual, expected)
        num_objects += len(expected[0])
    if "boxes" in graph.outputs and not num_objects:
        warnings.warn("the detector finds no objects in the test images, so no objects were compared", stacklevel=3)
    if zeros := zero_norm_weights(graph.network):
        warnings.warn(
            f"{len(zeros)} norms are zero-initialized (zero_init_last), so the layers before them were not compared; "
            "export trained weights, or pass zero_init_last=False",
            stacklevel=3,
        )
    return errors


def _test_shapes(graph: Graph) -> list[Shape]:
    """Return the given shape and up to two others, one smaller and one larger, with odd sides if the network can."""
    batch, channels, height, width = graph.shape
    shapes = [graph.shape]
    for dynamic_batch, factor in ((1, 0.75), (batch + 1, 1.3)):
        batch_size = dynamic_batch if 0 in graph.dynamic_axes else batch
        odd = (batch_size, channels, int(height * factor) | 1, int(width * factor / 2) | 1)
        even = (*odd[:2], *(-(-side // _MULTIPLE) * _MULTIPLE for side in odd[2:]))
        shapes += [shape for shape in (odd, even) if _can_run(graph, shape)][:1]
    return shapes
