"""Models as graphs for export: input, outputs, and how their outputs are compared with PyTorch's."""

import copy
import json
import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from pydantic import PositiveInt
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torchvision.ops import box_iou

from lambdanets.errors import InputError, one_line
from lambdanets.inference.classifier import Classifier
from lambdanets.inference.detector import Detector
from lambdanets.inference.predictor import Predictor
from lambdanets.records import check
from lambdanets_lab.benchmark.measurement import relative_error
from lambdanets_lab.export.detector import OUTPUTS, DetectionGraph

Shape = tuple[int, ...]
Outputs = Sequence[Tensor]

_INITIAL_NORM_WEIGHT = 0.2  # with 1, random networks amplify rounding errors up to 200 times
_MIN_IOU, _MAX_SCORE_ERROR = 0.99, 1e-3


class Graph:
    """A model to export, in evaluation mode and float32 on the CPU, and how outputs are compared.

    network: maps images to a tensor or a sequence or mapping of tensors; traced by torch.export.
    shape: shape of the images, (b, c, H, W).
    outputs: names of the output tensors.
    dynamic_axes: axes of the images that may have any size in a dynamic graph.
    """

    dynamic_axes: ClassVar[tuple[int, ...]] = (0, 2, 3)
    error_name: ClassVar[str] = "relative difference from PyTorch"
    # deep networks in float32 differ by up to 1e-5, layers by less than 1e-6
    max_error: ClassVar[float] = 1e-4

    def __init__(self, network: nn.Module, shape: Shape, outputs: tuple[str, ...]) -> None:
        self.network, self.shape, self.outputs = network, shape, outputs

    @torch.inference_mode()
    def run_pytorch(self, images: Tensor) -> list[Tensor]:
        """Return the outputs of the model in PyTorch, on the CPU and in float32."""
        return tree_leaves(self.network(images))

    def make_images(self, shape: Shape, generator: torch.Generator) -> Tensor:
        """Return random images."""
        return torch.randn(shape, generator=generator)

    def error(self, actual: Outputs, expected: Outputs) -> float:
        """Return the maximum over the outputs of the norm of the difference / that of the expected.

        For integer and boolean outputs, it is the fraction of elements that differ. It is inf if values are not finite
        or shapes differ.
        """
        if [x.shape for x in actual] != [x.shape for x in expected]:
            return math.inf
        return max(
            relative_error(x, reference) if reference.is_floating_point() else float((x != reference).float().mean())
            for x, reference in zip(actual, expected, strict=True)
        )


class DetectorGraph(Graph):
    """A detector, whose error is the fraction of objects that differ."""

    dynamic_axes = (2, 3)
    error_name = "fraction of objects that differ from PyTorch"
    max_error = 0.02  # the order of two equal scores may decide which box suppresses the other

    def __init__(self, detector: Detector, image_size: int | tuple[int, int] | None) -> None:
        sides, stride = _sides(detector, image_size), detector.model.transform.size_divisible
        if not detector.card.hide_padding and any(side % stride for side in sides):
            expected = f"multiples of {stride} for a detector with hide_padding=False, whose images are padded to them"
            raise InputError(f"image_size must have {expected}, got {sides}")
        self.model = copy.deepcopy(detector.model).cpu().float().eval()
        # a list, which .cpu() ignores
        self.model.rpn.anchor_generator.set_cell_anchors(torch.float32, torch.device("cpu"))
        super().__init__(DetectionGraph(self.model), (1, 3, *sides), OUTPUTS)

    @torch.inference_mode()
    def run_pytorch(self, images: Tensor) -> list[Tensor]:
        transform, sides = self.model.transform, images.shape[-2:]
        transform.min_size, transform.max_size = (min(sides),), max(sides)  # no resizing
        detections = self.model([images[0]])[0]
        boxes, labels, scores = (detections[name] for name in ("boxes", "labels", "scores"))
        return [boxes, labels, scores, detections["masks"][:, 0]]

    def make_images(self, shape: Shape, generator: torch.Generator) -> Tensor:
        """Return images with noise and 40 rectangles, in random colors."""
        images = 0.1 * torch.rand(shape, generator=generator)
        sizes = torch.tensor(shape[2:])
        for _ in range(40):
            color = torch.rand((shape[1], 1, 1), generator=generator)
            corner, sides = torch.rand((2, 2), generator=generator)
            top, left = (corner * sizes).int().tolist()
            height, width = (sides * sizes / 4).int().clamp(min=2).tolist()
            images[..., top : top + height, left : left + width] = color
        return images

    def error(self, actual: Outputs, expected: Outputs) -> float:
        heads = self.model.roi_heads
        limits = {"min_score": heads.score_thresh, "max_objects": heads.detections_per_img}
        return missing_objects(actual, expected, **limits)


def make_graph(model: Predictor | nn.Module, image_size: int | tuple[int, int] | None, batch_size: int) -> Graph:
    """Return the graph of a model.

    Raises InputError for a model of another type, an invalid shape of the images, and a network that fails on images of
    this shape, or whose outputs cannot be compared.
    """
    check("batch_size", batch_size, PositiveInt)
    if isinstance(model, Detector):
        if batch_size != 1:
            raise InputError(f"batch_size must be 1 for a detector, got {batch_size}")
        return DetectorGraph(model, image_size)
    network = model.model if isinstance(model, Predictor) else model
    if not isinstance(network, nn.Module):
        raise InputError(f"model must be a trained model or a network, got {type(model).__name__}")
    shape = (batch_size, _channels(network), *_sides(model if isinstance(model, Classifier) else network, image_size))
    copied, names = _copy_for_export(network, shape)
    if isinstance(model, Predictor) and len(names) == 1:
        names = ("logits",)
    return Graph(copied, shape, names)


