"""Query, key and value projections, merged into one matrix product where possible."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from lambdanets.ops.tracing import is_exporting

_PROJECTIONS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_MIXING_NORMS = (nn.GroupNorm, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
# Elements of the input from which folding takes less time than batch norms. Graphs fold constants once, and autocast
# would cast each output of a batch norm.
_MIN_FOLDED = 1 << 16


def project(
    x: Tensor,
    projections: Sequence[tuple[nn.Module, nn.Module | None]],
    *,
    is_tokens: bool,
    valid: Tensor | None = None,
) -> list[Tensor]:
    """Return norm(projection(x)) for each (projection, norm) pair, (b, channels, n).

    Batch norms in eval mode are folded into the weights of their projections if the maps are large, in graphs and if
    dtypes are mixed. The projections are one matrix product if a norm is folded or there is one example; else the first
    is one, and the others are another. Folding happens in float32 or float64 at each call, so changes of the norms
    always have an effect. Modules of other types, and modules with hooks or parametrizations, are called normally.

    Args:
        x: tokens (b, n, d) for linear projections, or maps (b, d, S_1..S_D) for 1x1 convolutions.
        projections: pairs (projection, norm); None for no norm.
        is_tokens: True if x has tokens, False if it has maps.
        valid: bool (b, n); in training, batch norm uses only these positions and returns 0 elsewhere. Default None for
            all positions.
    """
    grid = () if is_tokens else tuple(x.shape[2:])
    modules: tuple[Any, ...]
    norms: tuple[Any, ...]
    modules, norms = zip(*projections, strict=True)
    are_plain = [_is_plain_norm(norm) for norm in norms]
    is_folded = [False] * len(norms)
    weights = _product_weights(modules, x.shape[-1 if is_tokens else 1])
    if not weights:
        outputs = [module(x) for module in modules]
        projected = [output.transpose(1, 2) if is_tokens else output.flatten(2) for output in outputs]
    else:
        maps = x.transpose(-2, -1) if is_tokens else x.flatten(2)  # PyTorch's exporter of traces lacks mT
        autocast = not x.is_meta and torch.is_autocast_enabled(x.device.type)
        folds = autocast or torch.compiler.is_compiling() or torch.jit.is_tracing() or maps.numel() >= _MIN_FOLDED
        is_folded = [
            plain and not norm.training and (folds or norm._parameters["weight"].dtype != x.dtype)
            for plain, norm in zip(are_plain, norms, strict=True)
        ]
        if any(is_folded):
            folded = [_fold(*each) for each in zip(weights, norms, is_folded, strict=True)]
            projected = _product(maps, *zip(*folded, strict=True))
        elif len(weights) == 1 or x.shape[0] == 1:  # len(x) makes a dynamic batch constant
            projected = _product(maps, weights)
        else:  # the queries are apart, because their norm would copy a part of a product
            projected = _product(maps, weights[:1]) + _product(maps, weights[1:])
    return [
        maps if norm is None or fold else _normalize(norm, maps, grid, valid, plain)
        for maps, norm, plain, fold in zip(projected, norms, are_plain, is_folded, strict=True)
    ]


def _normalize(norm: Any, maps: Tensor, grid: tuple[int, ...], valid: Tensor | None, plain: bool) -> Tensor:
    """Apply a norm to maps (b, c, n); in training only to the valid positions (b, n), returning 0 elsewhere.

    grid: spatial sides of the maps that the norm expects; empty for tokens. plain: see `_is_plain_norm`.
    """
    if isinstance(norm, nn.Identity):
        return maps
    mixes = isinstance(norm, _MIXING_NORMS) and (norm.training or not getattr(norm, "track_running_stats", False))
    if mixes and grid and valid is not None:
        raise ValueError(
            f"mask must be None for a layer with a {type(norm).__name__}, which mixes positions, got a mask"
        )
    masked = valid is not None and norm.training
    are_maps = maps.stride(2) == 1 != maps.stride(1)
    if grid and not masked and (are_maps or not isinstance(norm, (*_BATCH_NORMS, nn.SyncBatchNorm))):
        maps = maps.contiguous()
        if plain:  # a call of the module, and its attributes, take twice as long
            buffers, parameters = norm._buffers, norm._parameters
            if norm.training:
                buffers["num_batches_tracked"].add_(1)
            tensors = buffers["running_mean"], buffers["running_var"], parameters["weight"], parameters["bias"]
            normalized = F.batch_norm(maps, *tensors, norm.training, norm.momentum, norm.eps)
        else:  # norms other than batch norm may depend on the positions, so they need a grid
            normalized = norm(maps.unflatten(2, grid))
        return contiguous_gradient(normalized, maps.shape)
    rows = maps.transpose(1, 2)
    flat = rows[valid] if masked else rows.flatten(0, 1).contiguous()
    flat = contiguous_gradient(norm(flat[(..., *(None,) * len(grid))]), flat.shape)
    rows = flat.new_zeros(rows.shape).index_put((valid,), flat) if masked else flat.view_as(rows)
    return rows.transpose(1, 2)


def _product_weights(projections: Sequence[Any], dim: int) -> list[Tensor]:
    """Return the weights (c, dim[, 1, ..]) of modules that are one matrix product per position, or [] if one is not."""
    weights = []
    for projection in projections:
        if not is_plain(projection, _PROJECTIONS):
            return []
        parameters = projection._parameters  # without weights in replicas of DataParallel and in FSDP
        weight = parameters.get("weight")
        if weight is None or parameters["bias"] is not None:
            return []
        if type(weight) is not nn.Parameter and is_traceable_wrapper_subclass(weight):  # quantized, for example
            return []
        if weight.shape[1] != dim or weight.shape[2:].numel() > 1:  # with groups, or a kernel of several positions
            return []
        weights.append(weight)
    return weights


def is_plain(module: Any, types: tuple[type[nn.Module], ...]) -> bool:
    """Return whether a module has exactly one of the types, and no hooks, parametrizations or replaced forward.

    Parametrizations change the type. Hooks of all modules, which count operations for example, are hooks of each.
    """
    if type(module) not in types or _has_any_global_hook():
        return False
    hooks = module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    return not hooks and "forward" not in module.__dict__


def _is_plain_norm(norm: Any) -> bool:
    """Whether a norm is exactly a batch norm with weights, biases, and running statistics of constant momentum."""
    if not is_plain(norm, _BATCH_NORMS) or norm.momentum is None or norm._buffers["running_mean"] is None:
        return False
    weight, bias = norm._parameters.get("weight"), norm._parameters.get("bias")
    return bool(norm.track_running_stats) and weight is not None and bias is not None


def _fold(weight: Tensor, norm: Any, fold: bool) -> tuple[Tensor, Tensor]:
    """Return a weight (c, d) and bias (c,), with the norm folded into them if `fold`."""
    weight = weight.flatten(1)
    if not fold:
        return weight, weight.new_zeros(len(weight))
    wide = weight.float() if weight.dtype.itemsize < 4 else weight
    scale = norm.weight.to(wide.dtype) * (norm.running_var.to(wide.dtype) + norm.eps).rsqrt()
    bias = norm.bias.to(wide.dtype) - norm.running_mean.to(wide.dtype) * scale
    return (wide * scale.unsqueeze(1)).to(weight.dtype), bias.to(weight.dtype)


def _product(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor] = ()) -> list[Tensor]:
    """Return the products (b, c, n) of x (b, d, n) with each weight (c, d[, 1, ..]).

    They are in memory as rows (b, n, c) if x is, and if the device is not a CPU.
    """
    sizes = [weight.shape[0] for weight in weights]
    weight = (weights[0] if len(weights) == 1 else torch.cat(list(weights))).flatten(1)
    bias = torch.cat(list(biases)) if biases else None
    are_rows = x.stride(1) == 1 != x.stride(2)
    if are_rows or (torch.compiler.is_compiling() and is_exporting()):  # int8 runtimes need 2-d weights
        product = F.linear(x.transpose(-2, -1), weight, bias).transpose(-2, -1)
    elif x.device.type == "cpu":  # products, batch norms and the compiled kernel are faster on maps
        matrices = weight.expand(x.shape[0], -1, -1)
        product = torch.bmm(matrices, x) if bias is None else torch.baddbmm(bias.unsqueeze(1), matrices, x)
    else:
        rows, matrices = x.transpose(-2, -1), weight.mT.expand(x.shape[0], -1, -1)
        product = torch.bmm(rows, matrices) if bias is None else torch.baddbmm(bias, rows, matrices)
        product = product.transpose(-2, -1)
    return [product] if len(sizes) == 1 else list(product.split_with_sizes(sizes, 1))


def contiguous_gradient(x: Tensor, shape: Sequence[int]) -> Tensor:
    """Return x in a shape; its gradient is then contiguous.

    PyTorch's batch norm on CPU silently returns a wrong gradient at batch size 1 if its incoming gradient has strides
    like (C, 1, W C, C). Reshapes between an image and a sequence of positions produce such strides.
    """
    if torch.is_grad_enabled() or torch.jit.is_tracing():  # a trace is the same with and without gradients
        x = x.flatten()
    return x if x.shape == shape else x.reshape(shape)
