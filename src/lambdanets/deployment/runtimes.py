"""Runtimes of exported models: how each writes a model file and runs it."""

import errno
import io
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.export import ExportedProgram

from lambdanets.errors import explain_missing_extras, one_line

METADATA = "lambdanets"  # key of the JSON that describes the model
Run = Callable[[Tensor], list[Tensor]]


class Runtime(ABC):
    """A file format with the runtime that executes it.

    suffix: of the model file. title: name in messages.
    """

    suffix: ClassVar[str]
    title: ClassVar[str]

    @abstractmethod
    def write(self, program: ExportedProgram, path: Path, outputs: Sequence[str], metadata: str) -> list[Path]:
        """Write a model with the input "images" and named outputs; return its files, the one at `path` last."""

    @abstractmethod
    def open(self, path: Path) -> Run:
        """Return a function that runs the model on images (b, c, H, W), float32 on the CPU, with torch's threads."""


class Onnx(Runtime):
    suffix, title = ".onnx", "ONNX Runtime"

    def write(self, program: ExportedProgram, path: Path, outputs: Sequence[str], metadata: str) -> list[Path]:
        with explain_missing_extras():
            import onnxscript  # noqa: F401 - the exporter imports it, with a longer error
        exported = torch.onnx.export(
            program, input_names=["images"], output_names=list(outputs), dynamo=True, verbose=False
        )
        assert exported is not None
        exported.model.metadata_props[METADATA] = metadata
        exported.save(path, external_data=False)
        return [path]

    def open(self, path: Path) -> Run:
        with explain_missing_extras():
            import onnxruntime
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 3  # errors
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        return lambda images: [torch.from_numpy(x) for x in session.run(None, {"images": images.numpy()})]


class OpenVino(Runtime):
    """OpenVINO's format: an .xml file, with the weights in a .bin file next to it. Converted from ONNX."""

    suffix, title = ".xml", "OpenVINO"

    def write(self, program: ExportedProgram, path: Path, outputs: Sequence[str], metadata: str) -> list[Path]:
        with explain_missing_extras():
            import openvino
        onnx_path = path.with_suffix(".onnx")
        Onnx().write(program, onnx_path, outputs, metadata)
        model = openvino.Core().read_model(onnx_path)
        onnx_path.unlink()
        model.set_rt_info(metadata, [METADATA])
        try:
            openvino.save_model(model, path, compress_to_fp16=False)
        except RuntimeError as error:
            raise OSError(errno.EIO, f"OpenVINO cannot write it: {one_line(error)[:200]}", str(path)) from error
        return [path.with_suffix(".bin"), path]

    def open(self, path: Path) -> Run:
        with explain_missing_extras():
            import openvino
        options = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": torch.get_num_threads()}
        request = openvino.Core().compile_model(path, "CPU", options).create_infer_request()

        def run(images: Tensor) -> list[Tensor]:
            results: Any = request.infer([images.numpy()])
            return [torch.from_numpy(np.array(results[i])) for i in range(len(results))]

        return run


class Pt2(Runtime):
    """A file of torch.export, which PyTorch runs without the code of the model."""

    suffix, title = ".pt2", "torch.export"

    def write(self, program: ExportedProgram, path: Path, outputs: Sequence[str], metadata: str) -> list[Path]:
        content = io.BytesIO()  # for a full disk, torch's own writing raises RuntimeError with a stack of C++ frames
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
