"""Loads timm classifiers with lambda layers, and adopts a copy of them."""

import copy
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import timm
import torch
from torch import Tensor, nn

from lambdanets.adoption import adopt
from lambdanets.errors import InputError
from lambdanets.inference.classifier import Classifier
from lambdanets.inference.hub_folder import card_from_config, load_network
from lambdanets.inference.model_card import ClassifierCard, parse_card
from lambdanets.models import create_model
from lambdanets.models.factory import ADOPTED_PREFIX
from lambdanets.models.weights import build_with_weights, find_weights, read_weights, weights_in


@dataclass(frozen=True)
class Adopted:
    """A timm classifier before and after `adopt`. families: family of each replaced layer, by name of the layer."""

    original: Classifier
    adopted: Classifier
    families: dict[str, str]

    def random_images(self, count: int) -> Tensor:
        """Images of the size and on the device of the networks, the same at each call."""
        preprocessing = self.adopted.card.preprocessing
        shape = (count, preprocessing.channels, preprocessing.image_size, preprocessing.image_size)
        images = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        return images.to(next(self.adopted.model.parameters()).device)

    @torch.inference_mode()
    def max_error(self, images: Tensor) -> float:
        """Return max|adopted - original| / max|original| of the networks; `adopt` has compared each layer itself."""
        actual, expected = self.adopted.model(images), self.original.model(images)
        return float((actual - expected).abs().max() / expected.abs().max())


def load_and_adopt(source: str, model: str | None = None, *, pretrained: bool = True) -> Adopted:
    """Load a timm classifier and adopt a copy of it, both in evaluation mode.

    source: name of a timm model; "hf-hub:USER/NAME"; a folder in timm's hub format; or a weight file (.safetensors,
        .pth, .ckpt; read without running code from it).
    model: for a weight file, the name of its timm model.
    pretrained: for a name, download the published weights; otherwise initialize randomly.

    Raises InputError if the network has no lambda layers, or if a layer cannot be replaced.
    """
    name, path = source.removeprefix(ADOPTED_PREFIX), Path(source)
    is_hidden = weights_in(path) or (path.exists() and not timm.is_model(name))
    if ":" not in source and not is_hidden:  # an empty folder, such as --out, does not hide an architecture
        network = create_model(name, pretrained)
        card = _card(network)
    elif (found := find_weights(source)).is_hub_format:
        network, card = load_network(found.file.parent)
    else:
        network, card = _load_file(found.file, model)
    fields = {**card, "model": f"{ADOPTED_PREFIX}{card['model']}"}
    adopted = copy.deepcopy(network)
    families = adopt(adopted)
    classifier_card = parse_card(json.dumps(fields), ClassifierCard, source)
    original = Classifier(network.eval(), classifier_card)
    return Adopted(original, Classifier(adopted.eval(), classifier_card), families)


def _load_file(path: Path, model: str | None) -> tuple[nn.Module, dict[str, Any]]:
    """Create a timm model with the weights in a file, which determine the number of classes."""
    if model is None:
        raise InputError(f"model must be the name of the timm model whose weights are in {path}, got none")
    tensors, _ = read_weights(path)
    model = model.removeprefix(ADOPTED_PREFIX)
    head = str(timm.get_pretrained_cfg(model).classifier) if timm.is_model(model) else ""
    # training code puts prefixes before names
    num_classes = next((len(x) for name, x in tensors.items() if f".{name}".endswith(f".{head}.weight")), None)
    network = build_with_weights(lambda: create_model(model, num_classes=num_classes), tensors, str(path))
    return network, _card(network)


def _card(network: Any) -> dict[str, Any]:
    config = {**network.pretrained_cfg, "num_classes": network.num_classes}
    return card_from_config(config, config["architecture"], {})
