"""A recipe's detector: built for training, from weights where the recipe names some; and its card."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from lambdanets.errors import InputError
from lambdanets.inference.detector import build_detector
from lambdanets.inference.model_card import DetectorCard, make_card
from lambdanets.inference.weights import of_other_classes, resize_tables, weights_in
from lambdanets.models.mask_rcnn import MaskRCNN
from lambdanets.models.weights import load_tensors, read_weights
from lambdanets.training.detection.recipe import DetectionRecipe


def card_of(recipe: DetectionRecipe, classes: Sequence[str], category_ids: Sequence[int]) -> DetectorCard:
    """What a file of weights says of the recipe's detector."""
    more = {"classes": tuple(classes), "category_ids": tuple(category_ids)}
    return make_card(DetectorCard, recipe.fields() | more, "the recipe")


def describe(recipe: DetectionRecipe, classes: Sequence[str], category_ids: Sequence[int]) -> str:
    """The card and the recipe, as files of weights keep them."""
    return card_of(recipe, classes, category_ids).to_json(recipe.fields())


def build_model(recipe: DetectionRecipe, classes: int | Sequence[str]) -> MaskRCNN:
    """The recipe's model for a number of categories, or of these names, from the recipe's weights if it has some.

    Those may be a detector's, of whose heads what tells other categories apart is re-initialized, or a classifier's,
    of which the backbone takes its part.
    """
    fixed = {"num_classes", "in_chans", "features_only", "out_indices", "pretrained"} & recipe.model_options.keys()
    if fixed:
        instead = (
            "; to begin from timm's pretrained weights, save the network's state dict as a .safetensors file and give "
            "that as weights"
        )
        raise InputError(
            f"model_options must leave {', '.join(sorted(fixed))} to the data and the recipe"
            + (instead if "pretrained" in fixed else "")
        )
    names = tuple(map(str, range(classes))) if isinstance(classes, int) else tuple(classes)
    card = card_of(recipe, names, range(len(names)))
    model = build_detector(
        card,
        drop_path=recipe.drop_path,
        rpn_pre_nms_top_n_train=2 * recipe.proposals,
        rpn_post_nms_top_n_train=recipe.proposals,
        box_batch_size_per_image=recipe.sampled_regions,
    )
    model.transform._skip_resize = True  # in training: the images come as they are to be seen
    if recipe.weights is not None:
        _load(model, Path(recipe.weights), classes)
    return model.to(memory_format=torch.channels_last)


def _load(model: MaskRCNN, path: Path, classes: int | Sequence[str]) -> None:
    file = weights_in(path)
    tensors, rest = read_weights(file)
    others = of_other_classes(file, rest, classes)
    into: nn.Module = model
    if not any(name.startswith("backbone.network.") for name in tensors):  # a classifier's
        into = model.backbone.network
        plain = {_plain(name): tensor for name, tensor in tensors.items()}
        tensors = {name: plain[_plain(name)] for name in into.state_dict() if _plain(name) in plain}
    own = into.state_dict()
    for part in ("roi_heads.box_predictor.", "roi_heads.mask_predictor.mask_fcn_logits."):
        for name in own:
            if name.startswith(part) and name in tensors and (others or tensors[name].shape != own[name].shape):
                tensors[name] = own[name]
    resize_tables(into, tensors)
    load_tensors(into, tensors, str(path))


def _plain(name: str) -> str:
    """A tensor's name without what timm changes of it where a network gives maps."""
    return name.removeprefix("model.").replace("_", ".")
