"""A trained detector: which model, its categories, its weights."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lambdanets.bounds import fits
from lambdanets.data.coco.annotations import Category
from lambdanets.device import best_device
from lambdanets.errors import InputError
from lambdanets.models.mask_rcnn import MaskRCNN, mask_rcnn
from lambdanets.models.weights import load_tensors, read_weights
from lambdanets.training.detection.recipe import DetectionRecipe
from lambdanets.training.weight_files import of_other_classes, read_described, resize_tables, weights_in

MASK_THRESHOLD = 0.5  # of a pixel's probability


@dataclass(frozen=True)
class Detector:
    """A model in evaluation mode on the best device, its recipe, the names of its categories and their ids."""

    model: MaskRCNN
    recipe: DetectionRecipe
    classes: tuple[str, ...]
    category_ids: tuple[int, ...]

    @property
    def categories(self) -> tuple[Category, ...]:
        """What it tells apart, in order of the ids."""
        return tuple(map(Category, self.category_ids, self.classes))

    @torch.inference_mode()
    def find(self, images: Sequence[Tensor]) -> list[dict[str, Tensor]]:
        """What is found in images (3, H, W) in [0, 1], on the processor, float32: as `MaskRCNN` gives it."""
        device = next(self.model.parameters()).device
        found = self.model([image.to(device) for image in images])
        return [{name: tensor.cpu() for name, tensor in each.items()} for each in found]


def build_detector(recipe: DetectionRecipe, classes: int | Sequence[str]) -> MaskRCNN:
    """The recipe's model for categories, so many or of these names, from the recipe's weights where it names some.

    Those may be a detector's, of whose heads what tells other categories apart is drawn afresh, or a classifier's, of
    which the backbone takes its part.
    """
    options: dict[str, Any] = dict(recipe.model_options)
    fixed = {"num_classes", "in_chans", "features_only", "out_indices", "pretrained"} & options.keys()
    if fixed:
        instead = (
            "; to begin from timm's pretrained weights, save the network's state dict as a .safetensors file and give "
            "that as weights"
        )
        raise InputError(
            f"model_options must leave {', '.join(sorted(fixed))} to the data and the recipe"
            + (instead if "pretrained" in fixed else "")
        )
    if recipe.drop_path:
        options["drop_path_rate"] = recipe.drop_path
    model = mask_rcnn(
        recipe.model,
        classes if isinstance(classes, int) else len(classes),
        image_size=recipe.image_size,
        levels=recipe.levels,
        pyramid_channels=recipe.pyramid_channels,
        box_layers=recipe.box_layers,
        mask_layers=recipe.mask_layers,
        anchor_scale=recipe.anchor_scale,
        aspect_ratios=recipe.aspect_ratios,
        image_mean=recipe.mean,
        image_std=recipe.std,
        hide_padding=recipe.hide_padding,
        mask_threshold=MASK_THRESHOLD,
        backbone_options=options,
        rpn_pre_nms_top_n_train=2 * recipe.proposals,
        rpn_pre_nms_top_n_test=2 * recipe.proposals,
        rpn_post_nms_top_n_train=recipe.proposals,
        rpn_post_nms_top_n_test=recipe.proposals,
        box_batch_size_per_image=recipe.sampled_regions,
        box_detections_per_img=recipe.detections,
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


def load_detector(path: str | Path) -> Detector:
    """The detector in weights.safetensors, in a checkpoint (.ckpt), or in the folder of a run.

    Weights that do not fit raise InputError with the names that differ, as does a file that does not say what it holds.
    """
    tensors, content = read_described(Path(path))
    recipe = DetectionRecipe.from_fields(content["recipe"], str(path))
    given = content.get("category_ids")
    ids = tuple(given) if isinstance(given, list) else ()
    if not fits(ids, tuple[int, ...]) or len(ids) != len(content["classes"]):
        raise InputError(f"{path} does not say which ids its categories have; expected a file that a run left")
    built = build_detector(replace(recipe, weights=None), len(content["classes"]))
    load_tensors(built, tensors, str(path))
    return Detector(built.to(best_device()).eval(), recipe, content["classes"], ids)
