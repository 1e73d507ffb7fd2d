"""`lambdanets adopt`."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import tyro

from lambdanets.bounds import Range, check
from lambdanets.cli.arguments import parse
from lambdanets.cli.image_results import report_unreadable
from lambdanets.errors import InputError
from lambdanets.folders import WorkFolder
from lambdanets.terminal import echo

if TYPE_CHECKING:
    from lambdanets.inference.adopted import Adopted

MAX_ERROR = 1e-3  # deep randomly initialized networks amplify rounding in float32 to a few 1e-5


@dataclasses.dataclass(frozen=True)
class Adopt:
    """Options of adopt."""

    GROUPS: ClassVar[dict[str, tuple[str, ...]]] = {
        "comparison": ("images", "device"),
        "timing": ("batch_size", "seconds"),
    }

    source: tyro.conf.Positional[str]
    """timm model, such as lambda_resnet26t, hf-hub:USER/NAME, a folder in timm's hub format, or a weight file."""
    out: Path
    """Folder for config.json, model.safetensors and README.md, in timm's hub format."""
    model: str | None = None
    """For a weight file: name of its timm model."""
    pretrained: bool = True
    """For the name of a model: download its published weights. Otherwise it is initialized randomly."""
    images: Annotated[tuple[str, ...], tyro.conf.arg(metavar="IMAGE")] = ()
    """Image files, folders and globs, on which the outputs are compared too."""
    batch_size: int = 8
    """Images per forward pass in the timing."""
    seconds: float = 5.0
    """Time limit of the timing, for each of the two networks; 0 skips it."""
    device: str | None = None
    """cpu, cuda, or one GPU such as cuda:1; the GPU, if there is one, by default."""

    def __post_init__(self) -> None:
        check("batch_size", self.batch_size, int, Range(1))
        check("seconds", self.seconds, float, Range(0))


def main(arguments: list[str]) -> int:
    """Run `lambdanets adopt` and return its exit code."""
    options = parse(
        Adopt,
        arguments,
        prog="lambdanets adopt",
        description="Replace the lambda layers of a timm model, compare outputs and speed, and save the model.",
    )
    WorkFolder(options.out).is_started()  # before PyTorch is imported, which takes seconds
    paths = _find_images(options)
    from lambdanets.device import resolve_device
    from lambdanets.inference.adopted import load_and_adopt
    from lambdanets.inference.hub import save_pretrained

    networks = load_and_adopt(options.source, options.model, pretrained=options.pretrained)
    for classifier in (networks.original, networks.adopted):
        classifier.to(resolve_device(options.device))
    for name, family in networks.families.items():
        echo(f"{name}: layer of {family}")
    _compare(networks, paths)
    if options.seconds > 0:
        _time(networks, options)
    save_pretrained(networks.adopted, options.out)
    commands = "evaluate --data DATA | predict | train --weights"
    echo(f"model folder: {options.out}; load it with lambdanets {commands}, or timm")
    return 0


def _find_images(options: Adopt) -> list[Path]:
    if not options.images:
        return []
    from lambdanets.data.image_search import find_images, report_left_out

    found = find_images(options.images)
    report_left_out(found)
    return found.paths


def _compare(networks: "Adopted", paths: list[Path]) -> None:
    """Print how far the outputs differ on random and on given images. Raises InputError if they differ too much."""
    import torch

    preprocessing = networks.adopted.card.preprocessing
    shape = (2, preprocessing.channels, preprocessing.image_size, preprocessing.image_size)
    device = next(networks.adopted.model.parameters()).device
    error = networks.max_error(torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(device))
    echo(f"outputs of layers and network on random images: largest relative difference {error:.1e}")
    if paths:
        from lambdanets.inference.classifier import predict_files

        unreadable: list[str] = []
        pairs = [
            (before, after)
            for (_, before), (_, after) in zip(
                predict_files(networks.original, paths, unreadable),
                predict_files(networks.adopted, paths, []),
                strict=True,
            )
        ]
        report_unreadable(unreadable)
        num_equal = sum(before.class_name == after.class_name for before, after in pairs)
        largest = max((float((a.probabilities - b.probabilities).abs().max()) for a, b in pairs), default=0.0)
        echo(f"predictions on {len(pairs)} images: {num_equal} equal, largest probability difference {largest:.1e}")
    if not error <= MAX_ERROR:
        raise InputError(f"outputs must agree within {MAX_ERROR}, got {error:.1e}; nothing was saved; report this")


def _time(networks: "Adopted", options: Adopt) -> None:
    """Print the time of a forward pass before and after, measured alternately."""
    import torch

    from lambdanets.timing import summarize, time_interleaved

    preprocessing = networks.adopted.card.preprocessing
    device = next(networks.adopted.model.parameters()).device
    shape = (options.batch_size, preprocessing.channels, preprocessing.image_size, preprocessing.image_size)
    images = torch.randn(shape, device=device)

    def run(network: torch.nn.Module, layout: torch.memory_format) -> None:
        with torch.inference_mode():
            network(images.contiguous(memory_format=layout))

    runs = {
        "before": lambda: run(networks.original.model, torch.contiguous_format),
        "after": lambda: run(networks.adopted.model, torch.contiguous_format),
    }
    samples: dict[str, list[float]] = {name: [] for name in runs}
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    time_interleaved(runs, samples, repeats=20, seconds=options.seconds, synchronize=wait)
    before, after = (summarize(samples[name]).median for name in ("before", "after"))
    echo(
        f"forward pass of {options.batch_size} images: {before * 1e3:.0f} ms before, {after * 1e3:.0f} ms after, "
        f"{before / after:.2f} times as fast"
    )