def make_metadata(model: Any, graph: Graph, *, dynamic: bool) -> dict[str, Any]:
    """Return the metadata of the file: the card with the size of the images, their shape, and names of the outputs."""
    card = json.loads(model.card.without_paths().to_json()) if isinstance(model, Predictor) else {}
    if isinstance(model, Detector):
        card["image_size"] = max(graph.shape[2:])
    elif isinstance(model, Classifier) and graph.shape[2] == graph.shape[3]:
        card["preprocessing"]["image_size"] = graph.shape[2]
    return card | {"images": list(graph.shape), "dynamic": dynamic, "outputs": list(graph.outputs)}


def zero_norm_weights(network: nn.Module) -> list[Tensor]:
    """Return the weights of norms that are zero-initialized, as in residual branches (zero_init_last).

    The layers before such a norm have no effect on the outputs, so a comparison of outputs does not test them.
    """
    weights = [getattr(m, "weight", None) for m in network.modules() if "Norm" in type(m).__name__]
    return [weight for weight in weights if isinstance(weight, Tensor) and not weight.any()]


def fill_zero_norm_weights(network: nn.Module) -> None:
    """Replace the zeros of `zero_norm_weights`, so that the outputs of a random network depend on all layers."""
    for weight in zero_norm_weights(network):
        nn.init.constant_(weight, _INITIAL_NORM_WEIGHT)


@torch.no_grad()
def _copy_for_export(network: nn.Module, shape: Shape) -> tuple[nn.Module, tuple[str, ...]]:
    """Return a float32 copy in evaluation mode and the names of its outputs.

    The copy returns a dict or a tuple in place of other mappings and sequences, which torch.export cannot write. Raises
    InputError if it does not run, or if its outputs are not tensors.
    """
    images = torch.randn(shape, generator=torch.Generator().manual_seed(0), device="cpu")
    try:
        copied = copy.deepcopy(network).cpu().float().eval()
        outputs = copied(images)
    except Exception as error:  # models raise many types
        raise InputError(
            f"model must run on float32 images of shape {shape} in PyTorch, got {one_line(error)[:300]}"
        ) from error
    named = {"output": outputs}
    if isinstance(outputs, Mapping):
        named = {str(name): x for name, x in outputs.items()}
    elif isinstance(outputs, Sequence):
        named = {f"output_{i}": x for i, x in enumerate(outputs)}
    kinds = sorted({type(x).__name__ for x in named.values() if not isinstance(x, Tensor)})
    if kinds or not named:
        expected = "a tensor, or a sequence or mapping of tensors"
        raise InputError(f"outputs of the model must be {expected}, got {', '.join(kinds) or 'none'}")
    if not isinstance(outputs, Tensor) and type(outputs) not in (dict, OrderedDict, list, tuple):
        plain = dict if isinstance(outputs, Mapping) else tuple
        copied.register_forward_hook(lambda _module, _images, returned: plain(returned))
    return copied, tuple(named)


def _channels(network: nn.Module) -> int:
    """Return the number of input channels, from the first convolution."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            return module.in_channels
    got = f"{type(network).__name__} without 2-D convolutions; for other inputs, use torch.onnx.export(dynamo=True)"
    raise InputError(f"model must be a network with images as input, got {got}")


def _sides(model: Any, image_size: int | tuple[int, int] | None) -> tuple[int, int]:
    """Return height and width of the images."""
    if image_size is None:
        if isinstance(model, Classifier):
            image_size = model.card.preprocessing.image_size
        elif isinstance(model, Detector):
            image_size = model.card.image_size
        else:
            size = (getattr(model, "pretrained_cfg", None) or {}).get("input_size")
            if size is None:
                raise InputError(f"image_size must be given for a {type(model).__name__}, got None")
            image_size = int(size[-2]), int(size[-1])
    sides = (image_size, image_size) if isinstance(image_size, int) else image_size
    check("image_size", sides, tuple[PositiveInt, PositiveInt])
    return sides


def missing_objects(actual: Outputs, expected: Outputs, *, min_score: float = 0.0, max_objects: int = 100) -> float:
    """Return the larger fraction of objects of `actual` and `expected` (boxes, labels, scores, masks) without a match.

    Two objects match if their labels are equal, their scores differ by at most 1e-3, and the IoU of both boxes
    and masks is above 0.99. Objects are ignored if their score is within 1e-3 of min_score, or of the lowest of
    max_objects objects: rounding decides whether they are detected. It is inf if a score is NaN.
    """
    if any(not scores.isfinite().all() for _, _, scores, _ in (actual, expected)):
        return math.inf
    same = _matches(actual, expected)
    fractions = []
    for (_, _, scores, _), found in ((actual, same.any(1)), (expected, same.any(0))):
        lowest = max(min_score, float(scores.min()) if len(scores) >= max_objects else 0.0) + _MAX_SCORE_ERROR
        fractions.append(float((~found & (scores > lowest)).sum()) / max(1, len(scores)))
    return max(fractions)


def _matches(actual: Outputs, expected: Outputs) -> Tensor:
    """Return whether each pair of objects matches, (n, m)."""
    boxes, labels, scores, masks = zip(actual, expected, strict=True)
    same = (labels[0][:, None] == labels[1]) & ((scores[0][:, None] - scores[1]).abs() <= _MAX_SCORE_ERROR)
    same &= box_iou(*boxes) > _MIN_IOU
    for i, j in same.nonzero().tolist():
        first, second = masks[0][i], masks[1][j]
        same[i, j] = bool((first & second).sum() >= _MIN_IOU * (first | second).sum())
    return same
