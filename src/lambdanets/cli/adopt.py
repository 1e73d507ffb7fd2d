"""`lambdanets adopt`."""

from pathlib import Path
from typing import Annotated, Any

from lambdanets.cli.options import POSITIONAL, parse
from lambdanets.records import record
from lambdanets.terminal import echo
from lambdanets.work import WorkFolder


@record
class Adopt:
    """Replace the lambda layers of a timm model, and save it.

    Outputs are compared: of each layer in float64, with that of timm, and of the network with the saved one.
    """

    source: Annotated[str, POSITIONAL]
    """timm model, such as lambda_resnet26t, hf-hub:USER/NAME, a folder in timm's hub format, or a weight file."""
    out: Path
    """Folder for config.json, model.safetensors and README.md, in timm's hub format."""
    model: str | None = None
    """For a weight file: name of its timm model."""
    pretrained: bool = True
    """For the name of a model: download its published weights. Otherwise it is initialized randomly."""


def main(arguments: list[str]) -> int:
    """Run `lambdanets adopt` and return its exit code."""
    options = parse(Adopt, arguments, "adopt")
    WorkFolder(options.out).is_started()  # before PyTorch is imported, which takes seconds
    from lambdanets.adoption import adopted_layers
    from lambdanets.inference.hub import load_adopted, save_pretrained

    adopted: Any = load_adopted(options.source, options.model, pretrained=options.pretrained)
    save_pretrained(adopted, options.out)
    network = getattr(adopted, "model", adopted)  # of a classifier
    echo(*(f"{name}: replaced; same outputs" for name in adopted_layers(network)))
    commands = "evaluate --data DATA | predict | train --weights"
    echo(f"model folder: {options.out}; load it with lambdanets {commands}, or timm")
    return 0
