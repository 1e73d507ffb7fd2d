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
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def project(
    x: Tensor, pairs: Sequence[tuple[nn.Module, nn.Module | None]], *, tokens: bool, real: Tensor | None = None
) -> list[Tensor]:
    """norm(projection(x)) for each pair, as rows (b, n, channels).

    x: tokens (b, n, d) for linear projections, or maps (b, d, S_1..S_D) for convolutions of size 1.
    real: (b, n) bool; in training, batch norm counts these positions alone, and gives 0 at others.

    Plain projections are one product with their weights together. A batch norm in eval mode is folded into them, in
    float32 or wider, at each call: nothing is kept that could become stale. Modules that are not plain, or have hooks,
    are called as they are.
    """
    if not all(_is_plain(projection, _PROJECTIONS) and projection.bias is None for projection, _ in pairs):
        outputs = [projection(x) for projection, _ in pairs]
        rows = [output if tokens else output.flatten(2).mT for output in outputs]
        folded = [False] * len(pairs)
    else:
        folded = [_folds(norm) for _, norm in pairs]
        weights, biases = zip(*(_weight(*pair, fold) for pair, fold in zip(pairs, folded, strict=True)), strict=True)
        bias = torch.cat(biases) if any(folded) else None
        product = _product(x.mT if tokens else x.flatten(2), torch.cat(weights), bias)
        rows = list(product.split([weight.shape[0] for weight in weights], dim=2))
    return [
        some if norm is None or fold else normalize(norm, some, real)
        for some, (_, norm), fold in zip(rows, pairs, folded, strict=True)
    ]


def normalize(norm: nn.Module, rows: Tensor, real: Tensor | None) -> Tensor:
    """norm(rows (b, n, c)), in training over the real positions (b, n) alone, the others giving 0."""
    if isinstance(norm, nn.Identity):
        return rows
    some = real is not None and norm.training
    picked = rows[real] if some else rows.flatten(0, 1).contiguous()
    # (positions, c), which batch norm takes with as many further axes as it is made for
    further = 2 if isinstance(norm, nn.BatchNorm2d) else 3 if isinstance(norm, nn.BatchNorm3d) else 0
    picked = contiguous_gradient(norm(picked[(..., *(None,) * further)]).flatten(1))
    return torch.zeros_like(rows).index_put((real,), picked) if some else picked.view_as(rows)


def _is_plain(module: nn.Module, types: tuple[type[nn.Module], ...]) -> bool:
    """Of just one of the types, and called by nobody but us."""
    hooked = module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    return type(module) in types and not hooked and not is_parametrized(module)


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


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x (b, d, n), weight (c, d), bias (c,) to rows (b, n, c), in the dtype of autocast where that is on."""
    dtype = autocast_dtype(x.device)
    if dtype is not None and x.dtype != torch.float64:
        x, weight, bias = x.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
    function = _Product if torch.compiler.is_compiling() else _ForwardModeProduct
    with without_autocast(x.device):
        return function.apply(x, weight, bias)


class _Product(torch.autograd.Function):
    """Rows from channels first or last, and the gradient in the layout of x: no copy between layouts either way."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if _channels_last(x):
            return F.linear(x.mT, weight, bias)
        factor = weight.mT.expand(x.shape[0], -1, -1)
        rows = torch.bmm(x.mT, factor)
        return rows if bias is None else rows.add_(bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None], output: Tensor) -> None:
        x, weight, bias = inputs
        ctx.save_for_backward(x, weight)
        ctx.save_for_forward(x, weight)
        ctx.has_bias = bias is not None

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        of_x = of_weight = of_bias = None
        if ctx.needs_input_grad[0]:
            if _channels_last(x):
                of_x = (gradient @ weight).mT
            else:
                of_x = torch.bmm(weight.mT.expand(x.shape[0], -1, -1), gradient.mT)
        if ctx.needs_input_grad[1]:
            if _channels_last(x):
                of_weight = gradient.flatten(0, 1).mT @ x.mT.flatten(0, 1)
            else:
                of_weight = torch.bmm(gradient.mT, x.mT).sum(dim=0)
        if ctx.has_bias and ctx.needs_input_grad[2]:
            of_bias = gradient.sum(dim=(0, 1))
        return of_x, of_weight, of_bias


class _ForwardModeProduct(_Product):
    """The same, with a derivative in forward mode, which torch.compile cannot trace."""

    @staticmethod
    def jvp(ctx: Any, of_x: Tensor | None, of_weight: Tensor | None, of_bias: Tensor | None) -> Tensor:
        x, weight = ctx.saved_tensors
        terms = []
        if of_x is not None:
            terms.append(_Product.forward(of_x, weight, None))
        if of_weight is not None:
            terms.append(_Product.forward(x, of_weight, None))
        if of_bias is not None:
            terms.append(of_bias.expand(x.shape[0], x.shape[2], -1))
        total = terms[0]
        for term in terms[1:]:
            total = total + term
        return total


def _channels_last(x: Tensor) -> bool:
    """Whether x (b, d, n) holds the channels of a position together."""
    return x.stride(1) == 1 and x.stride(2) != 1
