"""`lambdanets explain`."""

from pathlib import Path
from typing import Annotated, Any

from lambdanets.cli.options import POSITIONAL, Device, Model, parse
from lambdanets.records import record
from lambdanets.terminal import echo
from lambdanets.work import WorkFolder


@record
class Explain:
    """Show what lambda layers look at in an image.

    Exact attention maps by content and by position, the share of each, the keys, and the receptive field.
    """

    model: Model
    image: Annotated[Path, POSITIONAL]
    """Image file."""
    out: Path
    """New folder for figures (PNG)."""
    at: tuple[int, int] | None = None
    """Row and column of a pixel, for its attention map and receptive field; by default the center of the image."""
    channel: int | None = None
    """Channel or plane of the image, from 0; needed for files with several, except color images."""
    layer: str | None = None
    """Name of a lambda layer; by default the last one. The command lists them."""
    device: Device = None


def main(arguments: list[str]) -> None:
    """Run `lambdanets explain`."""
    options = parse(Explain, arguments, "explain")
    folder = WorkFolder(options.out)
    folder.is_started()  # before PyTorch is imported, which takes seconds
    from lambdanets.inference.loading import load
    from lambdanets_lab.explain.explanation import explain
    from lambdanets_lab.explain.report import write_report

    model: Any = load(options.model, device=options.device)
    (image,) = model.decode(options.image, channel=options.channel)
    explanation = explain(model, image, stretch=False)
    at = (image.height // 2, image.width // 2) if options.at is None else options.at
    layer = explanation.layers[-1] if options.layer is None else options.layer
    with folder.open():
        echo(*write_report(explanation, image, layer, at, options.out))
    echo(f"written to {options.out}: {', '.join(sorted(path.name for path in options.out.iterdir()))}")
