"""Parameter and FLOP counts of networks on the meta device, in the paper's convention."""

from typing import Any

import torch
from torch import Tensor, nn

from lambdanets.layers import LambdaLayer2d, RelativeEmbedding


def count_parameters(model: nn.Module) -> int:
    """Number of parameters, including frozen ones; shared parameters count once."""
    return sum(parameter.numel() for parameter in model.parameters())


def count_parameters_in_use(model: nn.Module, image_size: int) -> int:
    """Number of parameters used for square images of a size, without table entries for offsets beyond all maps."""
    unused: dict[nn.Parameter, int] = {}

    def hook(layer: nn.Module, arguments: tuple[Tensor, ...], output: Tensor) -> None:
        if isinstance(layer, LambdaLayer2d) and isinstance(layer.embedding, RelativeEmbedding):
            table = layer.embedding.table
            height, width = table.shape[-(4 if layer.intra_depth > 1 else 3) :][:2]
            sides = arguments[0].shape[2:]
            used = min(height, 2 * sides[0] - 1) * min(width, 2 * sides[1] - 1)
            left = table.numel() - table.numel() // (height * width) * used
            unused[table] = min(left, unused.get(table, left))

    _run_on_meta(model, image_size, hook)
    return count_parameters(model) - sum(unused.values())


def count_flops(model: nn.Module, image_size: int, *, channels: int = 3, applied_together: bool = False) -> int:
    """FLOPs of a forward pass of one square image, 2 per multiply-add (Sec. F.3, FLOPS count).

    Counts convolutions, linear layers and the contractions of lambda layers; not biases, norms, activations, pooling or
    additions. The model must be on the meta device, and is run there once.
    applied_together: count one application of the sum of content and position lambda, as in this package; False counts
        one application of each, as in the paper's Fig. 3.
    """
    total = 0

    def hook(layer: nn.Module, arguments: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal total
        total += 2 * multiply_adds(layer, arguments, output, applied_together)

    _run_on_meta(model, image_size, hook, channels)
    return total


def multiply_adds(layer: nn.Module, arguments: tuple[Tensor, ...], output: Tensor, applied_together: bool) -> int:
    """Multiply-adds of one layer without its submodules; 0 for other layers."""
    if isinstance(layer, nn.Conv2d):
        return output.numel() * layer.weight[0].numel()
    if isinstance(layer, nn.Linear):
        return output.numel() * layer.in_features
    if isinstance(layer, LambdaLayer2d):
        return _contractions(layer, arguments[0], applied_together)
    return 0


def _contractions(layer: LambdaLayer2d, x: Tensor, applied_together: bool) -> int:
    """Multiply-adds of computing lambdas and applying them.

    A query's position lambda sums over min(r, S) positions along a side S, without correction at the border. Strided
    layers run at the resolution of their input, because pooling comes after them.
    """
    batch, _, height, width = x.shape
    per_context = layer.query_depth * layer.value_depth * layer.intra_depth * (layer.heads if layer.multi_head else 1)
    applied = layer.heads * layer.query_depth * layer.value_depth
    contexts = []
    if layer.key_projection is not None:
        contexts.append(1)  # the content lambda, a sum over all positions
    if isinstance(layer.embedding, RelativeEmbedding):
        scope = layer.embedding.scope
        contexts.append(min(scope[0], height) * min(scope[1], width))
    applications = 1 if applied_together else len(contexts)
    return batch * height * width * (sum(contexts) * per_context + applications * applied)


def _run_on_meta(model: nn.Module, image_size: int, hook: Any, channels: int = 3) -> None:
    """Run one image through the model, calling hook(layer, arguments, output) for every module."""
    for parameter in model.parameters():
        if not parameter.is_meta:
            raise ValueError(f"model must be built on the meta device, got a parameter on {parameter.device}")
    hooks = [module.register_forward_hook(hook) for module in model.modules()]
    training = model.training
    try:
        with torch.no_grad():
            model.eval()(torch.empty(1, channels, image_size, image_size, device="meta"))
    finally:
        model.train(training)
        for hook in hooks:
            hook.remove()
