"""`lambdanets adopt`."""

from pathlib import Path
from typing import Annotated, Any

from lambdanets.cli.options import POSITIONAL, parse
from lambdanets.errors import InputError
from lambdanets.records import record
from lambdanets.terminal import echo
from lambdanets.work import WorkFolder


@record
class Adopt:
    """Replace the lambda layers of a timm model, and save it.

    Outputs are compared: of each layer in float64, with that of timm, and of the network with the saved one.
    """

    model: Annotated[str, POSITIONAL]
    """timm model, such as lambda_resnet26t, hf-hub:USER/NAME, or a folder in timm's hub format."""
    out: Path
    """Folder for config.json, model.safetensors and README.md, in timm's hub format."""
    pretrained: bool = True
    """For the name of a model: download its published weights. Otherwise it is initialized randomly."""


def main(arguments: list[str]) -> None:
    """Run `lambdanets adopt`."""
    options = parse(Adopt, arguments, "adopt")
    WorkFolder(options.out).is_started()  # before PyTorch is imported, which takes seconds
    from lambdanets.adoption import adopted_layers
    from lambdanets.inference.loading import load
    from lambdanets.models.factory import ADOPTED_PREFIX, create_model
    from lambdanets.models.weights import weights_in
    from lambdanets_lab.export.hub import save_pretrained

    name = options.model.removeprefix(ADOPTED_PREFIX)
    # a folder without weights hides no architecture
    if ":" in name or "/" in name or weights_in(Path(options.model)):
        model: Any = load(options.model, device="cpu")
    else:
        model = create_model(ADOPTED_PREFIX + name, options.pretrained)
    if not (layers := adopted_layers(getattr(model, "model", model))):  # of a classifier, its network
        raise InputError(f"{options.model} must contain lambda layers that adopt knows, got none")
    save_pretrained(model, options.out)
    echo(*(f"{name}: replaced; same outputs" for name in layers))
    commands = "evaluate --data DATA | predict | train --weights"
    echo(f"model folder: {options.out}; load it with lambdanets {commands}, or timm")
