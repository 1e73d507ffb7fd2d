"""Parameter and FLOP counts of networks on the meta device, counted as in the paper."""

import math

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from lambdanets.inference.predictor import evaluation_mode
from lambdanets.layers import LambdaLayer2d, RelativeEmbedding


def count_parameters(model: nn.Module) -> int:
    """Return the number of parameters, including frozen ones; shared parameters count once."""
    return sum(parameter.numel() for parameter in model.parameters())


def count_flops(model: nn.Module, image_size: int, *, single_application: bool = False) -> int:
    """Return the FLOPs of a forward pass for one square image, 2 per multiply-add (Sec. F.3 of the paper).

    Counts convolutions, linear layers and the contractions of lambda layers, but not biases, norms, activations,
    pooling and additions. The model must be on the meta device, where it runs once.

    Args:
        image_size: side of the image, in pixels.
        single_application: if True, count one application of the sum of the content and the position lambda, as this
            package computes it. If False, the default, count one application of each, as in Fig. 3 of the paper.
    """
    total = 0

    def hook(layer: nn.Module, arguments: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal total
        total += 2 * count_multiply_adds(layer, arguments, output, single_application)

    with register_module_forward_hook(hook), torch.no_grad(), evaluation_mode(model):
        model(torch.empty(1, 3, image_size, image_size, device="meta"))
    return total


def count_multiply_adds(
    layer: nn.Module, arguments: tuple[Tensor, ...], output: Tensor, single_application: bool
) -> int:
    """Return the multiply-adds of one layer without its submodules; 0 for layers that are not counted."""
    if isinstance(layer, nn.Conv2d):
        return output.numel() * layer.weight[0].numel()
    if isinstance(layer, nn.ConvTranspose2d):
        return arguments[0].numel() * layer.weight[0].numel()
    if isinstance(layer, nn.Linear):
        return output.numel() * layer.in_features
    if isinstance(layer, LambdaLayer2d):
        return _lambda_multiply_adds(layer, arguments[0], single_application)
    return 0


def _lambda_multiply_adds(layer: LambdaLayer2d, x: Tensor, single_application: bool) -> int:
    """Return the multiply-adds of computing and applying the lambdas.

    The position lambda of each query is counted as a sum over min(r, S / dilation) positions along each side S, also
    near the border. Layers with a stride run at the resolution of their input, because they pool afterwards.
    """
    batch, _, height, width = x.shape
    per_context_position = (
        layer.query_depth * layer.value_depth * layer.intra_depth * (layer.heads if layer.multi_head else 1)
    )
    per_application = layer.heads * layer.query_depth * layer.value_depth
    context_sizes = []  # context positions per query, for the content and the position lambda
    if layer.key_projection is not None:
        context_sizes.append(1)  # all queries share the content lambda
    if isinstance(layer.embedding, RelativeEmbedding):
        scope = layer.embedding.scope
        sides = (-(-side // layer.dilation) for side in (height, width))  # positions that a dilated scope can reach
        context_sizes.append(math.prod(min(r, side) for r, side in zip(scope, sides, strict=True)))
    num_applications = 1 if single_application else len(context_sizes)
    return batch * height * width * (sum(context_sizes) * per_context_position + num_applications * per_application)
