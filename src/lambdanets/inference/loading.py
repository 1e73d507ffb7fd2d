"""Trained models of any task are loaded, from weight files and folders in timm's hub format, and evaluated."""

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from pydantic import PositiveInt
from timm.data import ImageNetInfo
from torch import Tensor

from lambdanets.adoption import adopt, foreign_layers
from lambdanets.data.transforms import Preprocessing
from lambdanets.device import resolve_device
from lambdanets.errors import InputError, explain_missing_extras
from lambdanets.files import RECIPE
from lambdanets.inference.model_card import ClassifierCard, ModelCard, read_card
from lambdanets.inference.predictor import Evaluation, Predictor
from lambdanets.models import create_model
from lambdanets.models.factory import ADOPTED_PREFIX, read_hub_config
from lambdanets.models.weights import CONFIG, WeightSource, build_with_weights, find_weights, read_weights
from lambdanets.records import Workers, check, read_json, reraise_as_input_error
from lambdanets.registry import predictor_of


def load(path: str | os.PathLike[str] | WeightSource, *, device: str | torch.device | None = None) -> Predictor:
    """Load a trained classifier, detector or segmenter.

    Args:
        path: a run folder (weights.safetensors or, without it, checkpoints/last.ckpt), such a file, the name of a
            model in the package, such as "nuclei", a folder in timm's hub format, or "hf-hub:USER/NAME".
        device: such as "cpu" or "cuda:1"; by default the GPU if there is one.

    Raises InputError for a file without a model card, for weights that do not match the card, and for a device that
    does not exist.
    """
    resolved, source = resolve_device(device), find_weights(path)
    tensors, card = read_model(source)
    if card is None:
        raise InputError(f"{source.file} has no model card; use a weight file of a run, or create_model(NAME, FILE)")
    model_type: type[Predictor] = predictor_of(card.task)
    model = build_with_weights(lambda: model_type.build(card, len(card.classes)), tensors, source.name)
    model.to(memory_format=torch.channels_last)  # faster convolutions on CPU and GPU
    return model_type(model.to(resolved).eval(), card)


@explain_missing_extras()
def evaluate(
    model: Predictor | str | os.PathLike[str],
    data: str | os.PathLike[str] | None = None,
    *,
    batch_size: int | None = None,
    workers: int = 0,
    device: str | torch.device | None = None,
    **options: str | os.PathLike[str] | None,
) -> Evaluation:
    """Compute the accuracy of a classifier, the average precision of a detector, or Dice and IoU of a segmenter.

    Args:
        model: from `load`, or a path as for `load`.
        data: by default the validation data of the training run. For a classifier, a dataset with the same classes, in
            a format of `lambdanets train --data`: its validation split or, if it has none, what was held out in
            training, or all images of another dataset. For others, a COCO instances file with the same categories.
        batch_size: images per forward pass; by default 1, and 32 for a classifier.
        workers: number of data loading processes.
        device: moves the model to it.
        options: of a detector or segmenter, images: those of data, a folder or an uncompressed tar. Of a classifier,
            data_root: the folder of a dataset with a timm name such as "torch/cifar10".

    Images are preprocessed as in the model card. Returns an `Evaluation`, whose class depends on the model.
    """
    check("batch_size", batch_size, PositiveInt | None)
    check("workers", workers, Workers)
    if isinstance(model, str | os.PathLike):
        model = load(model, device=device)
    elif not isinstance(model, Predictor):
        raise InputError(f"model must be a model from load or a path, got {model!r}")
    elif device is not None:
        model.to(device)
    passed = {name: os.fspath(path) for name, path in {"data": data, **options}.items() if path is not None}
    return model.evaluator(**passed).evaluate(batch_size=batch_size, workers=workers)


def read_model(source: WeightSource) -> tuple[dict[str, Tensor], ModelCard | None]:
    """Read the weights of a source, and their card, or None if the file has none.

    A network of timm with lambda layers, in timm's hub format, is named "timm/NAME", and its tensors are those after
    `adopt`. The recipe of a run is that of recipe.json, since weight files do not name the data of the user.
    """
    tensors, metadata = read_weights(source.file)
    card = read_card(source.file, metadata) if "lambdanets" in metadata else None
    folder = source.file.parent
    if source.is_hub_format:
        config, name, options = read_hub_config(folder)
        options = {**options, "num_classes": config.get("num_classes")}
        network = build_with_weights(lambda: create_model(name, **options), tensors, str(folder))
        if card is None:
            with reraise_as_input_error(f"{folder / CONFIG} is not a configuration of timm"):
                card = card_from_config(config, name, options)
        if foreign_layers(network):
            adopt(network)
            name = f"{ADOPTED_PREFIX}{name}"
        return network.state_dict(), replace(card, model=name)
    recipe = (folder.parent if folder.name == "checkpoints" else folder) / RECIPE
    if card is not None and recipe.is_file():
        card = replace(card, recipe=read_json(recipe, dict[str, Any]))
    return tensors, card


def card_from_config(config: Mapping[str, Any], name: str, options: Mapping[str, Any]) -> ClassifierCard:
    """Return a model card for timm's configuration. 1000 classes without names are assumed to be those of ImageNet."""
    channels, height, width = config["input_size"]
    if height != width:
        raise InputError(f"input_size must be square, got {height}x{width}")
    if config.get("crop_mode", "center") != "center":
        raise InputError(f"crop_mode must be center, got {config['crop_mode']}")
    count, classes = config["num_classes"], config.get("label_names")
    if not classes:
        classes = ImageNetInfo().label_names() if count == 1000 else [f"class {index}" for index in range(count)]
    if isinstance(classes, dict):  # by index, which JSON may have sorted as text
        classes = [classes[index] for index in sorted(classes, key=int)]
    shared = {name: config[name] for name in ("mean", "std", "crop_pct", "interpolation")}
    return ClassifierCard(
        model=name,
        classes=tuple(classes),
        model_options={key: value for key, value in options.items() if key not in ("in_chans", "num_classes")},
        stretch=False,
        preprocessing=Preprocessing(image_size=height, channels=channels, **shared),
        recipe={},
    )
