"""Mask R-CNN (He et al. 2017) with a feature pyramid (Lin et al. 2017) on a backbone of this package or of timm.

It extends torchvision's implementation in four ways: images may have any size and shape; outputs do not depend on
padding (`padding.py`); the scales of pyramid levels are computed from their strides instead of inferred from the first
batch; and boxes are float32 also under autocast, because bfloat16 represents only every fourth pixel beyond 512.
"""

import inspect
import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from timm.models import is_model_in_modules
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map
from torchvision.models.detection import MaskRCNN as TorchvisionMaskRCNN
from torchvision.models.detection.faster_rcnn import FastRCNNConvFCHead, FastRCNNPredictor
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.models.detection.roi_heads import paste_masks_in_image
from torchvision.models.detection.rpn import AnchorGenerator, RegionProposalNetwork, RPNHead
from torchvision.models.detection.transform import GeneralizedRCNNTransform, resize_boxes
from torchvision.ops import FeaturePyramidNetwork, MultiScaleRoIAlign
from torchvision.ops.feature_pyramid_network import LastLevelMaxPool
from torchvision.ops.poolers import initLevelMapper

from lambdanets.errors import InputError, nearest_hint
from lambdanets.models.factory import create_model
from lambdanets.models.padding import (
    add_padding_hooks,
    check_padded_batches,
    current_padding,
    keep_for_backward,
    padded_batch,
)
from lambdanets.models.weights import NON_FINITE
from lambdanets.ops.precision import accumulation_dtype

Target = dict[str, Tensor]
_PADDING_LOGIT = -100.0  # objectness logit of anchors in padding, a probability of 4e-44
_MIN_OBJECTNESS = 1e-30


class PyramidBackbone(nn.Module):
    """A feature pyramid network (FPN) on a backbone.

    Returns maps by name, from "0", the finest, to "pool", the coarsest, in float32 or float64. `strides` are the
    strides of the maps, powers of two.

    Args:
        network: network with features_only=True, as created by timm or this package.
        channels: number of channels of each map of the pyramid.
    """

    def __init__(self, network: nn.Module, channels: int) -> None:
        super().__init__()
        info: Any = network.feature_info
        self.network = network
        self.pyramid = FeaturePyramidNetwork(
            info.channels(), channels, extra_blocks=LastLevelMaxPool(), norm_layer=nn.BatchNorm2d
        )
        self.out_channels = channels
        strides = list(info.reduction())
        self.strides = (*strides, 2 * strides[-1])

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        maps = self.network(images)
        levels = self.pyramid({str(level): x for level, x in enumerate(maps)})
        if padding := current_padding():
            levels = {name: padding.replicate_border(x) for name, x in levels.items()}
        # anchors have the dtype of the maps, and RoIAlign takes maps and boxes of one dtype
        return {name: keep_for_backward(x.to(accumulation_dtype(x.dtype))) for name, x in levels.items()}


class MaskRCNN(TorchvisionMaskRCNN):
    """Mask R-CNN for images of any size, each (3, H, W) with values in [0, 1].

    In training mode, it requires one target dictionary per image, with boxes (n, 4) as x1, y1, x2, y2 in pixels, labels
    (n,) int64 from 1, and masks (n, H, W) uint8, and returns the losses by name. n may be 0. In eval mode, it returns
    one dictionary per image with boxes, labels, scores, and masks (n, 1, H, W) at the original size of the image, as
    probabilities or bool.
    """

    # for initial weights: the last layers, and the part that a classifier's weights are loaded into
    HEADS = ("roi_heads.box_predictor", "roi_heads.mask_predictor.mask_fcn_logits")
    BACKBONE = "backbone.network"

    def forward(
        self, images: list[Tensor], targets: list[Target] | None = None
    ) -> dict[str, Tensor] | list[dict[str, Tensor]]:
        for index, target in enumerate(targets or ()):
            boxes = target["boxes"]
            is_empty = (boxes[:, 2:] > boxes[:, :2]).logical_not().any(1)
            if is_empty.any():
                raise InputError(
                    "targets must have boxes with x1 below x2 and y1 below y2, "
                    f"got {boxes[is_empty][0].tolist()} of image {index}"
                )
        original_sizes = [(image.shape[-2], image.shape[-1]) for image in images]
        batch, targets = self.transform(images, targets)
        with padded_batch(batch.image_sizes, batch.tensors.shape[-2:]):
            maps = self.backbone(batch.tensors)
            proposals, losses = self.rpn(batch, maps, targets)
        detections, roi_losses = self.roi_heads(maps, proposals, batch.image_sizes, targets)
        if self.training:
            return losses | roi_losses
        return self.transform.postprocess(detections, batch.image_sizes, original_sizes)


