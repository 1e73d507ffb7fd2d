"""A recipe's detector: built for training, its card, and its memory probe."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx.experimental import _config as meta_device

from lambdanets.errors import InputError
from lambdanets.inference.detector import build_detector
from lambdanets.inference.model_card import DetectorCard, make_card
from lambdanets.inference.weights import of_other_classes, resize_tables, weights_in
from lambdanets.models.mask_rcnn import MaskRCNN
from lambdanets.models.weights import load_tensors, read_weights
from lambdanets.training.detection.recipe import DetectionRecipe
from lambdanets.training.memory import MemoryProbe


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


@dataclass(frozen=True)
class DetectionProbe(MemoryProbe):
    """Of a recipe, for a number of categories, and of objects in an image at most."""

    recipe: DetectionRecipe
    classes: int
    objects: int = 1

    def build(self) -> nn.Module:
        return build_model(replace(self.recipe, weights=None), self.classes)

    def loss(self, model: nn.Module, images: int, device: torch.device) -> Tensor:
        return self._made_up(model, images) if device.type == "meta" else self._loss(model, images, device)

    def _loss(self, model: Any, images: int, device: torch.device) -> Tensor:
        """Of images of which one is padded, each with as many objects as there may be, as large as itself."""
        size = self.recipe.image_size
        sizes = [(size, size if number else -(-size // 2)) for number in range(images)]
        objects = max(self.objects, self.recipe.sampled_regions // 4, 1)
        boxes = [torch.tensor([[0.0, 0.0, *each[::-1]]], device=device).expand(objects, 4) for each in sizes]
        labels = torch.ones(objects, dtype=torch.int64, device=device)
        losses = model(
            [torch.rand(3, *each, device=device) for each in sizes],
            [
                {"boxes": box, "labels": labels, "masks": torch.ones(objects, *each, dtype=torch.uint8, device=device)}
                for box, each in zip(boxes, sizes, strict=True)
            ],
        )
        return torch.stack(list(losses.values())).sum()

    def _made_up(self, model: Any, images: int) -> Tensor:
        """The sum of what backbone, pyramid and heads compute, the latter for made-up regions: what is found where
        depends on numbers, which the meta device has not."""
        size, stride = self.recipe.image_size, model.backbone.strides[-1]
        side = -(-size // stride) * stride
        padded = [(size, size if number else max(1, size // 2)) for number in range(images)]
        with meta_device.patch(meta_nonzero_assume_all_nonzero=True):  # type: ignore[attr-defined]  # layers select the positions that are no padding
            maps = list(model.backbone(torch.empty(images, 3, side, side, device="meta"), padded).values())
        logits, offsets = model.rpn.head(maps)
        regions, channels = images * self.recipe.sampled_regions, self.recipe.pyramid_channels
        heads = model.roi_heads
        boxes = heads.box_predictor(heads.box_head(torch.empty(regions, channels, 7, 7, device="meta")))
        masks = heads.mask_predictor(heads.mask_head(torch.empty(-(-regions // 4), channels, 14, 14, device="meta")))
        return torch.stack([each.sum() for each in (*logits, *offsets, *boxes, masks)]).sum()

    @property
    def size(self) -> str:
        return f"{self.recipe.image_size} x {self.recipe.image_size}"
