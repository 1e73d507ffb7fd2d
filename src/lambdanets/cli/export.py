"""`lambdanets export`."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

import tyro

from lambdanets.bounds import Range, check
from lambdanets.cli.arguments import parse
from lambdanets.errors import InputError
from lambdanets.terminal import echo

if TYPE_CHECKING:
    from lambdanets.deployment.export import Exported

WEIGHTS = (".safetensors", ".ckpt")
SUFFIXES = {"onnx": ".onnx", "openvino": ".xml", "pt2": ".pt2"}


@dataclasses.dataclass(frozen=True)
class Export:
    """Options of export."""

    GROUPS: ClassVar[dict[str, tuple[str, ...]]] = {"shape": ("image_size", "batch_size", "dynamic")}

    source: tyro.conf.Positional[str]
    """Run folder, weight file, hub folder, hf-hub:USER/NAME, or the name of a model, which gets random weights."""
    to: Literal["onnx", "openvino", "pt2"] = "onnx"
    """Format: onnx for ONNX Runtime; openvino, an .xml and a .bin file; pt2 for torch.export."""
    out: Path | None = None
    """New file; by default model.onnx, model.xml or model.pt2."""
    image_size: tuple[int, ...] = ()
    """Side, or height and width, of the images; those of the model by default."""
    batch_size: int = 1
    """Images per batch; with --dynamic any number is possible."""
    dynamic: bool = False
    """Export a graph for any batch size and image size. It is slower than one for a fixed size."""
    seconds: float = 5.0
    """Time limit of the timing, for each of the runtime and PyTorch; 0 skips it."""

    def __post_init__(self) -> None:
        check("batch_size", self.batch_size, int, Range(1))
        check("seconds", self.seconds, float, Range(0))
        if len(self.image_size) > 2:
            raise InputError(f"image_size must be one or two sides, got {len(self.image_size)}")


def main(arguments: list[str]) -> int:
    """Run `lambdanets export` and return its exit code."""
    options = parse(
        Export,
        arguments,
        prog="lambdanets export",
        description="Export a classifier to a file for another runtime, run the file, and compare outputs and speed.",
    )
    from lambdanets.deployment.export import export
    from lambdanets.deployment.runtimes import RUNTIMES
    from lambdanets.models import create_model

    out = options.out or Path(f"model{SUFFIXES[options.to]}")
    source = Path(options.source)
    is_path = source.exists() or source.suffix in WEIGHTS or options.source.startswith(("hf-hub:", "local-dir:"))
    size = options.image_size
    exported = export(
        options.source if is_path else create_model(options.source),
        out,
        to=options.to,
        image_size=None if not size else (size[0], size[-1]),
        batch_size=options.batch_size,
        dynamic=options.dynamic,
    )
    for shape, error in exported.errors.items():
        sides = " x ".join(map(str, shape))
        echo(f"outputs for images {sides}: relative difference {error:.1e} from PyTorch")
    if options.seconds > 0:
        _time(exported, RUNTIMES[options.to].title, options.seconds)
    for file in exported.files:
        echo(f"{file}: {file.stat().st_size / 2**20:.1f} MiB")
    return 0


def _time(exported: "Exported", title: str, seconds: float) -> None:
    """Print the times of the runtime and of PyTorch, measured alternately."""
    import torch

    from lambdanets.evidence.benchmark.timing import summarize, time_interleaved

    shape = next(iter(exported.errors))
    images = torch.randn(shape)

    def run_network() -> None:
        with torch.inference_mode():
            exported.network(images)

    runs = {"PyTorch": run_network, title: lambda: exported.run(images)}
    samples: dict[str, list[float]] = {name: [] for name in runs}
    time_interleaved(runs, samples, repeats=50, seconds=seconds)
    before, after = (1e3 * summarize(samples[name]).median for name in runs)
    echo(f"{shape[0]} images, {torch.get_num_threads()} threads: {title} {after:.1f} ms, PyTorch {before:.1f} ms")