class AnySizeTransform(GeneralizedRCNNTransform):
    """torchvision's resizing, normalization and batching, extended to images of any shape.

    Sides are at least 1 pixel after resizing. Masks are pasted into the image one by one, to save memory.

    Attributes:
        mask_threshold: return bool masks, True where the probability is above it; default None for probabilities.
    """

    mask_threshold: float | None = None

    def postprocess(
        self,
        result: list[dict[str, Tensor]],
        image_shapes: list[tuple[int, int]],
        original_image_sizes: list[tuple[int, int]],
    ) -> list[dict[str, Tensor]]:
        for detections, shape, size in zip(result, image_shapes, original_image_sizes, strict=True):
            detections["boxes"] = resize_boxes(detections["boxes"], list(shape), list(size))
            box_masks, dtype = detections["masks"], None if self.mask_threshold is None else torch.bool
            masks = detections["masks"] = box_masks.new_empty(len(box_masks), 1, *size, dtype=dtype)
            for index, box in enumerate(detections["boxes"]):
                pasted = paste_masks_in_image(box_masks[index, None], box[None], size)[0]
                masks[index] = pasted if self.mask_threshold is None else pasted > self.mask_threshold
        return result

    def resize(self, image: Tensor, target: Target | None = None) -> tuple[Tensor, Target | None]:
        height, width = image.shape[-2:]
        if self.training and self._skip_resize:
            return image, target
        shorter = self.torch_choice([*self.min_size]) if self.training else self.min_size[-1]  # as in torchvision
        scale = min(shorter / min(height, width), self.max_size / max(height, width))
        sides = (max(1, round(height * scale)), max(1, round(width * scale)))
        if sides == (height, width):
            return image, target
        wide = image[None].to(accumulation_dtype(image.dtype))  # CPUs lack antialiasing in 16 bits
        image = F.interpolate(wide, sides, mode="bilinear", align_corners=False, antialias=scale < 1)[0].to(image.dtype)
        if target is not None:
            masks = F.interpolate(target["masks"][:, None].float(), sides)[:, 0].to(target["masks"].dtype)
            target = target | {"boxes": resize_boxes(target["boxes"], [height, width], list(sides)), "masks": masks}
        return image, target


class _MaskedRPN(RegionProposalNetwork):
    """torchvision's region proposal network, but in training it ignores anchors in the padding."""

    def compute_loss(
        self, objectness: Tensor, pred_bbox_deltas: Tensor, labels: list[Tensor], regression_targets: list[Tensor]
    ) -> tuple[Tensor, Tensor]:
        in_padding = (objectness == _PADDING_LOGIT).view(len(labels), -1)
        labels = [label.masked_fill(ignored, -1) for label, ignored in zip(labels, in_padding, strict=True)]
        return super().compute_loss(objectness, pred_bbox_deltas, labels, regression_targets)


