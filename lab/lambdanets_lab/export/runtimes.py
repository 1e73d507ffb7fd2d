"""Runtimes of exported models: how each writes a model file and runs it."""

import contextlib
import ctypes
import errno
import importlib
import io
import logging
import sys
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.export import ExportedProgram

from lambdanets.errors import InputError, explain_missing_extras, one_line

METADATA = "lambdanets"  # key of the JSON that describes the model
Run = Callable[[Tensor], list[Tensor]]  # runs a model file


@contextlib.contextmanager
def without_tracing_warnings() -> Iterator[None]:
    """Hide warnings about torchvision's operators, weights on other devices and a missing GPU."""
    for name in ("onnx_ir", "torch.utils.cpp_extension"):
        logging.getLogger(name).setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        warnings.filterwarnings("ignore", "No complete tensor found in the group", UserWarning)
        yield


@contextlib.contextmanager
def restore_signal_stack() -> Iterator[None]:
    """Restore this thread's alternate signal stack at the end of the block.

    Each openvino.Core that loads the CPU plugin sets its own stack. Its destructor restores the former stack, but only
    if its own is still set. If the older of two Cores is destroyed first, the destructor of the other restores freed
    memory as the stack, and the next signal crashes the process. After the block, destructors leave the stack alone.
    """
    if sys.platform != "linux":  # OpenVINO sets it only on Linux
        yield
        return
    sigaltstack, former = ctypes.CDLL(None).sigaltstack, ctypes.create_string_buffer(24)  # the size of stack_t
    sigaltstack(None, former)
    try:
        yield
    finally:
        sigaltstack(former, None)


class Runtime(ABC):
    """A file format with the runtime that executes it.

    suffix: suffix of the model file. title: name in messages. packages: what it imports, of an extra.
    """

    suffix: ClassVar[str]
    title: ClassVar[str]
    packages: ClassVar[tuple[str, ...]] = ()

    def check_installed(self) -> None:
        """Raise InputError with the install command unless the packages are installed."""
        with explain_missing_extras():
            for package in self.packages:
                importlib.import_module(package)

    @abstractmethod
    def write(self, program: ExportedProgram, path: Path, outputs: Sequence[str], metadata: str) -> list[Path]:
        """Write a model with the input "images" and named outputs; return its files, the one at `path` last."""

    @abstractmethod
    def open(self, path: Path) -> Run:
        """Return a function that runs the model on images (b, c, H, W), float32 on the CPU, with torch's threads."""


class Onnx(Runtime):
    suffix, title = ".onnx", "ONNX Runtime"
    packages = ("onnxscript", "onnxruntime")

    def write(self, program: ExportedProgram, path: Path, outputs: Sequence[str], metadata: str) -> list[Path]:
        try:
            with without_tracing_warnings():
                exported = torch.onnx.export(
                    program,
                    input_names=["images"],
                    output_names=list(outputs),
                    custom_translation_table={torch.ops.aten.sort.stable: _stable_sort},
                    dynamo=True,
                    verbose=False,
                )
        except torch.onnx.errors.OnnxExporterError as error:
            reason = one_line(error.__cause__ or error)
            raise InputError(f"model cannot be converted to ONNX: {reason[:300]}; pt2 may support it") from error
        assert exported is not None
        exported.model.metadata_props[METADATA] = metadata
        exported.save(path, external_data=False)
        return [path]

    def open(self, path: Path) -> Run:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 3  # errors
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        return lambda images: [torch.from_numpy(x) for x in session.run(None, {"images": images.numpy()})]


def _stable_sort(x: Any, stable: bool | None = None, dim: int = -1, descending: bool = False) -> Any:
    """ONNX translation of stable torch.sort, which torch.onnx does not support. ONNX's TopK is stable."""
    from onnxscript import opset18 as op

    count = op.Gather(op.Shape(x), op.Constant(value_ints=[dim]))
    return op.TopK(x, count, axis=dim, largest=int(descending))


class OpenVino(Runtime):
    """OpenVINO's format: an .xml file, with the weights in a .bin file next to it. Converted from ONNX."""

    suffix, title = ".xml", "OpenVINO"
    packages = ("openvino", "onnxscript")

    def write(self, program: ExportedProgram, path: Path, outputs: Sequence[str], metadata: str) -> list[Path]:
        import openvino

        onnx_path = path.with_suffix(".onnx")
        Onnx().write(program, onnx_path, outputs, metadata)
        try:
            model = openvino.Core().read_model(onnx_path)
        except RuntimeError as error:  # such as a pool that is larger than its map
            raise InputError(f"model cannot be converted to OpenVINO: {one_line(error)[:600]}") from error
        onnx_path.unlink()
        for operation in model.get_ops():
            # ONNX's TopK is always stable; OpenVINO's stable one is slow, so only sorts get it
            if operation.get_type_name() == "TopK" and "/sort" in operation.get_friendly_name():
                operation.set_attribute("stable", True)
        model.set_rt_info(metadata, [METADATA])
        try:
            openvino.save_model(model, path, compress_to_fp16=False)
        except RuntimeError as error:
            raise OSError(errno.EIO, f"OpenVINO cannot write it: {one_line(error)[:200]}", str(path)) from error
        return [path.with_suffix(".bin"), path]

    def open(self, path: Path) -> Run:
        import openvino

        options = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": torch.get_num_threads()}
        with restore_signal_stack():
            request = openvino.Core().compile_model(path, "CPU", options).create_infer_request()

        def run(images: Tensor) -> list[Tensor]:
            results: Any = request.infer([images.numpy()])
            return [torch.from_numpy(np.array(results[i])) for i in range(len(results))]

        return run


class Pt2(Runtime):
    """A file of torch.export, which PyTorch runs without the model's source code."""

    suffix, title = ".pt2", "torch.export"

    def write(self, program: ExportedProgram, path: Path, outputs: Sequence[str], metadata: str) -> list[Path]:
        content = io.BytesIO()  # for a full disk, torch's own writing raises RuntimeError with a stack of C++ frames
        with without_tracing_warnings():
            torch.export.save(program, content, extra_files={f"{METADATA}.json": metadata})
        path.write_bytes(content.getbuffer())
        return [path]

    def open(self, path: Path) -> Run:
        module = torch.export.load(path).module()

        def run(images: Tensor) -> list[Tensor]:
            with torch.inference_mode():
                return list(module(images))

        return run


RUNTIMES: dict[str, Runtime] = {"onnx": Onnx(), "openvino": OpenVino(), "pt2": Pt2()}
