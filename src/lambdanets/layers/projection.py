"""Query, key and value projections, merged into one matrix product where possible."""

import functools
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook
from torch.nn.utils.parametrize import is_parametrized

from lambdanets.layers.contiguous_gradient import contiguous_gradient
from lambdanets.ops.geometry import is_exporting
from lambdanets.ops.precision import accumulation_dtype, autocast_dtype, without_autocast

Projection = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d
_PROJECTIONS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
_MAX_SEQUENTIAL_BATCH = 32  # accumulate one product per example for batches up to this size, else use one bmm
_MAX_FLATTENED_POSITIONS = 64  # per example; with more positions, one product per example is faster
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
    product. Folding happens in float32 or float64 at each call, so changes of the norms always have an effect. Modules
    of other types, and modules with hooks or parametrizations, are called normally.

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
        if any(is_folded):
            (product,) = _project_rows(maps, torch.cat(biases), torch.cat(weights))
            rows = list(product.split([weight.shape[0] for weight in weights], dim=2))
        else:  # each norm needs its own contiguous rows
            rows = list(_project_rows(maps, None, *weights))
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
    if grid and not masked and not isinstance(norm, (*_BATCH_NORMS, nn.SyncBatchNorm)):
        # norms other than batch norm may depend on the positions, so they need maps
        return contiguous_gradient(norm(rows.transpose(-2, -1).unflatten(2, grid))).flatten(2).transpose(-2, -1)
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


def _project_rows(x: Tensor, bias: Tensor | None, *weights: Tensor) -> tuple[Tensor, ...]:
    """Return rows (b, n, c) of x (b, d, n) for each weight (c, d), plus bias (c,), in autocast's dtype if enabled."""
    dtype = autocast_dtype(x.device)
    if dtype is not None and x.dtype != torch.float64:
        x, bias = x.to(dtype), None if bias is None else bias.to(dtype)
        weights = tuple(weight.to(dtype) for weight in weights)
    function = _ProjectRows if torch.compiler.is_compiling() else _ProjectRowsForwardMode
    # a trace cannot contain an autograd.Function
    run = function.apply if torch.is_grad_enabled() and not torch.jit.is_tracing() else _ProjectRows.forward
    with without_autocast(x.device):
        return run(x, bias, *weights)


class _ProjectRows(torch.autograd.Function):
    """Projects x in either memory format without copying it; the gradient has the memory format of x."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, bias: Tensor | None, *weights: Tensor) -> tuple[Tensor, ...]:
        return tuple(_matmul(x, weight, bias) for weight in weights)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        x, bias, *weights = inputs
        ctx.save_for_backward(x, *weights)
        ctx.save_for_forward(x, *weights)
        ctx.has_bias = bias is not None

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        if torch.compiler.is_compiling():  # cannot trace the context
            return _ProjectRows._backward(ctx, *grad_outputs)
        # the backward pass may be called within autocast, which would change the dtype of some products only
        with without_autocast(grad_outputs[0].device):
            return _ProjectRows._backward(ctx, *grad_outputs)

    @staticmethod
    def _backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        x, *weights = ctx.saved_tensors
        grad_x = grad_bias = None
        grad_weights: list[Tensor | None] = [None] * len(weights)
        if ctx.needs_input_grad[0]:
            grad_x = _grad_x(x, weights, grad_outputs)
        for i, grad_output in enumerate(grad_outputs):
            if not ctx.needs_input_grad[2 + i]:
                continue
            if _channels_last(x) or (not torch.compiler.is_compiling() and x.shape[2] <= _MAX_FLATTENED_POSITIONS):
                grad_weights[i] = grad_output.flatten(0, 1).mT @ x.mT.flatten(0, 1)
            else:
                grad_weights[i] = _sum_of_products(grad_output.mT, x.mT)
        if ctx.has_bias and ctx.needs_input_grad[1]:
            grad_bias = grad_outputs[0].sum(dim=(0, 1))
        return grad_x, grad_bias, *grad_weights


class _ProjectRowsForwardMode(_ProjectRows):
    """Adds forward-mode AD, which torch.compile cannot trace."""

    @staticmethod
    def jvp(ctx: Any, dx: Tensor | None, dbias: Tensor | None, *dweights: Tensor | None) -> tuple[Tensor, ...]:
        x, *weights = ctx.saved_tensors
        tangents = []
        for weight, dweight in zip(weights, dweights, strict=True):
            total = torch.zeros_like(_matmul(x, weight, None))
            if dx is not None:
                total = total + _matmul(dx, weight, None)
            if dweight is not None:
                total = total + _matmul(x, dweight, None)
            tangents.append(total if dbias is None else total + dbias)
        return tuple(tangents)


def _matmul(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return rows (b, n, c) of x (b, d, n)."""
    # int8 runtimes need 2-d weights
    if _channels_last(x) or is_exporting():
        return F.linear(x.transpose(-2, -1), weight, bias)
    weights = weight.T.expand(x.shape[0], -1, -1)
    rows = x.transpose(-2, -1)
    return torch.bmm(rows, weights) if bias is None else torch.baddbmm(bias, rows, weights)


def _grad_x(x: Tensor, weights: Sequence[Tensor], grad_outputs: Sequence[Tensor]) -> Tensor:
    """Return the gradient of x (b, d, n), summed over the projections, in the memory format of x."""
    pairs = list(zip(weights, grad_outputs, strict=True))
    in_place = not (torch.is_grad_enabled() or torch.compiler.is_compiling())
    if _channels_last(x):
        total = pairs[0][1] @ pairs[0][0]
        for weight, grad_output in pairs[1:]:
            if in_place:
                total.view(-1, total.shape[2]).addmm_(grad_output.flatten(0, 1), weight)
            else:
                total = total + grad_output @ weight
        return total.mT
    factors = [(weight.mT.expand(x.shape[0], -1, -1), grad_output.mT) for weight, grad_output in pairs]
    total = torch.bmm(*factors[0])
    for factor in factors[1:]:
        total = total.baddbmm_(*factor) if in_place else torch.baddbmm(total, *factor)
    return total


def _channels_last(x: Tensor) -> bool:
    """Return whether x (b, d, n) has channels-last strides."""
    return x.stride(1) == 1 and x.stride(2) != 1


def _sum_of_products(left: Tensor, right: Tensor) -> Tensor:
    """Return left (b, c, n) @ right (b, n, d), summed over b in float32 or wider.

    Avoids storing all products where possible.
    """
    batch = len(left)
    if torch.is_grad_enabled() or torch.compiler.is_compiling() or not 0 < batch <= _MAX_SEQUENTIAL_BATCH:
        return torch.bmm(left, right).sum(dim=0)
    if left.dtype.itemsize == 2:
        products = (torch.mm(*pair).float() for pair in zip(left, right, strict=True))
        return functools.reduce(Tensor.add_, products).to(left.dtype)
    total = torch.mm(left[0], right[0])
    for example_left, example_right in zip(left[1:], right[1:], strict=True):
        total.addmm_(example_left, example_right)
    return total
