"""Runtimes of exported models: how each writes a model file and runs it."""

import contextlib
import errno
import functools
import importlib
import io
import logging
import os
import shutil
import tempfile
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.utils._pytree import tree_leaves

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


class Runtime(ABC):
    """A file format with the runtime that executes it.

    suffix: suffix of the model file. title: name in messages. packages: what it imports, of an extra. int8: whether
    models can be quantized.
    """

    suffix: ClassVar[str]
    title: ClassVar[str]
    packages: ClassVar[tuple[str, ...]] = ()
    int8: ClassVar[bool] = False

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

    def quantize(self, path: Path, images: Sequence[Tensor]) -> None:
        """Replace a model file with one in int8. images: calibration data. Raises InputError without `int8`."""
        raise InputError(f"int8 must be False for {self.title}, which has no quantization here, got True")


def quantize(model: Any, images: Sequence[Tensor], make_input: Callable[[Tensor], Any]) -> Any:
    """Quantize weights and activations of a model of ONNX or OpenVINO to int8, with ranges from calibration data.

    make_input: converts images to the input of the model. Bias correction is off: it made outputs less accurate.
    """
    os.environ.setdefault("NNCF_CI", "1")  # no telemetry
    for name in ("torch.utils.cpp_extension", "nncf"):  # the first warns if there is no GPU
        logging.getLogger(name).setLevel(logging.ERROR)
    with explain_missing_extras():
        import nncf
    parameters = nncf.AdvancedQuantizationParameters(disable_bias_correction=True)
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # hides progress bars
            return nncf.quantize(
                model, nncf.Dataset(images, make_input), subset_size=len(images), advanced_parameters=parameters
            )
    except Exception as error:  # NNCF and the runtimes raise many types
        raise InputError(f"model cannot be quantized by NNCF: {one_line(error)[:300]}") from error


class Onnx(Runtime):
    suffix, title, int8 = ".onnx", "ONNX Runtime", True
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

    def quantize(self, path: Path, images: Sequence[Tensor]) -> None:
        import onnx

        onnx.save(quantize(onnx.load(path), images, lambda batch: {"images": batch.numpy()}), path)


def _stable_sort(x: Any, stable: bool | None = None, dim: int = -1, descending: bool = False) -> Any:
    """ONNX translation of stable torch.sort, which torch.onnx does not support. ONNX's TopK is stable."""
    from onnxscript import opset18 as op

    count = op.Gather(op.Shape(x), op.Constant(value_ints=[dim]))
    return op.TopK(x, count, axis=dim, largest=int(descending))


@functools.cache
def _core() -> Any:
    """Return the only openvino.Core of this process.

    Each Core sets an alternate signal stack of its thread, and its destructor restores the former one. If that belonged
    to a Core that was destroyed before, the next signal crashes the process.
    """
    import openvino

    return openvino.Core()


class OpenVino(Runtime):
    """OpenVINO's format: an .xml file, with the weights in a .bin file next to it. Converted from ONNX."""

    suffix, title, int8 = ".xml", "OpenVINO", True
    packages = ("openvino", "onnxscript")

    def write(self, program: ExportedProgram, path: Path, outputs: Sequence[str], metadata: str) -> list[Path]:
        onnx_path = path.with_suffix(".onnx")
        Onnx().write(program, onnx_path, outputs, metadata)
        try:
            model = _core().read_model(onnx_path)
        except RuntimeError as error:
            reason = one_line(error)[:600]
            if "pooling_shape_inference" in str(error):
                reason = "its pools must not be larger than their maps; choose a larger image_size or another runtime"
            raise InputError(f"model cannot be converted to OpenVINO: {reason}") from error
        onnx_path.unlink()
        for operation in model.get_ops():
            # ONNX's TopK is always stable; OpenVINO's stable one is slow, so only sorts get it
            if operation.get_type_name() == "TopK" and "/sort" in operation.get_friendly_name():
                operation.set_attribute("stable", True)
        model.set_rt_info(metadata, [METADATA])
        self._save(model, path)
        return [path.with_suffix(".bin"), path]

    def open(self, path: Path) -> Run:
        options = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": torch.get_num_threads()}
        request = _core().compile_model(path, "CPU", options).create_infer_request()
        return lambda images: [torch.from_numpy(x) for x in request.infer([images.numpy()]).to_tuple()]

    def quantize(self, path: Path, images: Sequence[Tensor]) -> None:
        model = _core().read_model(path.read_bytes(), path.with_suffix(".bin").read_bytes())
        metadata = model.get_rt_info([METADATA]).astype(str)
        model = quantize(model, images, lambda batch: batch.numpy())
        model.set_rt_info(metadata, [METADATA])
        self._save(model, path)

    def _save(self, model: Any, path: Path) -> None:
        import openvino

        try:
            openvino.save_model(model, path, compress_to_fp16=False)
        except RuntimeError as error:
            raise OSError(errno.EIO, f"OpenVINO cannot write it: {one_line(error)[:200]}", str(path)) from error


def _run_module(module: Callable[[Tensor], Any]) -> Run:
    @torch.inference_mode()
    def run(images: Tensor) -> list[Tensor]:
        return tree_leaves(module(images.float().contiguous()))  # AOTInductor checks neither dtype nor strides

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
        return _run_module(torch.export.load(path).module())


class Aoti(Runtime):
    """A file with code for this machine's kind of processor, compiled by AOTInductor, and weights."""

    suffix, title = ".pt2", "AOTInductor"

    def write(self, program: ExportedProgram, path: Path, outputs: Sequence[str], metadata: str) -> list[Path]:
        from torch._inductor import aoti_compile_and_package  # imports Triton

        options = {"aot_inductor.metadata": {METADATA: metadata}, "aot_inductor.use_runtime_constant_folding": True}
        # not beside the new file: on a full disk, AOTInductor aborts the process
        with tempfile.TemporaryDirectory() as folder:
            compiled = Path(folder) / path.name
            try:
                with without_tracing_warnings():
                    aoti_compile_and_package(program, package_path=str(compiled), inductor_configs=options)
            except Exception as error:  # many types: the compiler may be missing or fail
                raise InputError(
                    f"model cannot be compiled by AOTInductor with a C++ compiler: {one_line(error)[:300]}"
                ) from error
            shutil.copyfile(compiled, path)
        return [path]

    def open(self, path: Path) -> Run:
        from torch._inductor import aoti_load_package

        return _run_module(aoti_load_package(str(path)))


RUNTIMES: dict[str, Runtime] = {"onnx": Onnx(), "openvino": OpenVino(), "pt2": Pt2(), "aoti": Aoti()}
