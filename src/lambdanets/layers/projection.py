"""Query, key and value projections, merged into one matrix product where possible."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook
from torch.nn.utils.parametrize import is_parametrized

from lambdanets.layers.contiguous_gradient import contiguous_gradient
from lambdanets.ops.geometry import is_exporting, is_transposed
from lambdanets.ops.precision import accumulation_dtype, autocast_dtype, without_autocast

Projection = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d
_PROJECTIONS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_INSTANCE_NORMS = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)


def project(
    x: Tensor,
    projections: Sequence[tuple[nn.Module, nn.Module | None]],
    *,
    is_tokens: bool,
    valid: Tensor | None = None,
) -> list[Tensor]:
    """Return norm(projection(x)) for each (projection, norm) pair, as rows (b, n, channels).

    Batch norms in eval mode are folded into the weights of their projections, and all projections become one matrix
    product; else the first is one, and the others are another. Folding happens in float32 or float64 at each call,
    so changes of the norms always have an effect. Modules of other types, and modules with hooks or parametrizations,
    are called normally.

    Args:
        x: tokens (b, n, d) for linear projections, or maps (b, d, S_1..S_D) for 1x1 convolutions.
        projections: pairs (projection, norm); None for no norm.
        is_tokens: True if x has tokens, False if it has maps.
        valid: bool (b, n); in training, batch norm uses only these positions and returns 0 elsewhere. Default None for
            all positions.
    """
    grid = () if is_tokens else tuple(x.shape[2:])
    if not all(is_plain_projection(module) for module, _ in projections):
        outputs = [projection(x) for projection, _ in projections]
        rows = [output if is_tokens else output.flatten(2).transpose(-2, -1) for output in outputs]
        is_folded = [False] * len(projections)
    else:
        is_folded = [_can_fold(norm) for _, norm in projections]
        weights, biases = zip(
            *(_weight_and_bias(*pair, fold) for pair, fold in zip(projections, is_folded, strict=True)), strict=True
        )
        maps = x.transpose(-2, -1) if is_tokens else x.flatten(2)  # PyTorch's exporter of traces lacks mT
        folded, sizes, rows = any(is_folded), [len(weight) for weight in weights], []
        # One product if norms are folded. Else the queries are apart: their norm would copy a part of a product.
        for group in [slice(None)] if folded else [slice(1), slice(1, None)]:
            if sizes[group]:
                product = _matmul(maps, torch.cat(weights[group]), torch.cat(biases[group]) if folded else None)
                rows += product.split(sizes[group], dim=2)
    return [
        projected if norm is None or fold else normalize(norm, projected, grid, valid)
        for projected, (_, norm), fold in zip(rows, projections, is_folded, strict=True)
    ]


def normalize(norm: nn.Module, rows: Tensor, grid: tuple[int, ...], valid: Tensor | None) -> Tensor:
    """Apply a norm to rows (b, n, c); in training only to the valid positions (b, n), returning 0 elsewhere.

    grid: spatial sides of the maps that the norm expects; empty for tokens.
    """
    if isinstance(norm, nn.Identity):
        return rows
    if valid is not None and grid and _mixes_positions(norm):
        raise ValueError(
            f"mask must be None for a layer with a {type(norm).__name__}, which mixes positions, got a mask"
        )
    masked = valid is not None and norm.training
    are_maps = is_transposed(rows)
    if grid and not masked and (are_maps or not isinstance(norm, (*_BATCH_NORMS, nn.SyncBatchNorm))):
        # norms other than batch norm may depend on the positions, so they need maps
        maps = rows.transpose(-2, -1).contiguous().unflatten(2, grid)
        return contiguous_gradient(norm(maps)).flatten(2).transpose(-2, -1)
    flat = rows[valid] if masked else rows.flatten(0, 1).contiguous()
    flat = contiguous_gradient(norm(flat[(..., *(None,) * len(grid))]).flatten(1))
    return flat.new_zeros(*rows.shape[:2], flat.shape[1]).index_put((valid,), flat) if masked else flat.view_as(rows)


def _mixes_positions(norm: nn.Module) -> bool:
    """Return whether a norm of maps uses statistics over the positions of each map."""
    if isinstance(norm, _INSTANCE_NORMS):
        return norm.training or not norm.track_running_stats
    return isinstance(norm, nn.GroupNorm)


def is_plain_projection(module: nn.Module) -> bool:
    """Return whether a module is exactly one matrix product per position, computed by its weight alone."""
    return _is_exactly(module, _PROJECTIONS) and _is_matrix_product(module)


def _is_exactly(module: nn.Module, types: tuple[type[nn.Module], ...]) -> bool:
    """Return whether a module has exactly one of the types, and no hooks, parametrizations or replaced forward.

    Hooks of all modules, which count operations for example, are hooks of the module too.
    """
    hooked = module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    if hooked or _has_any_global_hook():
        return False
    return type(module) in types and "forward" not in module.__dict__ and not is_parametrized(module)


def _is_matrix_product(projection: Any) -> bool:
    """Return whether a projection is one matrix product per position: 1x1, without bias, groups, stride or padding."""
    if projection.bias is not None or isinstance(projection, nn.Linear):
        return projection.bias is None
    is_pointwise = {*projection.kernel_size, *projection.stride, projection.groups} == {1}
    return is_pointwise and not any(projection.padding)


def _can_fold(norm: nn.Module | None) -> bool:
    return (
        norm is not None
        and _is_exactly(norm, _BATCH_NORMS)
        and not norm.training
        and norm.running_mean is not None
        and bool(norm.affine)
    )


def _weight_and_bias(projection: Any, norm: Any, fold: bool) -> tuple[Tensor, Tensor]:
    """Return the weight (c, d) and bias (c,) of a projection, with its norm folded into them if `fold`."""
    weight = projection.weight.flatten(1)
    if not fold:
        return weight, weight.new_zeros(weight.shape[0])
    dtype = accumulation_dtype(weight.dtype)
    scale = norm.weight.to(dtype) * (norm.running_var.to(dtype) + norm.eps).rsqrt()
    bias = norm.bias.to(dtype) - norm.running_mean.to(dtype) * scale
    return (weight.to(dtype) * scale.unsqueeze(1)).to(weight.dtype), bias.to(weight.dtype)


def _matmul(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return rows (b, n, c) of x (b, d, n) for a weight (c, d), in autocast's dtype if enabled.

    They are in memory as maps (b, c, n) if x is, and if the device is a CPU.
    """
    dtype = autocast_dtype(x.device)
    if dtype is not None and x.dtype != torch.float64:
        x, weight, bias = x.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
    with without_autocast(x.device):
        rows = x.transpose(-2, -1)
        if is_transposed(x) or is_exporting():  # int8 runtimes need 2-d weights
            return F.linear(rows, weight, bias)
        weights = weight.expand(x.shape[0], -1, -1)
        if x.device.type == "cpu":  # products, batch norms and the compiled kernel are faster on maps
            maps = torch.bmm(weights, x) if bias is None else torch.baddbmm(bias.unsqueeze(1), weights, x)
            return maps.transpose(-2, -1)
        weights = weights.transpose(-2, -1)
        return torch.bmm(rows, weights) if bias is None else torch.baddbmm(bias, rows, weights)
