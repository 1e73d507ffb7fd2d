"""Queries, keys and values from one matrix product, as rows: a row of channels for each position."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from lambdanets.layers.contiguous_gradient import contiguous_gradient
from lambdanets.ops.precision import autocast_dtype, wide, without_autocast

Projection = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d
_PROJECTIONS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
_ADDED_IN_TURN = 32  # examples
_FEW_POSITIONS = 64  # of an example: too few for a fast product of its own
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def project(
    x: Tensor, pairs: Sequence[tuple[nn.Module, nn.Module | None]], *, tokens: bool, real: Tensor | None = None
) -> list[Tensor]:
    """norm(projection(x)) for each pair, as rows (b, n, channels).

    x: tokens (b, n, d) for linear projections, or maps (b, d, S_1..S_D) for convolutions of size 1.
    real: (b, n) bool; in training, batch norm counts these positions alone, and gives 0 at others.

    Batch norms in eval mode are folded into plain projections, in float32 or wider and at each call: nothing is kept
    that could become stale; the projections are then one product. Modules that are not plain, or have hooks, are called
    as they are.
    """
    grid = () if tokens else tuple(x.shape[2:])
    if not all(_is_plain(projection, _PROJECTIONS) and _is_product(projection) for projection, _ in pairs):
        outputs = [projection(x) for projection, _ in pairs]
        rows = [output if tokens else output.flatten(2).mT for output in outputs]
        folded = [False] * len(pairs)
    else:
        folded = [_folds(norm) for _, norm in pairs]
        weights, biases = zip(*(_weight(*pair, fold) for pair, fold in zip(pairs, folded, strict=True)), strict=True)
        maps = x.mT if tokens else x.flatten(2)
        if any(folded):
            (product,) = _products(maps, torch.cat(biases), torch.cat(weights))
            rows = list(product.split([weight.shape[0] for weight in weights], dim=2))
        else:  # norms want rows by themselves
            rows = list(_products(maps, None, *weights))
    return [
        some if norm is None or fold else normalize(norm, some, grid, real)
        for some, (_, norm), fold in zip(rows, pairs, folded, strict=True)
    ]


def normalize(norm: nn.Module, rows: Tensor, grid: tuple[int, ...], real: Tensor | None) -> Tensor:
    """norm(rows (b, n, c)), in training over the real positions (b, n) alone, the others giving 0.

    grid: of maps, whose norm takes so many axes beside batch and channels; empty for tokens.
    """
    if isinstance(norm, nn.Identity):
        return rows
    some = real is not None and norm.training
    if grid and not some and not isinstance(norm, (*_BATCH_NORMS, nn.SyncBatchNorm)):
        # another norm may tell examples and positions apart
        return contiguous_gradient(norm(rows.mT.unflatten(2, grid))).flatten(2).mT
    picked = rows[real] if some else rows.flatten(0, 1).contiguous()
    picked = contiguous_gradient(norm(picked[(..., *(None,) * len(grid))]).flatten(1))
    return torch.zeros_like(rows).index_put((real,), picked) if some else picked.view_as(rows)


def _is_plain(module: nn.Module, types: tuple[type[nn.Module], ...]) -> bool:
    """Of just one of the types, its forward as that has it, and called by nobody but us."""
    hooked = module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    return type(module) in types and not hooked and "forward" not in module.__dict__ and not is_parametrized(module)


def _is_product(projection: Any) -> bool:
    """Whether each position's channels meet one matrix and nothing else."""
    if projection.bias is not None or isinstance(projection, nn.Linear):
        return projection.bias is None
    single = {*projection.kernel_size, *projection.stride, projection.groups} == {1}
    return single and not any(projection.padding)


def _folds(norm: nn.Module | None) -> bool:
    return (
        norm is not None
        and _is_plain(norm, _BATCH_NORMS)
        and not norm.training
        and norm.running_mean is not None
        and bool(norm.affine)
    )


def _weight(projection: Any, norm: Any, fold: bool) -> tuple[Tensor, Tensor]:
    """Weight (c, d) and bias (c,), the norm folded into them."""
    weight = projection.weight.flatten(1)
    if not fold:
        return weight, weight.new_zeros(weight.shape[0])
    dtype = wide(weight.dtype)
    scale = norm.weight.to(dtype) * (norm.running_var.to(dtype) + norm.eps).rsqrt()
    bias = norm.bias.to(dtype) - norm.running_mean.to(dtype) * scale
    return (weight.to(dtype) * scale.unsqueeze(1)).to(weight.dtype), bias.to(weight.dtype)


