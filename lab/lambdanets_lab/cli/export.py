"""`lambdanets export`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import NonNegativeFloat, PositiveInt

from lambdanets.cli.options import POSITIONAL, parse
from lambdanets.errors import InputError
from lambdanets.records import record
from lambdanets.terminal import echo, plural
from lambdanets.work import check_new_file

if TYPE_CHECKING:
    from lambdanets_lab.export.export import Exported
    from lambdanets_lab.export.int8 import Quantization

MIN_IMAGES = 200  # one of 200 images is 0.5 percentage points of accuracy, the maximum loss by quantization
DEFAULT_FILES = {"onnx": "model.onnx", "openvino": "model.xml", "pt2": "model.pt2", "aoti": "model.aoti.pt2"}


@record
class Export:
    """Export a model to a file for another runtime, run the file, and compare outputs and speed."""

    model: Annotated[str, POSITIONAL]
    """Run folder, weight file, hub folder, hf-hub:USER/NAME, or trained model of the package, such as digits; or the
    name of an architecture, which gets random weights."""
    to: Literal["onnx", "openvino", "pt2", "aoti"] = "onnx"
    """onnx for ONNX Runtime; openvino, an .xml and a .bin file; pt2 for torch.export; aoti compiled for this CPU."""
    out: Path | None = None
    """New file; by default model.onnx, model.xml, model.pt2 or model.aoti.pt2."""
    image_size: tuple[int, ...] = ()
    """Side, or height and width, of the images; those of the model by default, 256 for a U-Net."""
    batch_size: PositiveInt = 1
    """Images per batch; with --dynamic any number is possible."""
    dynamic: bool = False
    """Export a graph for any batch size and image size. It is slower than one for a fixed size."""
    int8: str | None = None
    """Quantize a classifier to int8 (onnx, openvino), with labeled data as for train --data."""
    seconds: NonNegativeFloat = 5.0
    """Time limit of the timing, for each of the runtime and PyTorch; 0 skips it."""

    def __post_init__(self) -> None:
        if len(self.image_size) > 2:
            raise InputError(f"image_size must be one or two sides, got {len(self.image_size)}")
        suffix = Path(DEFAULT_FILES[self.to]).suffix
        if self.out is not None and self.out.suffix != suffix:
            raise InputError(f"--out must end in {suffix} for --to {self.to}, got {self.out}")


def main(arguments: list[str]) -> None:
    """Run `lambdanets export`."""
    options = parse(Export, arguments, "export")
    out = options.out or Path(DEFAULT_FILES[options.to])
    check_new_file(out)  # before PyTorch is imported, which takes seconds
    from lambdanets.models import create_model
    from lambdanets_lab.export.export import export
    from lambdanets_lab.export.graphs import fill_zero_norm_weights
    from lambdanets_lab.export.runtimes import RUNTIMES

    size = options.image_size
    model: Any = options.model
    if not _is_path(model):  # an architecture with random weights
        model = create_model(model)
        echo(f"{options.model} is the name of a network: its weights are random, for sizes and times")
        fill_zero_norm_weights(model)
    exported = export(
        model,
        out,
        to=options.to,
        image_size=None if not size else (size[0], size[-1]),
        batch_size=options.batch_size,
        dynamic=options.dynamic,
        int8=options.int8,
    )
    precision = "" if exported.quantization is None else "float32, "
    for shape, error in exported.errors.items():
        echo(f"{precision}images {' x '.join(map(str, shape))}: {exported.graph.error_name}: {error:.2g}")
    if exported.quantization is not None:
        _report_int8(exported.quantization)
    if options.seconds > 0:
        _time(exported, RUNTIMES[options.to].title, options.seconds)
    for file in exported.files:
        echo(f"{file}: {file.stat().st_size / 2**20:.1f} MiB")


def _is_path(model: str) -> bool:
    """Whether the model is a file, a folder or on the hub, and not the name of an architecture."""
    from lambdanets.models.weights import packaged_models, weights_in

    path = Path(model)
    if weights_in(path) or path.suffix.lower() in (".safetensors", ".ckpt") or ":" in model:
        return True
    return model in packaged_models() or (path.name != model and not model.startswith("timm/"))


def _report_int8(result: "Quantization") -> None:
    """Print accuracy and size of int8 and float32."""
    echo(
        f"int8: top-1 accuracy {100 * result.accuracy:.2f}%, float32 {100 * result.float_accuracy:.2f}%, "
        f"on {plural(result.images, 'validation image')}; float32 file {result.float_bytes / 2**20:.1f} MiB"
    )
    if result.images < MIN_IMAGES:
        points = 100 / result.images
        echo(f"{result.images} validation images are few: one image is {points:.1f} percentage points of accuracy")


def _time(exported: "Exported", title: str, seconds: NonNegativeFloat) -> None:
    """Print the times of the runtime and of PyTorch, measured alternately."""
    import torch

    from lambdanets_lab.timing import summarize, time_interleaved

    shape = next(iter(exported.errors))
    images = exported.graph.make_images(shape, torch.Generator().manual_seed(0))
    runs = {title: lambda: exported.run(images), "PyTorch": lambda: exported.graph.run_pytorch(images)}
    if "boxes" in exported.graph.outputs:
        echo(f"{plural(len(exported.graph.run_pytorch(images)[0]), 'object')} in the timed image")
    times = []
    for name, samples in time_interleaved(runs, repeats=50, seconds=seconds).items():
        median, lower, upper = (1e3 * value for value in summarize(samples))
        times.append(f"{name} {median:.1f} ({lower:.1f} to {upper:.1f}) ms")
    conditions = f"{plural(shape[0], 'image')}, {plural(torch.get_num_threads(), 'thread')}"
    echo(f"{conditions}, median (quartiles): {', '.join(times)}")