class _MaskedRPNHead(RPNHead):
    """torchvision's RPNHead, but with a low objectness for anchors in the padding."""

    def forward(self, maps: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        logits, offsets = super().forward(maps)
        padding = current_padding()
        return logits if padding is None else [padding.fill(x, _PADDING_LOGIT) for x in logits], offsets


def _cast_inputs_to_weights(head: nn.Module, inputs: Any) -> Any:
    """Cast the maps of a head, in float32 for anchors and RoIAlign, to the dtype of its weights; a forward pre-hook."""
    dtype = next((weight.dtype for weight in head.parameters()), torch.float32)  # a head may have none
    return tree_map(lambda x: x.to(dtype), inputs)


def _cast_outputs_to_float32(head: nn.Module, inputs: Any, outputs: Any) -> Any:
    """Cast outputs to float32 or float64, before boxes and masks are computed from them; a forward hook.

    Raises InputError if some are NaN or inf in evaluation: torchvision would drop such objects, and find none.
    """
    outputs = tree_map(lambda x: x.to(accumulation_dtype(x.dtype)), outputs)
    is_checked = not (head.training or torch.compiler.is_compiling() or torch.jit.is_tracing())
    if is_checked and not torch.stack([x.isfinite().all() for x in tree_leaves(outputs)]).all():  # waits for GPUs once
        raise InputError(f"the outputs of the detector must be finite, got NaN or inf: {NON_FINITE}")
    return outputs


def _roi_align(strides: Sequence[int], output_size: int) -> MultiScaleRoIAlign:
    """Return RoIAlign for levels of these strides."""
    pool: Any = MultiScaleRoIAlign([str(level) for level in range(len(strides))], output_size, sampling_ratio=2)
    # torchvision would infer both from the first images, wrongly for small ones
    pool.scales = [1 / stride for stride in strides]
    pool.map_levels = initLevelMapper(int(math.log2(strides[0])), int(math.log2(strides[-1])))
    return pool


def mask_rcnn(
    backbone: str,
    num_classes: int,
    *,
    image_size: int = 1024,
    levels: Sequence[int] = (1, 2, 3, 4),
    pyramid_channels: int = 256,
    box_layers: tuple[int, int] = (4, 1024),
    mask_layers: int = 4,
    anchor_scale: float = 8.0,
    aspect_ratios: Sequence[float] = (0.5, 1.0, 2.0),
    hide_padding: bool = True,
    mask_threshold: float | None = None,
    backbone_options: dict[str, Any] | None = None,
    **options: Any,
) -> MaskRCNN:
    """Build a Mask R-CNN with a feature pyramid on a backbone, with random weights.

    The pyramid and both heads have batch norm.

    Args:
        backbone: name of a model of this package or of timm that supports features_only.
        num_classes: number of object classes, not counting the background, which is class 0.
        image_size: longer side of the images after resizing, in pixels; default 1024.
        levels: indices of the feature maps of the backbone that the pyramid uses, from 0; default (1, 2, 3, 4).
        pyramid_channels: number of channels of each level of the pyramid; default 256.
        box_layers: number of 3x3 convolutions of the box head, and width of its fully connected layer; default
            (4, 1024).
        mask_layers: number of 3x3 convolutions of the mask head; default 4.
        anchor_scale: side of the anchors of a level, in units of its stride; default 8.
        aspect_ratios: ratios height / width of the anchors; default (0.5, 1.0, 2.0).
        hide_padding: make the detections in an image independent of the other images in its batch; default True.
        mask_threshold: return bool masks, True where the probability is above it; default None for probabilities. Bool
            masks need one byte per pixel instead of four: 1.2 GB for 100 masks of 12 megapixels.
        backbone_options: arguments of the backbone, by name; default none.
        options: arguments of torchvision's MaskRCNN, such as box_detections_per_img, image_mean, and min_size with
            max_size in place of image_size.

    Raises ValueError for an unknown option, if the backbone has no feature maps, if the strides of the levels are not
    consecutive powers of two, or if a backbone of timm does not support padded batches: with hide_padding=True, its
    maps must be independent of padding; with hide_padding=False, it must accept images whose sides are any multiples of
    its largest stride.
    """
    known = inspect.signature(TorchvisionMaskRCNN).parameters.keys() - {"kwargs"}
    if unknown := sorted(options.keys() - known):  # torchvision ignores them
        raise InputError(f"mask_rcnn takes no argument {unknown[0]!r}{nearest_hint(unknown[0], known)}")
    network = create_model(backbone, features_only=True, out_indices=tuple(levels), **backbone_options or {})
    pyramid_backbone = PyramidBackbone(network, pyramid_channels)
    head = _MaskedRPNHead(pyramid_channels, len(aspect_ratios))
    for module in (pyramid_backbone, head) if hide_padding else ():
        add_padding_hooks(module)
    # the check takes seconds; LambdaResNets with any options pass it
    if not (next(network.parameters()).is_meta or is_model_in_modules(backbone, "lambda_resnet")):
        check_padded_batches(pyramid_backbone, backbone, hide_padding)
    strides = pyramid_backbone.strides
    if list(strides) != [2 ** (int(math.log2(strides[0])) + level) for level in range(len(strides))]:
        raise InputError(f"levels must have strides that double, got {strides[:-1]} of {backbone}")
    anchors = AnchorGenerator([round(anchor_scale * stride) for stride in strides], tuple(aspect_ratios))
    num_convs, fc_width = box_layers
    model = MaskRCNN(
        pyramid_backbone,
        rpn_anchor_generator=anchors,
        rpn_head=head,
        box_roi_pool=_roi_align(strides[:-1], 7),
        box_head=FastRCNNConvFCHead(
            (pyramid_channels, 7, 7), [pyramid_channels] * num_convs, [fc_width], norm_layer=nn.BatchNorm2d
        ),
        box_predictor=FastRCNNPredictor(fc_width, num_classes + 1),
        mask_roi_pool=_roi_align(strides[:-1], 14),
        mask_head=MaskRCNNHeads(pyramid_channels, [pyramid_channels] * mask_layers, 1, norm_layer=nn.BatchNorm2d),
        mask_predictor=MaskRCNNPredictor(pyramid_channels, pyramid_channels, num_classes + 1),
        size_divisible=strides[-1],  # the sides of each map are then those of the batch divided by its stride
        **{"min_size": image_size, "max_size": image_size, "rpn_score_thresh": _MIN_OBJECTNESS} | options,
    )
    # torchvision constructs the base classes, with all options
    model.rpn.__class__, model.transform.__class__ = _MaskedRPN, AnySizeTransform
    predictors = (head, model.roi_heads.box_predictor, model.roi_heads.mask_predictor)
    for module in (*predictors, model.roi_heads.box_head, model.roi_heads.mask_head):
        module.register_forward_pre_hook(_cast_inputs_to_weights)
    for module in predictors:
        module.register_forward_hook(_cast_outputs_to_float32)
    model.transform.mask_threshold = mask_threshold
    return model