def _products(x: Tensor, bias: Tensor | None, *weights: Tensor) -> tuple[Tensor, ...]:
    """x (b, d, n), weights (c, d) to rows (b, n, c) each, plus bias (c,), in the dtype of autocast where that is on."""
    dtype = autocast_dtype(x.device)
    if dtype is not None and x.dtype != torch.float64:
        x, bias = x.to(dtype), None if bias is None else bias.to(dtype)
        weights = tuple(weight.to(dtype) for weight in weights)
    function = _Products if torch.compiler.is_compiling() else _ForwardModeProducts
    # a trace cannot hold a Function
    run = function.apply if torch.is_grad_enabled() and not torch.jit.is_tracing() else _Products.forward
    with without_autocast(x.device):
        return run(x, bias, *weights)


class _Products(torch.autograd.Function):
    """Rows from channels first or last, and the gradient in the layout of x: no copy between layouts either way."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, bias: Tensor | None, *weights: Tensor) -> tuple[Tensor, ...]:
        return tuple(_rows(x, weight, bias) for weight in weights)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        x, bias, *weights = inputs
        ctx.save_for_backward(x, *weights)
        ctx.save_for_forward(x, *weights)
        ctx.has_bias = bias is not None

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, *weights = ctx.saved_tensors
        of_x = of_bias = None
        of_weights: list[Tensor | None] = [None] * len(weights)
        if ctx.needs_input_grad[0]:
            of_x = _gradient_of_maps(x, weights, gradients)
        for i, gradient in enumerate(gradients):
            if not ctx.needs_input_grad[2 + i]:
                continue
            if _channels_last(x) or (not torch.compiler.is_compiling() and x.shape[2] <= _FEW_POSITIONS):
                of_weights[i] = gradient.flatten(0, 1).mT @ x.mT.flatten(0, 1)
            else:
                of_weights[i] = _summed_products(gradient.mT, x.mT)
        if ctx.has_bias and ctx.needs_input_grad[1]:
            of_bias = gradients[0].sum(dim=(0, 1))
        return of_x, of_bias, *of_weights


class _ForwardModeProducts(_Products):
    """The same, with a derivative in forward mode, which torch.compile cannot trace."""

    @staticmethod
    def jvp(ctx: Any, of_x: Tensor | None, of_bias: Tensor | None, *of_weights: Tensor | None) -> tuple[Tensor, ...]:
        x, *weights = ctx.saved_tensors
        results = []
        for weight, of_weight in zip(weights, of_weights, strict=True):
            total = torch.zeros_like(_rows(x, weight, None))
            if of_x is not None:
                total = total + _rows(of_x, weight, None)
            if of_weight is not None:
                total = total + _rows(x, of_weight, None)
            results.append(total if of_bias is None else total + of_bias)
        return tuple(results)


def _rows(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if _channels_last(x):
        return F.linear(x.mT, weight, bias)
    weights = weight.mT.expand(x.shape[0], -1, -1)
    return torch.bmm(x.mT, weights) if bias is None else torch.baddbmm(bias, x.mT, weights)


def _gradient_of_maps(x: Tensor, weights: Sequence[Tensor], gradients: Sequence[Tensor]) -> Tensor:
    """sum over the products of W^T g, (b, d, n), laid out as x."""
    pairs = list(zip(weights, gradients, strict=True))
    added_in_place = not (torch.is_grad_enabled() or torch.compiler.is_compiling())
    if _channels_last(x):
        total = pairs[0][1] @ pairs[0][0]
        for weight, gradient in pairs[1:]:
            if added_in_place:
                total.view(-1, total.shape[2]).addmm_(gradient.flatten(0, 1), weight)
            else:
                total = total + gradient @ weight
        return total.mT
    factors = [(weight.mT.expand(x.shape[0], -1, -1), gradient.mT) for weight, gradient in pairs]
    total = torch.bmm(*factors[0])
    for factor in factors[1:]:
        total = total.baddbmm_(*factor) if added_in_place else torch.baddbmm(total, *factor)
    return total


def _channels_last(x: Tensor) -> bool:
    """Whether x (b, d, n) holds the channels of a position together."""
    return x.stride(1) == 1 and x.stride(2) != 1


def _summed_products(first: Tensor, second: Tensor) -> Tensor:
    """sum over b of first (b, c, n) second (b, n, d), without the products of all examples where that can be."""
    if torch.is_grad_enabled() or torch.compiler.is_compiling() or len(first) > _ADDED_IN_TURN:
        return torch.bmm(first, second).sum(dim=0)
    total = torch.mm(first[0], second[0])
    for one, other in zip(first[1:], second[1:], strict=True):
        total.addmm_(one, other)
    return total
