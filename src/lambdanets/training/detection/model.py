"""Builds the model of a detection recipe and its model card."""

from collections.abc import Sequence

import torch
from torch import nn

from lambdanets.inference.detector import build_detector
from lambdanets.inference.model_card import DetectorCard, make_card
from lambdanets.models.mask_rcnn import MaskRCNN
from lambdanets.models.weights import match_names
from lambdanets.training.detection.recipe import DetectionRecipe
from lambdanets.training.initial_weights import read_initial_weights

# Prefixes of the tensors of the last layers.
_HEADS = ("roi_heads.box_predictor.", "roi_heads.mask_predictor.mask_fcn_logits.")


def make_model_card(recipe: DetectionRecipe, classes: Sequence[str], category_ids: Sequence[int]) -> DetectorCard:
    """Return the model card of the recipe's detector."""
    categories = {"classes": tuple(classes), "category_ids": tuple(category_ids)}
    return make_card(DetectorCard, recipe, **categories, stretch=False, tile_size=None)


def build_model(recipe: DetectionRecipe, classes: int | Sequence[str]) -> MaskRCNN:
    """Build the recipe's model for a number of categories or for category names, and load its initial weights, if any.

    The weights may be those of a detector or of a classifier. From a classifier, only the backbone is loaded. If a
    detector has other categories, its last layers are re-initialized.
    """
    class_names = tuple(map(str, range(classes))) if isinstance(classes, int) else tuple(classes)
    card = make_model_card(recipe, class_names, range(len(class_names)))
    model = build_detector(
        card,
        drop_path=recipe.drop_path,
        rpn_pre_nms_top_n_train=2 * recipe.proposals,
        rpn_post_nms_top_n_train=recipe.proposals,
        box_batch_size_per_image=recipe.sampled_regions,
    )
    model.transform._skip_resize = True  # in training, the data loader has resized the images
    if recipe.weights is not None:
        _load_initial_weights(model, recipe.weights, classes)
    return model.to(memory_format=torch.channels_last)


def _load_initial_weights(model: MaskRCNN, path: str, classes: int | Sequence[str]) -> None:
    weights = read_initial_weights(path, classes)
    module: nn.Module = model
    if not any("backbone.network." in name for name in weights.tensors):  # weights of a classifier
        module = model.backbone.network
        names = module.state_dict().keys()
        tensors = match_names(weights.tensors, names, weights.source)
        weights = weights._replace(tensors={name: tensors[name] for name in names & tensors.keys()})
    weights.load_into(module, _HEADS)
