"""The forward pass of a Mask R-CNN as one graph of tensor operations, for export.

Its outputs equal those of the model for one image that needs no resizing. The number of proposals is constant: boxes
that non-maximum suppression removes get a score of 0 instead. Only the last step removes boxes, so only the number of
objects depends on the image.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.models.detection.roi_heads import expand_boxes, expand_masks
from torchvision.ops import clip_boxes_to_image, nms, roi_align

from lambdanets.models.mask_rcnn import MaskRCNN

OUTPUTS = ("boxes", "labels", "scores", "masks")
_CANDIDATES_PER_DETECTION = 10  # at least, in the last non-maximum suppression


class DetectionGraph(nn.Module):
    """Detection in one image (1, 3, H, W) with values in [0, 1].

    Returns boxes (n, 4), x1, y1, x2, y2 in pixels; labels (n,), int64, from 1; scores (n,); and masks (n, H, W), bool.

    Differences from `MaskRCNN`: the image is neither resized nor padded, so with hide_padding=False its sides must be
    multiples of the largest stride; and with several classes, the last non-maximum suppression considers only the
    max(proposals, 10 * max_detections) boxes with the highest scores.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, model: MaskRCNN) -> None:
        super().__init__()
        self.model: Any = model
        transform = model.transform
        self.register_buffer("mean", torch.tensor(transform.image_mean).view(3, 1, 1))
        self.register_buffer("std", torch.tensor(transform.image_std).view(3, 1, 1))

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        size = images.shape[-2], images.shape[-1]
        maps = list(self.model.backbone((images - self.mean) / self.std).values())
        proposals, is_proposal = self._propose(maps, size)
        boxes, labels, scores = self._detect(maps[:-1], proposals, is_proposal, size)
        masks = self._masks(maps[:-1], boxes, labels, size)
        is_object = scores > 0
        return boxes[is_object], labels[is_object], scores[is_object], masks[is_object]

    def _propose(self, maps: list[Tensor], size: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """Return a constant number of boxes (p, 4), and whether each is a proposal (p,)."""
        rpn = self.model.rpn
        logits, offsets = rpn.head(maps)
        boxes, scores = [], []
        for level, (level_logits, level_offsets) in enumerate(zip(logits, offsets, strict=True)):
            objectness = level_logits[0].permute(1, 2, 0).flatten()  # positions, then anchors
            codes = level_offsets[0].unflatten(0, (-1, 4)).permute(2, 3, 0, 1).flatten(0, 2)
            anchors = self._anchors(level, maps[level])
            count = torch.sym_min(rpn.pre_nms_top_n(), objectness.shape[0])
            best = objectness.topk(count).indices
            candidates = rpn.box_coder.decode_single(codes[best], anchors[best])
            candidates = clip_boxes_to_image(candidates, size)
            probabilities = objectness[best].sigmoid()
            sides = candidates[:, 2:] - candidates[:, :2]
            is_valid = (sides >= rpn.min_size).all(1) & (probabilities >= rpn.score_thresh)
            kept = _nms_mask(candidates, probabilities * is_valid, rpn.nms_thresh)
            boxes.append(candidates)
            scores.append(probabilities * is_valid * kept)
        all_boxes, all_scores = torch.cat(boxes), torch.cat(scores)
        top_scores, top = _top(all_scores, rpn.post_nms_top_n())
        return all_boxes[top], top_scores > 0

    def _anchors(self, level: int, maps: Tensor) -> Tensor:
        """Return the anchors of a level (positions * anchors per position, 4)."""
        stride = self.model.backbone.strides[level]
        shapes = self.model.rpn.anchor_generator.cell_anchors[level].to(maps)
        y, x = (torch.arange(side, dtype=torch.float32, device=maps.device) * stride for side in maps.shape[-2:])
        y, x = y[:, None].expand(-1, maps.shape[-1]), x.expand(maps.shape[-2], -1)
        centers = torch.stack((x, y, x, y), dim=-1)  # (h, w, 4)
        return (centers.unsqueeze(2) + shapes).flatten(0, 2)

    def _detect(
        self, maps: list[Tensor], proposals: Tensor, is_proposal: Tensor, size: tuple[int, int]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Classify proposals; return boxes, labels and scores of the objects, in descending order of score.

        Without objects, it returns one box with a score of 0: graphs of convolutions need batches that are not empty.
        """
        heads = self.model.roi_heads
        regions = self._pool(maps, proposals, heads.box_roi_pool)
        logits, codes = heads.box_predictor(heads.box_head(regions))
        num_classes = logits.shape[1] - 1
        scores = logits.softmax(-1)[:, 1:] * is_proposal[:, None]
        boxes = heads.box_coder.decode_single(codes, proposals).unflatten(1, (-1, 4))[:, 1:]
        boxes = clip_boxes_to_image(boxes.flatten(0, 1), size)
        sides = boxes[:, 2:] - boxes[:, :2]
        scores = scores.flatten() * (sides >= 1e-2).all(1)
        scores = scores * (scores > heads.score_thresh)
        count = max(len(proposals), _CANDIDATES_PER_DETECTION * heads.detections_per_img)
        scores, top = _top(scores, count)
        boxes, labels = boxes[top], top % num_classes + 1
        # boxes are shifted by class, so that boxes of different classes do not overlap
        shifted = boxes + ((labels - 1) * (max(size) + 1)).to(boxes.dtype)[:, None]
        scores = scores * _nms_mask(shifted, scores, heads.nms_thresh)
        top_scores, top = _top(scores, heads.detections_per_img)
        is_first = torch.arange(top_scores.shape[0], device=scores.device) == 0
        objects = top[(top_scores > 0) | is_first]
        torch._check(objects.shape[0] >= 1)
        return boxes[objects], labels[objects], scores[objects]

    def _pool(self, maps: list[Tensor], boxes: Tensor, pool: Any) -> Tensor:
        """Return the regions of boxes (n, channels, side, side), each from the pyramid level of its size.

        One RoIAlign takes the levels, padded to the same size, as images of a batch.
        """
        levels = pool.map_levels([boxes])
        scales = boxes.new_tensor(pool.scales)[levels]
        padded = [_extend(x, maps[0].shape[2:]) for x in maps]
        corners = torch.cat((levels[:, None].to(boxes.dtype), boxes * scales[:, None]), dim=1)  # level, box
        return roi_align(torch.cat(padded), corners, pool.output_size, 1.0, pool.sampling_ratio)

    def _masks(self, maps: list[Tensor], boxes: Tensor, labels: Tensor, size: tuple[int, int]) -> Tensor:
        """Return masks (n, H, W), bool: the masks of the boxes, resized bilinearly to the boxes in whole pixels."""
        heads = self.model.roi_heads
        logits = heads.mask_predictor(heads.mask_head(self._pool(maps, boxes, heads.mask_roi_pool)))
        index = labels[:, None, None, None].expand(-1, 1, *logits.shape[2:])
        masks, scale = expand_masks(logits.gather(1, index).sigmoid(), padding=1)
        corners = expand_boxes(boxes, scale).to(torch.int64)
        rows = _resize_matrix(corners[:, 1], corners[:, 3], size[0], masks.shape[-1])
        columns = _resize_matrix(corners[:, 0], corners[:, 2], size[1], masks.shape[-1])
        pasted = rows @ masks[:, 0] @ columns.mT
        return pasted > (self.model.transform.mask_threshold or 0.5)


def _top(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the highest scores and their indices; equal scores keep their order, as in non-maximum suppression."""
    values, indices = scores.sort(descending=True, stable=True)
    return values[:count], indices[:count]


def _extend(maps: Tensor, size: Sequence[int]) -> Tensor:
    """Return maps (1, c, *size) of maps (1, c, h, w), the last rows and columns repeated."""
    rows, columns = (
        torch.arange(side, device=maps.device).clamp(max=last - 1)
        for side, last in zip(size, maps.shape[2:], strict=True)
    )
    return maps.index_select(2, rows).index_select(3, columns)


def _nms_mask(boxes: Tensor, scores: Tensor, threshold: float) -> Tensor:
    """Return 1 for the boxes (n,) that non-maximum suppression keeps, otherwise 0."""
    return torch.zeros_like(scores).index_fill(0, nms(boxes, scores, threshold), 1.0)


def _resize_matrix(first: Tensor, last: Tensor, side: int, count: int) -> Tensor:
    """Return matrices (n, side, count) for bilinear interpolation of `count` samples to the pixels first to last."""
    pixels = torch.arange(side, device=first.device)
    length = (last - first + 1).clamp(min=1)
    inside = (pixels >= first[:, None]) & (pixels < (first + length)[:, None])
    position = (pixels - first[:, None] + 0.5) * (count / length)[:, None] - 0.5  # (n, side), in samples
    distance = position.clamp(0, count - 1).unsqueeze(-1) - torch.arange(count, device=first.device)
    return (1 - distance.abs()).clamp(min=0) * inside.unsqueeze(-1)
