"""`lambdanets adopt`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import NonNegativeFloat, PositiveInt

from lambdanets.cli.options import POSITIONAL, parse
from lambdanets.cli.predict import report_unreadable
from lambdanets.errors import InputError
from lambdanets.records import record
from lambdanets.terminal import echo
from lambdanets.work import WorkFolder

if TYPE_CHECKING:
    from lambdanets.inference.hub import Adopted


@record
class Adopt:
    """Replace the lambda layers of a timm model, compare outputs and speed, and save the model."""

    source: Annotated[str, POSITIONAL]
    """timm model, such as lambda_resnet26t, hf-hub:USER/NAME, a folder in timm's hub format, or a weight file."""
    out: Path
    """Folder for config.json, model.safetensors and README.md, in timm's hub format."""
    model: str | None = None
    """For a weight file: name of its timm model."""
    pretrained: bool = True
    """For the name of a model: download its published weights. Otherwise it is initialized randomly."""
    images: tuple[str, ...] = ()
    """Image files, folders and globs, on which the outputs are compared too."""
    batch_size: PositiveInt = 8
    """Images per forward pass in the timing."""
    seconds: NonNegativeFloat = 5.0
    """Time for which each of the two networks is timed; 0 skips it."""
    device: str | None = None
    """cpu, cuda, or one GPU such as cuda:1; the GPU, if there is one, by default."""


def main(arguments: list[str]) -> int:
    """Run `lambdanets adopt` and return its exit code."""
    options = parse(Adopt, arguments, "adopt")
    from lambdanets.data.image_search import find_images, report_left_out

    WorkFolder(options.out).is_started()  # before PyTorch is imported, which takes seconds
    found = find_images(options.images)
    report_left_out(found)
    from lambdanets.device import resolve_device
    from lambdanets.inference.hub import load_and_adopt, save_pretrained

    networks = load_and_adopt(options.source, options.model, pretrained=options.pretrained)
    for classifier in (networks.original, networks.adopted):
        classifier.to(resolve_device(options.device))
    for name, family in networks.families.items():
        echo(f"{name}: layer of {family}")
    _compare(networks, found.paths)
    if options.seconds > 0:
        _time(networks, options.batch_size, options.seconds)
    save_pretrained(networks.adopted, options.out)
    commands = "evaluate --data DATA | predict | train --weights"
    echo(f"model folder: {options.out}; load it with lambdanets {commands}, or timm")
    return 0


def _compare(networks: "Adopted", paths: list[Path]) -> None:
    """Print how far outputs differ on random and given images. Raises InputError if it is far."""
    from lambdanets.inference.hub import MAX_ERROR, max_error, random_images

    images = random_images(networks.adopted, 2)
    error = max_error(networks.adopted.model, networks.original.model, images)
    echo(f"outputs on random images: largest relative difference {error:.1e}")
    if paths:
        unreadable: list[str] = []
        before = networks.original.predict_files(paths, unreadable)
        after = networks.adopted.predict_files(paths, [])
        pairs = [(a, b) for (*_, a), (*_, b) in zip(before, after, strict=True)]
        report_unreadable(unreadable)
        num_equal = sum(a.class_name == b.class_name for a, b in pairs)
        differences = [float((a.probabilities - b.probabilities).abs().max()) for a, b in pairs]
        largest = f"largest probability difference {max(differences, default=0.0):.1e}"
        echo(f"predictions on {len(pairs)} images: {num_equal} equal, {largest}")
    if not error <= MAX_ERROR:
        message = f"outputs must agree within {MAX_ERROR}, got {error:.1e}"
        raise InputError(f"{message}; nothing was saved; report this")


def _time(networks: "Adopted", batch_size: PositiveInt, seconds: float) -> None:
    """Print the median time of a forward pass of the two networks."""
    import torch
    from torch.utils.benchmark import Timer

    from lambdanets.inference.hub import random_images

    images = random_images(networks.adopted, batch_size)
    models = (networks.original.model, networks.adopted.model)
    names = [{"model": model, "images": images} for model in models]
    timers = [Timer("model(images)", globals=each, num_threads=torch.get_num_threads()) for each in names]
    with torch.inference_mode():
        before, after = (1e3 * timer.blocked_autorange(min_run_time=seconds).median for timer in timers)
    ratio = f"{before:.0f} ms before, {after:.0f} ms after, {before / after:.2f} times as fast"
    echo(f"forward pass of {batch_size} images: {ratio}")
